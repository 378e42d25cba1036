"""How long somebody who should say something may be silent: learned from the longest silences that ended."""

import math
from collections import deque
from collections.abc import Callable

REMEMBERED = 64
"""Gaps between two signs of life; with a few members and a sign each half second, some seconds."""
FACTOR = 3.0
"""Times the longest gap: a machine that paused for a second may pause for three."""
SHORTEST_S = 1.5
"""Three signs of life; shorter, and the pauses of a busy machine would count as deaths."""
LONGEST_S = 15.0
"""Whoever pauses for longer is better left out, and comes back in the next round."""


class Silence:
    """Of all members together, over many rounds."""

    def __init__(
        self,
        clock: Callable[[], float],
        first_s: float,
        *,
        shortest_s: float = SHORTEST_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        """
        Args:
            first_s: limit before enough is known.
            shortest_s: of any limit that is learned; so ``longest_s``.
        """
        self._clock, self._first_s, self._shortest_s, self._longest_s = clock, first_s, shortest_s, longest_s
        self._gaps: deque[float] = deque(maxlen=REMEMBERED)

    def ended(self, seconds: float) -> None:
        """Somebody was silent for so long, and is there. One that was over the limit raises it, but not by much."""
        self._gaps.append(min(seconds, self.limit_s()))

    def limit_s(self) -> float:
        """Whoever is silent for longer is gone."""
        if len(self._gaps) < REMEMBERED // 4:
            return self._first_s
        return min(max(FACTOR * max(self._gaps), self._shortest_s), self._longest_s)

    def watch(
        self,
        *,
        at_most_s: float = math.inf,
        other_sign_s: Callable[[], float] = lambda: -math.inf,
        queue_s: Callable[[], float] = lambda: 0.0,
    ) -> "Watch":
        """Of one peer, from now on; whatever it says, it counts as gone after ``at_most_s``.

        Args:
            other_sign_s: when anything else of it came last, by the same clock: what it says may stand behind that.
            queue_s: how much later than usual everything comes now; no more than the longest limit is believed.
        """
        return Watch(self._clock, self, at_most_s, other_sign_s, lambda: min(queue_s(), self._longest_s))


class Watch:
    """One peer's signs of life."""

    def __init__(
        self,
        clock: Callable[[], float],
        silence: Silence,
        at_most_s: float,
        other_sign_s: Callable[[], float],
        queue_s: Callable[[], float],
    ) -> None:
        self._clock, self._silence, self._heard_s = clock, silence, clock()
        self._other_sign_s, self._queue_s = other_sign_s, queue_s
        self._ends_s = self._heard_s + at_most_s

    def heard(self) -> None:
        """It has said something."""
        now_s = self._clock()
        self._silence.ended(now_s - self._heard_s)
        self._heard_s = now_s

    def excuse(self) -> None:
        """We did not listen: its silence counts from now on, and that until now measures nothing."""
        self._heard_s = self._clock()

    def silent_s(self) -> float:
        """Since its newest sign of life."""
        return self._clock() - max(self._heard_s, self._other_sign_s())

    def left_s(self, limit_s: float = math.inf) -> float:
        """Until it counts as gone; negative: it does.

        Args:
            limit_s: of its silence, where others know that it is gone; what we have learned holds if that is less.
        """
        sign_s = max(self._heard_s, self._other_sign_s())
        return min(sign_s + min(self._silence.limit_s(), limit_s) + self._queue_s(), self._ends_s) - self._clock()
