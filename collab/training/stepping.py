"""A replica whose microbatches are steps of its own optimiser."""

import math
from collections.abc import Sequence

import torch

from collab.training.replica import Replica

NEARLY = 1e-6
"""What torch adds to a norm before it divides by it: clipping to more than that changes nothing, and takes its time."""


class SteppingReplica(Replica):
    """What replicas have in common that step by themselves: one clipped step for each microbatch."""

    max_gradient_norm: float | None = None
    """Of each own step; None: not clipped."""

    def _own_step(self, loss: float | None, scale: float) -> bool:
        """One step with the gradients that stand in the parameters now, if they and the loss are finite; whether they
        were.

        Args:
            scale: that the gradients were multiplied with.
        """
        parameters = [parameter for parameter in self.layout.parameters if parameter.grad is not None]
        if scale != 1.0:
            for parameter in parameters:
                parameter.grad.div_(scale)  # type: ignore[union-attr]  # it is not None
        norm = total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        is_sound = (loss is None or math.isfinite(loss)) and math.isfinite(norm.item())
        if is_sound:
            if self.max_gradient_norm is not None and norm.item() + NEARLY > self.max_gradient_norm:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.max_gradient_norm, norm)
            self._set_rates(None)
            self.optimizer.step()
        self.layout.clear_gradients()
        return is_sound


def total_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all together: torch's ``get_total_norm``. On a CPU without its search for devices, which takes
    longer than the norm of a small model; the same bits, unless a square of the norm is beyond float32.
    """
    if not gradients or gradients[0].device.type != "cpu":
        return torch.nn.utils.get_total_norm(gradients)
    norms: list[torch.Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if len(norms) == 1:
        return norms[0]
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole
