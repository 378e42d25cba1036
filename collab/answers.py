"""How long answers took of late, and how long the next one is waited for."""

from collections import deque
from collections.abc import Callable

SLOT_S = 2.0
"""Answers that come close together see the same queue, so the slowest of them stands for all."""
SLOTS = 16
"""Remembered: half a minute in which something was asked, some rounds."""
ENOUGH = 8
"""Answers from which limits are learned."""
FACTOR = 3.0
"""Times the slowest answer: a queue that doubles, and a machine that pauses."""


class Answers:
    """How long answers took of late, the slowest of each slot."""

    def __init__(self, clock: Callable[[], float], *, shortest_s: float, longest_s: float) -> None:
        """
        Args:
            clock: monotonic seconds.
            shortest_s: of any limit that is learned; so ``longest_s``.
        """
        self._clock, self._shortest_s, self._longest_s = clock, shortest_s, longest_s
        self._slots: deque[tuple[float, float]] = deque(maxlen=SLOTS)
        self._num_seen = 0

    def add(self, seconds: float) -> None:
        """One more answer has come."""
        now_s = self._clock()
        self._num_seen += 1
        if not self._slots or now_s - self._slots[-1][0] >= SLOT_S:
            self._slots.append((now_s, seconds))
        elif seconds > self._slots[-1][1]:
            self._slots[-1] = (self._slots[-1][0], seconds)

    @property
    def slowest_s(self) -> float | None:
        """None before enough have come."""
        return max(seconds for _, seconds in self._slots) if self._num_seen >= ENOUGH else None

    def limit_s(self, first_s: float) -> float:
        """Of the next one; ``first_s`` before enough have come."""
        slowest_s = self.slowest_s
        return first_s if slowest_s is None else min(max(FACTOR * slowest_s, self._shortest_s), self._longest_s)
