"""How long a leader waits for arrivals: learned from those it saw.

A median and a median absolute deviation are not moved by the few that are very late, whom they are to tell apart.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

REMEMBERED = 64
"""Arrivals; some rounds of a group."""
ENOUGH = 8
"""Arrivals from which a deadline is learned; before that the first one holds."""
SPREADS = 5.0
"""Median absolute deviations; of normal arrivals one in a thousand is later."""


FLOOR_S = 0.3
"""Shortest deadline: several round trips across the world, and more than timers and threads are late by."""


class Arrivals:
    """Durations of one kind: from the call to the arrival, or from the announced to the real arrival."""

    def __init__(self, first_s: float) -> None:
        """
        Args:
            first_s: deadline before enough is known.
        """
        self._seen: deque[float] = deque(maxlen=REMEMBERED)
        self._first_s = first_s

    def add(self, seconds: float) -> None:
        """Take one arrival; one that was earlier than announced was in time."""
        self._seen.append(max(seconds, 0.0))

    def deadline_s(self, announced: Iterable[float] = ()) -> float:
        """Beyond this nobody has usually come.

        Args:
            announced: durations that are not arrivals yet, but as good as.
        """
        seen = [*self._seen, *announced]
        return max(outlier(seen), FLOOR_S) if len(seen) >= ENOUGH else self._first_s


def outlier(durations: Sequence[float]) -> float:
    """Median + ``SPREADS`` x median absolute deviation."""
    middle = statistics.median(durations)
    return middle + SPREADS * statistics.median(abs(duration - middle) for duration in durations)
