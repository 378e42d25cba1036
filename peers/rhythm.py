"""How long steps take, as they come: with their rounds, of which nobody's speed says anything."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from collab.metrics.records import EpochFinished, Event, RoundEnded, SwarmReport

KNOWN_STEPS = 20
"""The last ones, that tell how long a step takes: what it took with fewer trainers is soon forgotten."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Of a swarm's last steps."""

    step_s: float = 0.0
    """That one took; 0: nobody knows yet."""
    last_s: float = -math.inf
    """When the last one was taken, swarm time; minus infinity: none was seen."""


def between_steps_s(taken: Iterable[tuple[int, float]]) -> float:
    """Seconds from one step to the next: the median, since one may have waited a night; infinite: nobody knows.

    Args:
        taken: epochs, and when they were reached, the oldest first. Of two between which some are missing nothing is
            known.
    """
    waits = [max(then - before, 0.0) for (epoch, before), (later, then) in pairwise(taken) if later == epoch + 1]
    return statistics.median(waits) if waits else math.inf


class RhythmKeeper:
    """Of one peer. Implements ``Sink``."""

    def __init__(self) -> None:
        self._taken: tuple[tuple[int, float], ...] = ()
        """Never changed in place: a panel is drawn by another thread."""
        self._epoch = -1
        """Of the last report; -1: none has come yet."""
        self._round_s, self._last_s = 0.0, -math.inf

    @property
    def rhythm(self) -> Rhythm:
        """As of now; until two steps in a row were seen a step takes as long as the last round at least."""
        between_s = between_steps_s(self._taken)
        return Rhythm(between_s if math.isfinite(between_s) else self._round_s, self._last_s)

    def observe(self, event: Event) -> None:
        if isinstance(event, EpochFinished):
            self._last_s = event.at_s
            if event.seconds > 0:  # else others took it, and nobody knows when
                self._note(event.epoch, event.at_s)
        elif isinstance(event, SwarmReport):
            self._last_s = event.at_s if event.epoch else self._last_s
            if 0 <= self._epoch < event.epoch:  # the first report tells of a step that was taken before we came
                self._note(event.epoch, event.at_s)
            self._epoch = event.epoch
        elif isinstance(event, RoundEnded) and event.committed and math.isfinite(event.seconds):
            self._round_s = event.seconds

    def _note(self, epoch: int, at_s: float) -> None:
        goes_on = not self._taken or epoch > self._taken[-1][0]  # else the organiser has gone back
        self._taken = (*(self._taken if goes_on else ()), (epoch, at_s))[-KNOWN_STEPS:]
