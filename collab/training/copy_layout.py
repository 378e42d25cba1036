"""What a client's copy of a model is made of: the trainable parameters, and what norms have seen of the data."""

import numpy as np
import torch

from collab.training.layout import Slot, VectorLayout
from collab.training.shared_state import model_tensors
from collab.types import Vector

STATISTICS = ("running_mean", "running_var")
"""How torch's norms, and others that are made like them, name what they learn from the batches that pass."""
COUNT = "num_batches_tracked"
"""And of how many batches they have it."""


class CopyLayout:
    """A copy as one vector: the parameters in the order of ``VectorLayout``, then the running statistics of norms.

    So that servers mix statistics as they mix parameters, and whoever pulls has both of one moment.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._parameters = model, VectorLayout(model)
        slots, start = list(self._parameters.slots), self._parameters.num_elements
        for name, tensor in self._buffers().items():
            if name.rpartition(".")[2] in STATISTICS and tensor.is_floating_point():
                slots.append(Slot(name, tuple(tensor.shape), start, start + tensor.numel()))
                start += tensor.numel()
        self.slots = tuple(slots)
        self._statistics = self.slots[len(self._parameters.slots) :]
        self.num_elements = start
        self.num_parameters = self._parameters.num_elements

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, in the order of the vector."""
        return tuple(slot.name for slot in self.slots)

    def vector(self) -> Vector:
        """[num_elements] float32 copy, on the CPU."""
        buffers = self._buffers()
        pieces = [buffers[slot.name].reshape(-1).float().cpu().numpy() for slot in self._statistics]
        return np.concatenate([self._parameters.parameters_vector(), *pieces])

    def scatter(self, values: torch.Tensor) -> None:
        """Set parameters and statistics from ``values``: [num_elements] float32 on the model's device."""
        self._parameters.scatter_parameters(values[: self.num_parameters])
        buffers = self._buffers()
        for slot in self._statistics:
            buffers[slot.name].copy_(values[slot.start : slot.stop].reshape(slot.shape))

    def others(self) -> dict[str, torch.Tensor]:
        """Buffers that are in no copy, by name: constants, and counts of batches. The tensors themselves."""
        own = {slot.name for slot in self._statistics}
        return {name: tensor for name, tensor in self._buffers().items() if name not in own}

    def _buffers(self) -> dict[str, torch.Tensor]:
        """The persistent ones as they are now: a module may have put others in their place."""
        parameters = {name for name, _ in self._model.named_parameters()}
        return {name: tensor for name, tensor in model_tensors(self._model).items() if name not in parameters}
