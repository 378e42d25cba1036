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
BEYOND = 4
"""Microbatches in a row for which float16 was of no use, and float32 was: it is not tried again then."""


class Backward:
    """Leaves the gradients of a microbatch in the parameters."""

    def __init__(self, layout: VectorLayout, precision: Precision) -> None:
        self._layout, self.precision = layout, precision
        self.scale = LossScale() if precision is Precision.FLOAT16 else None
        """None: nothing needs to be scaled."""
        self._beyond = 0
        """Microbatches in a row; see ``BEYOND``."""

    def compute(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], loss_function: LossFunction
    ) -> tuple[float, float]:
        """The loss, and the factor that the gradients are multiplied with.

        Where gradients are not finite and the loss is, the scale was too large for float16: that is no fault of the
        samples, and they are computed again with a smaller one. If that does not help, or the loss is not finite, they
        are computed in float32, whose numbers are larger on the way to the loss, too.
        """

        def loss_here() -> torch.Tensor:
            return loss_function(model, tensors)

        if self.scale is None:
            return self._once(loss_here, self.precision), 1.0
        first = self.scale.value
        for _ in range(TRIES):
            factor = self.scale.value
            loss = self._once(loss_here, self.precision, factor)
            if not math.isfinite(loss):
                break
            if are_finite(self._layout.parameters):
                self._beyond = 0
                return loss, factor
            self.scale.update(was_finite=False)
        loss = self._once(loss_here, Precision.FLOAT32)
        if math.isfinite(loss) and are_finite(self._layout.parameters):
            self._beyond += 1
            if self._beyond == BEYOND:
                self.precision, self.scale = Precision.FLOAT32, None
        else:
            self.scale.value = first  # it was neither float16 nor the scale
        return loss, 1.0

    def note(self, loss: float, *, was_finite: bool) -> None:
        """What has become of a microbatch. A loss that is not finite tells nothing of its scale."""
        if self.scale is not None and (was_finite or math.isfinite(loss)):
            self.scale.update(was_finite)

    def _once(self, loss_here: Callable[[], torch.Tensor], precision: Precision, factor: float = 1.0) -> float:
        self._layout.clear_gradients()
        with precision.autocast(self._layout.parameters[0].device):
            loss = loss_here()
        (loss.float() if factor == 1.0 else loss.float() * factor).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def are_finite(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Whether all gradients are; the largest of some numbers of which one is NaN is NaN."""
    largest = [torch.linalg.vector_norm(p.grad, math.inf) for p in parameters if p.grad is not None]
    return not largest or math.isfinite(float(torch.stack(largest).max()))
