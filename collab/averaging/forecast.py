"""When a batch will be there, from how far each trainer was when it last spoke and how often it speaks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FAR_S = 3600.0
"""Nobody waits for what is so far off, and nobody looks so far ahead."""
HORIZON = 2.0
"""Microbatches of the asker: it decides after one of them."""
HALVINGS = 12
"""Of the horizon: a two-thousandth of a microbatch is exact enough."""
OVERDUE = 2.0
"""Microbatches after which a trainer that says nothing more has stopped."""
UNITS = 1 << 20
"""Of a sample, of one a second, and of a second: whole numbers, whose sums a liar's 2^53 leaves exact when it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One trainer, as its last word shows it."""

    samples: float
    samples_per_s: float
    microbatch_s: float
    """How often it speaks while it computes; 0: not known yet."""
    age_s: float
    """Of that word."""

    @property
    def has_stopped(self) -> bool:
        """Or has said nothing of its speed, or that it computes no more."""
        return not self.samples_per_s or self.age_s >= OVERDUE * self.microbatch_s


class Together:
    """Trainers at one point of history, added up as they speak: no look at each is needed while a batch is far off."""

    def __init__(self) -> None:
        self.trainers = 0
        self._samples = self._speed = self._speed_by_time = 0

    def add(self, samples: float, samples_per_s: float, spoke_s: float, *, trainers: int = 1) -> None:
        """A trainer has spoken; ``trainers=-1``: what it said does not count any more."""
        speed = math.ceil(samples_per_s * UNITS)
        self.trainers += trainers
        self._samples += trainers * math.ceil(samples * UNITS)
        self._speed += trainers * speed
        self._speed_by_time += trainers * speed * math.floor(spoke_s * UNITS)

    def most(self, until_s: float) -> float:
        """Samples that they can have reported by then, at most: if nobody stopped, and each were told of at once."""
        computed = self._speed * math.ceil(until_s * UNITS) - self._speed_by_time
        return (self._samples * UNITS + computed) / UNITS**2


def batch_due_s(others: Sequence[Pace], asker: Pace, *, target: float, max_share: float) -> float:
    """Seconds until ``target`` samples are reported, if the others compute on and ``asker`` ends its microbatch.

    Samples are reported a microbatch at a time: trainers in step have nearly all of their last ones in hand when the
    first of them reports its own. What was said, carried on at everybody's speed, is late by that. Who computes
    counts as a trainer before it has anything to report: a few that were first are not believed to be all.

    Args:
        max_share: see ``believed``: at that moment nobody has more of the batch than this.

    Returns:
        In [0, ``FAR_S``]; ``FAR_S`` when it is more than ``HORIZON`` microbatches of the asker off, or not known.
    """
    paces = [*others, asker]
    samples, speed, every_s, age_s = np.array([(p.samples, p.samples_per_s, p.microbatch_s, p.age_s) for p in paces]).T
    most = np.array([0.0 if pace.has_stopped else math.inf for pace in others] + [float(asker.microbatch_s > 0)])
    every_s = np.where(most > 0, every_s, 1.0)
    cap = max_share * target if np.count_nonzero(samples + most * speed) * max_share >= 1 else math.inf

    def has_batch(after_s: float) -> bool:
        microbatches = np.minimum(np.floor((after_s + age_s) / every_s), most)
        return bool(np.minimum(samples + microbatches * speed * every_s, cap).sum() >= target)

    low, high = 0.0, min(HORIZON * asker.microbatch_s, FAR_S)
    if not has_batch(high):
        return FAR_S
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if has_batch(middle) else (middle, high)
    return high
