"""How long trainers of different speeds take for a batch, whole microbatches at a time, and how long they wait then."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from collab.averaging.deadlines import ENOUGH, FLOOR_S, REMEMBERED, outlier
from collab.averaging.forecast import Pace, batch_due_s

STEPS, SETTLED = 16, 4
"""That are played, and that do not count: all begin at once, and know nothing of each other."""
CROWD = 64
"""Trainers from which nobody waits for a batch that is nearly there: one more microbatch is nothing then."""
NEAR = 4
"""Microbatches of everybody, from which on a batch is played; until then all just compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Means over some steps."""

    batch_s: float
    """Until the swarm has its samples."""
    gather_s: float
    """From then on until everybody for whom the round waits has ended its microbatch."""
    samples: float
    """That go into a step."""
    busy_s: float
    """Seconds in which each trainer computed, mean over the trainers."""


@dataclass(slots=True)
class _Trainer:
    microbatch_s: float
    held: int = 0
    """Samples that it has reported."""
    ends_s: float = math.inf
    """When its microbatch is over; infinite: it waits."""


class _Play:
    """Some steps, microbatch by microbatch, by the rules of ``batch_watch`` and ``group``."""

    def __init__(self, microbatch_s: Sequence[float], microbatch: int, target: float, round_s: float) -> None:
        self._trainers = [_Trainer(seconds) for seconds in microbatch_s]
        self._microbatch, self._target, self._round_s = microbatch, target, round_s
        self._ends: list[tuple[float, int]] = []
        self._residuals: deque[float] = deque(maxlen=REMEMBERED)
        self.busy_s = 0.0
        for index in range(len(self._trainers)):
            self._begin(index, 0.0)

    def _begin(self, index: int, now_s: float) -> None:
        trainer = self._trainers[index]
        trainer.ends_s = now_s + trainer.microbatch_s
        self.busy_s += trainer.microbatch_s
        heapq.heappush(self._ends, (trainer.ends_s, index))

    def batch(self) -> float:
        """When the swarm has its samples."""
        self._compute_on()
        while True:
            now_s, index = heapq.heappop(self._ends)
            trainer = self._trainers[index]
            trainer.held, trainer.ends_s = trainer.held + self._microbatch, math.inf
            missing = self._target - sum(other.held for other in self._trainers)
            if missing <= 0:
                return now_s
            if not self._ends or self._due_s(index, now_s, missing) > trainer.microbatch_s / 2:
                self._begin(index, now_s)

    def _compute_on(self) -> None:
        """To where the batch is near: nothing is decided before."""
        speed = sum(self._microbatch / trainer.microbatch_s for trainer in self._trainers)
        held = sum(trainer.held for trainer in self._trainers)
        far_s = (self._target - held - NEAR * len(self._trainers) * self._microbatch) / speed
        if far_s <= 0:
            return
        for trainer in self._trainers:
            count = math.floor(far_s / trainer.microbatch_s)
            trainer.held += count * self._microbatch
            trainer.ends_s += count * trainer.microbatch_s
            self.busy_s += count * trainer.microbatch_s
        self._ends = [(trainer.ends_s, index) for index, trainer in enumerate(self._trainers)]
        heapq.heapify(self._ends)

    def _due_s(self, index: int, now_s: float, missing: float) -> float:
        if len(self._trainers) > CROWD or missing > 2 * len(self._trainers) * self._microbatch:
            return math.inf
        paces = [self._pace(trainer, now_s) for trainer in self._trainers]
        others = [pace for number, pace in enumerate(paces) if number != index]
        return batch_due_s(others, paces[index], target=self._target, max_share=1.0)

    def _pace(self, trainer: _Trainer, now_s: float) -> Pace:
        computing_s = max(trainer.microbatch_s - (trainer.ends_s - now_s), 0.0) if trainer.ends_s < math.inf else 0.0
        speed = self._microbatch / trainer.microbatch_s
        return Pace(samples=trainer.held, samples_per_s=speed, microbatch_s=trainer.microbatch_s, age_s=computing_s)

    def round(self, called_s: float) -> tuple[float, int]:
        """Until whoever is waited for has come, and with how many samples; then everybody goes on after the round."""
        left_s = {i: t.ends_s - called_s for i, t in enumerate(self._trainers) if t.ends_s < math.inf}
        self._residuals.extend(left_s.get(index, 0.0) for index in range(len(self._trainers)))
        limit_s = max(outlier(self._residuals), FLOOR_S) if len(self._residuals) >= ENOUGH else math.inf
        gather_s = max((seconds for seconds in left_s.values() if seconds <= limit_s), default=0.0)
        over_s, samples, ends = called_s + gather_s + self._round_s, 0, []
        for index, trainer in enumerate(self._trainers):
            if left_s.get(index, 0.0) <= limit_s:  # it has ended its microbatch, and waits for the round
                samples += trainer.held + (self._microbatch if index in left_s else 0)
                trainer.held = 0
                self._begin(index, over_s)
            else:
                samples, trainer.held = samples + trainer.held, 0
                trainer.ends_s = max(trainer.ends_s, over_s)
            ends.append((trainer.ends_s, index))
        self._ends = ends
        heapq.heapify(self._ends)
        return gather_s, samples


def synchronous(speeds: Sequence[float], *, microbatch: int, target: float, round_s: float) -> Pacing:
    """Steps of trainers that wait for each round.

    Args:
        speeds: samples per second of each trainer, > 0.
        round_s: from everybody's arrival to everybody's step.
    """
    play = _Play([microbatch / speed for speed in speeds], microbatch, target, round_s)
    batches, gathers, samples, began_s, busy_s = 0.0, 0.0, 0, 0.0, 0.0
    for step in range(STEPS):
        if step == SETTLED:
            batches, gathers, samples, busy_s = 0.0, 0.0, 0, play.busy_s
        called_s = play.batch()
        gather_s, count = play.round(called_s)
        batches += called_s - began_s
        gathers += gather_s
        samples += count
        began_s = called_s + gather_s + round_s
    counted = STEPS - SETTLED
    return Pacing(
        batch_s=batches / counted,
        gather_s=gathers / counted,
        samples=samples / counted,
        busy_s=(play.busy_s - busy_s) / counted / len(speeds),
    )
