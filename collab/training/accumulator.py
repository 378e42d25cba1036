"""The gradient that accumulates between two steps: microbatches go in, one sum is handed over to a round."""

import math
import threading
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import torch

from collab.averaging.weights import Weights
from collab.strategies.base import HandedOver, Spans

REMEMBERED = 16
"""Rounds; who is further behind takes over a state."""


@dataclass(frozen=True, slots=True)
class Used:
    """What of ours went into a step."""

    sample_ids: tuple[int, ...] = ()
    sample_epochs: tuple[int, ...] = ()
    """For each sample, the epoch at whose parameters its gradient was computed: earlier for what was carried over."""
    loss: float = math.nan
    """Mean over these samples."""
    weight: float = 0.0
    """Samples, those included of which some elements are used and others are held: by the share of their elements."""
    rounds: tuple[str, ...] = ()
    """Ids of the rounds that used them."""

    def with_(self, later: "Used") -> "Used":
        """Both."""
        mine, theirs = len(self.sample_ids), len(later.sample_ids)
        loss = self.loss if not theirs else later.loss
        if mine and theirs:
            loss = (mine * self.loss + theirs * later.loss) / (mine + theirs)
        return Used(
            self.sample_ids + later.sample_ids,
            self.sample_epochs + later.sample_epochs,
            loss,
            self.weight + later.weight,
            self.rounds + later.rounds,
        )


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
    microbatch is computed beside a round, and two more while it is in doubt what became of a round before.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        self._num_elements, self._device = num_elements, device
        self._lock = threading.Lock()
        self._spare: list[torch.Tensor] = []
        self._held: tuple[GradientSum | None, GradientSum | None, GradientSum | None] = None, None, None
        """What is in doubt, what was handed over since, and what came after it; one tuple, so that readers see all as
        of one moment. What is in doubt is handed over with the rest."""
        self._doubts = frozenset[str]()
        """Rounds that may have used what is in doubt."""
        self._settled: deque[str] = deque(maxlen=REMEMBERED)
        """The last rounds of which it is settled what they have used."""
        self._used = Used()

    @property
    def is_handed_over(self) -> bool:
        """Whether a sum is on its way into a step."""
        return self._held[1] is not None

    def is_settled(self, round_id: str) -> bool:
        """Whether what a round has used is forgotten already."""
        return round_id in self._settled

    def is_in_doubt(self, round_id: str) -> bool:
        """Whether a round may have used what is kept apart."""
        return round_id in self._doubts

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Of all that is held, handed over or not, in order."""
        return tuple(sample_id for part in self._held if part is not None for sample_id in part.sample_ids)

    def held(self) -> torch.Tensor | None:
        """[num_elements] sum of all that is held, handed over or not; None: nothing is. A copy."""
        with self._lock:
            totals = [part.total for part in self._held if part is not None]
            return torch.stack(totals).sum(0) if totals else None

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
            in_doubt, handed_over, before = self._held
            if before is not None:
                total.add_(before.total)
            if not is_sound or not bool(torch.isfinite(total).all()):
                self._spare.append(total)
                return False
            if before is not None:
                microbatch = before.with_(microbatch, total)
                self._spare.append(before.total)
            self._held = in_doubt, handed_over, microbatch
        return True

    def hand_over(self) -> HandedOver:
        """The mean of what is accumulated, copied to the CPU; what was handed over before and not settled goes with it.

        Raises:
            ValueError: no samples yet.
        """
        with self._lock:
            in_doubt, earlier, later = self._held
            ours = self._together(earlier, later)
            self._held = in_doubt, ours, None
            if in_doubt is not None and ours is not None:
                return in_doubt.with_(ours, in_doubt.total + ours.total).mean()
            whole = in_doubt or ours
        if whole is None:
            raise ValueError("there is no gradient before the first microbatch")
        return whole.mean()

    def take_used(self) -> Used:
        """What of ours has gone into steps since this was last asked; samples of which something is held have not."""
        with self._lock:
            used, self._used = self._used, Used()
        return used

    def doubt(self, rounds: frozenset[str]) -> None:
        """What was handed over is accumulated as before, apart from what comes later: ``rounds`` may have used it."""
        with self._lock:
            in_doubt, handed_over, later = self._held
            if not rounds:
                self._held = in_doubt, None, self._together(handed_over, later)
                return
            self._doubts |= rounds
            self._held = self._together(in_doubt, handed_over), None, later

    def forget(self) -> None:
        """All of it is worthless: it belongs to a history that does not count any more."""
        with self._lock:
            self._held, self._doubts = (None, None, None), frozenset()

    def move_to(self, device: torch.device) -> None:
        """Keep what is held, and what comes, on another device."""
        with self._lock:
            self._device, self._spare = device, []
            in_doubt, handed_over, later = (
                None if part is None else replace(part, total=part.total.to(device)) for part in self._held
            )
            self._held = in_doubt, handed_over, later

    def drop(self) -> None:
        """What was handed over is worthless; what came later is not."""
        with self._lock:
            in_doubt, _, later = self._held
            self._held = in_doubt, None, later

    def settle(self, used: Spans, round_id: str = "") -> None:
        """What was handed over is in a step in the elements of ``used``, and accumulated as before elsewhere.

        Where ``round_id`` is in doubt, that is so of what is in doubt.
        """
        with self._lock:
            in_doubt, handed_over, later = self._held
            if round_id in self._doubts:
                ours, later = in_doubt, self._together(handed_over, later)
            else:
                ours = self._together(in_doubt, handed_over)
            self._doubts = frozenset()
            if round_id:
                self._settled.append(round_id)
            if ours is None:
                self._held = None, None, later
                return
            left = ours.without(used) if used else ours
            weight = ours.weights.average - left.weights.average
            rounds = (round_id,) if round_id and weight > 0 else ()
            if left.weights.largest > 0:
                self._used = self._used.with_(Used(weight=weight, rounds=rounds))
                self._held = None, None, self._together(left, later)
                return
            loss = ours.loss_sum / len(ours.sample_ids)
            self._used = self._used.with_(Used(ours.sample_ids, ours.sample_epochs, loss, weight, rounds))
            self._held = None, None, later
            self._spare = [ours.total]  # one is enough for the next microbatch

    def _together(self, earlier: GradientSum | None, later: GradientSum | None) -> GradientSum | None:
        """Both sums as one, in the total of the earlier; the later is whole."""
        if earlier is None or later is None:
            return earlier or later
        earlier.total.add_(later.total)
        self._spare.append(later.total)
        return earlier.with_(later, earlier.total)
