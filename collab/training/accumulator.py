"""The gradient that accumulates between two steps: microbatches go in, one sum is handed over to a round."""

import math
import threading
from dataclasses import dataclass, replace

import numpy as np
import torch

from collab.averaging.weights import Weights
from collab.strategies.base import HandedOver, Spans


@dataclass(frozen=True, slots=True)
class Used:
    """What of ours went into a step."""

    sample_ids: tuple[int, ...] = ()
    sample_epochs: tuple[int, ...] = ()
    """For each sample, the epoch at whose parameters its gradient was computed: earlier for what was carried over."""
    loss: float = math.nan
    """Mean over these samples."""


@dataclass(frozen=True, slots=True)
class GradientSum:
    """Gradients of some microbatches, each weighted by its samples."""

    total: torch.Tensor
    """[num_elements] float32 on the device."""
    sample_ids: tuple[int, ...]
    sample_epochs: tuple[int, ...]
    """As in ``Used``."""
    loss_sum: float
    """Over the samples; NaN when it is not known."""
    cleared: Weights | None = None
    """Samples behind each element, where a step has used some elements and not others."""

    @property
    def weights(self) -> Weights:
        """Samples behind each element."""
        return self.cleared or Weights.uniform(len(self.total), len(self.sample_ids))

    def with_(self, other: "GradientSum", total: torch.Tensor) -> "GradientSum":
        """The samples of both, ours first, over ``total``; ``other`` is whole."""
        return GradientSum(
            total,
            self.sample_ids + other.sample_ids,
            self.sample_epochs + other.sample_epochs,
            self.loss_sum + other.loss_sum,
            None if self.cleared is None else self.cleared.plus(len(other.sample_ids)),
        )

    def without(self, used: Spans) -> "GradientSum":
        """The same, with nothing left in the elements of ``used``."""
        for start, stop in used:
            self.total[start:stop] = 0
        return replace(self, cleared=self.weights.cleared(used))

    def mean(self) -> HandedOver:
        """Sum over the samples / samples, on the CPU; 0 where nothing is left."""
        if self.cleared is None:
            return HandedOver((self.total / len(self.sample_ids)).cpu().numpy(), len(self.sample_ids))
        samples = np.maximum(self.cleared.dense(0, len(self.total)), 1)
        mean = (self.total.cpu() / torch.from_numpy(samples)).numpy()
        return HandedOver(mean, round(self.cleared.largest), self.cleared)


class Accumulator:
    """Sums microbatches; what is handed over stays ours until it is settled, and later microbatches add up beside it.

    The worker adds and settles; handing over may happen beside it. Memory: two vectors on the device, three while a
    microbatch is computed beside a round.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        self._num_elements, self._device = num_elements, device
        self._lock = threading.Lock()
        self._spare: list[torch.Tensor] = []
        self._held: tuple[GradientSum | None, GradientSum | None] = None, None
        """What was handed over, and what came after it; one tuple, so that readers see both as of one moment."""
        self.used = Used()

    @property
    def is_handed_over(self) -> bool:
        """Whether a sum is on its way into a step."""
        return self._held[0] is not None

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Of all that is held, handed over or not, in order."""
        return tuple(sample_id for part in self._held if part is not None for sample_id in part.sample_ids)

    def buffer(self) -> torch.Tensor:
        """[num_elements] float32 of any values, for the gradient of the next microbatch."""
        return self._spare.pop() if self._spare else torch.empty(self._num_elements, device=self._device)

    def add(self, microbatch: GradientSum, *, is_sound: bool) -> bool:
        """Add one microbatch, whose total is a ``buffer`` that is given away, if it is finite; whether it was.

        Args:
            is_sound: whether the loss, as far as it is known, is finite.
        """
        total = microbatch.total
        with self._lock:
            handed_over, before = self._held
            if before is not None:
                total.add_(before.total)
            if not is_sound or not bool(torch.isfinite(total).all()):
                self._spare.append(total)
                return False
            if before is not None:
                microbatch = before.with_(microbatch, total)
                self._spare.append(before.total)
            self._held = handed_over, microbatch
        return True

    def hand_over(self) -> HandedOver:
        """The mean of what is accumulated, copied to the CPU; what was handed over before and not settled goes with it.

        Raises:
            ValueError: no samples yet.
        """
        with self._lock:
            ours = self._together()
            if ours is None:
                raise ValueError("there is no gradient before the first microbatch")
            self._held = ours, None
        return ours.mean()

    def settle(self, used: Spans) -> None:
        """What was handed over is in a step in the elements of ``used``, and accumulated as before elsewhere.

        ``used`` remembers samples as soon as nothing of them is left here.
        """
        with self._lock:
            ours, later = self._held
            if ours is None:
                return
            left = ours.without(used) if used else ours
            if left.weights.largest > 0:
                self._held = None, left
                if later is not None:
                    self._held = left, later
                    self._held = None, self._together()
                return
            self.used = Used(ours.sample_ids, ours.sample_epochs, ours.loss_sum / len(ours.sample_ids))
            self._held = None, later
            self._spare = [ours.total]  # one is enough for the next microbatch

    def _together(self) -> GradientSum | None:
        """Both sums as one, in the total of the earlier."""
        earlier, later = self._held
        if earlier is None or later is None:
            return earlier or later
        earlier.total.add_(later.total)
        self._spare.append(later.total)
        return earlier.with_(later, earlier.total)
