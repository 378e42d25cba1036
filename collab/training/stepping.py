"""A replica whose microbatches are steps of its own optimiser."""

import math

import torch

from collab.training.replica import Replica


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
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        for parameter in parameters:
            parameter.grad.div_(scale)  # type: ignore[union-attr]  # it is not None
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_gradient_norm or math.inf)
        is_sound = (loss is None or math.isfinite(loss)) and bool(torch.isfinite(norm))
        if is_sound:
            self._set_rates(None)
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return is_sound
