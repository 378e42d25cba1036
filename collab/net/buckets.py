"""How often something may be done: so many times at once, and so many times a second."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """So many at once, after a pause, and so many a second for ever."""

    burst: int
    per_s: float


class Bucket:
    """So many at once, and so many a second."""

    __slots__ = ("_at_s", "_left", "_pace")

    def __init__(self, pace: Pace, now_s: float) -> None:
        self._pace, self._left, self._at_s = pace, float(pace.burst), now_s

    def take(self, now_s: float) -> bool:
        """One more; False: it is one too many, and is not counted."""
        self._left = min(self._left + (now_s - self._at_s) * self._pace.per_s, self._pace.burst)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def wait_s(self, now_s: float) -> float:
        """Until one more is not too many."""
        left = min(self._left + (now_s - self._at_s) * self._pace.per_s, self._pace.burst)
        return max(1.0 - left, 0.0) / self._pace.per_s
