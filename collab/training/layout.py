"""The order of the vector: which parameters it holds, where each one lies, and what an absent gradient means."""

from dataclasses import dataclass

import numpy as np
import torch

from collab.errors import ShapeMismatch
from collab.types import Vector


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter lies in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class VectorLayout:
    """Trainable parameters of a model as one vector, in the order of ``named_parameters``.

    Tied weights occur once, under their first name. A parameter without a gradient counts as a gradient of zero, so
    that peers whose microbatch missed a branch of the model still send vectors of the same length.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = tuple(parameter for _, parameter in self._parameters)
        if not self._parameters:
            raise ShapeMismatch(
                "the model has no trainable parameter", hint="set requires_grad on what should be learnt"
            )
        slots, start = [], 0
        for name, parameter in self._parameters:
            slots.append(Slot(name, tuple(parameter.shape), start, start + parameter.numel()))
            start += parameter.numel()
        self.slots = tuple(slots)
        self.num_elements = start
        self._sizes = [slot.stop - slot.start for slot in slots]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in the order of the vector."""
        return tuple(slot.name for slot in self.slots)

    def gather_gradients(self, out: torch.Tensor) -> None:
        """Copy all gradients into ``out``: [num_elements] float32 on the model's device."""
        pieces, gradients = [], []
        for piece, parameter in zip(torch.split(out, self._sizes), self.parameters, strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                pieces.append(piece)
                gradients.append(parameter.grad.reshape(-1))
        if pieces:  # at once: small models keep a GPU waiting for who tells it of each tensor
            torch._foreach_copy_(pieces, gradients)

    def clear_gradients(self) -> None:
        """As ``zero_grad`` of the model, which looks for its parameters each time."""
        for parameter in self.parameters:
            parameter.grad = None

    def gather_parameters(self, out: torch.Tensor) -> None:
        """Copy all parameters into ``out``: [num_elements] float32 on the model's device."""
        with torch.no_grad():
            for slot, (_, parameter) in zip(self.slots, self._parameters, strict=True):
                out[slot.start : slot.stop].copy_(parameter.reshape(-1))

    def scatter_parameters(self, values: torch.Tensor) -> None:
        """Set all parameters from ``values``: [num_elements] float32 on the model's device."""
        with torch.no_grad():
            for slot, (_, parameter) in zip(self.slots, self._parameters, strict=True):
                parameter.copy_(values[slot.start : slot.stop].reshape(slot.shape))

    def scatter_gradients(self, gradient: Vector) -> None:
        """Set every parameter's gradient from ``gradient``: [num_elements] float32 on the CPU.

        Raises:
            ShapeMismatch: another length.
        """
        if gradient.shape != (self.num_elements,):
            raise ShapeMismatch(f"expected a gradient of {self.num_elements} elements, got shape {gradient.shape}")
        for slot, parameter in zip(self.slots, self.parameters, strict=True):
            piece = torch.from_numpy(gradient[slot.start : slot.stop]).reshape(slot.shape)
            parameter.grad = piece.to(device=parameter.device, dtype=parameter.dtype, copy=True)

    def parameters_vector(self) -> Vector:
        """[num_elements] float32 copy of the parameters, on the CPU."""
        pieces = [parameter.detach().reshape(-1).float().cpu().numpy() for _, parameter in self._parameters]
        return np.concatenate(pieces)
