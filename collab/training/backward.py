"""Forward and backward of one microbatch, in the arithmetic of this machine."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from collab.training.layout import VectorLayout
from collab.training.precision import LossScale, Precision

LossFunction = Callable[[torch.nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]
TRIES = 5
"""Of one microbatch whose gradient is beyond float16, each with half the scale of the one before. A first scale is
seldom more than eight times too large, and whoever wants the device back waits for the last of them."""


class Backward:
    """Leaves the gradients of a microbatch in the parameters."""

    def __init__(self, layout: VectorLayout, precision: Precision) -> None:
        self._layout, self._precision = layout, precision
        self.scale = LossScale() if precision is Precision.FLOAT16 else None
        """None: nothing needs to be scaled."""

    def compute(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], loss_function: LossFunction
    ) -> tuple[float, float]:
        """The loss, and the factor that the gradients are multiplied with.

        Where gradients are not finite and the loss is, the scale was too large for float16: that is no fault of the
        samples, and they are computed again with a smaller one. If that does not help it was not the scale, which stays
        as it was.
        """
        if self.scale is None:
            return self._once(model, tensors, loss_function, 1.0), 1.0
        first = self.scale.value
        for _ in range(TRIES - 1):
            factor = self.scale.value
            loss = self._once(model, tensors, loss_function, factor)
            if not math.isfinite(loss) or are_finite(self._layout.parameters):
                return loss, factor
            self.scale.update(was_finite=False)
        factor = self.scale.value
        loss = self._once(model, tensors, loss_function, factor)
        if not are_finite(self._layout.parameters):
            self.scale.value = first
        return loss, factor

    def note(self, loss: float, *, was_finite: bool) -> None:
        """What has become of a microbatch. A loss that is not finite tells nothing of its scale."""
        if self.scale is not None and (was_finite or math.isfinite(loss)):
            self.scale.update(was_finite)

    def _once(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], loss_function: LossFunction, factor: float
    ) -> float:
        self._layout.clear_gradients()
        device = self._layout.parameters[0].device
        with self._precision.autocast(device):
            loss = loss_function(model, tensors)
        (loss.float() * factor if self.scale is not None else loss.float()).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def are_finite(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Whether all gradients are; the largest of some numbers of which one is NaN is NaN."""
    largest = [torch.linalg.vector_norm(p.grad, math.inf) for p in parameters if p.grad is not None]
    return not largest or math.isfinite(float(torch.stack(largest).max()))
