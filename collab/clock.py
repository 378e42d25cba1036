"""The real clock: the machine's as it was at the start, carried on by what has passed since, and corrected."""

import asyncio
import time
from collections.abc import Callable


def elapsed_s() -> float:
    """Seconds since some moment, that of the machine's sleep among them; setting the machine's clock changes nothing.

    ``time.monotonic`` stands still while Linux and macOS sleep; each has another clock that does not.
    """
    going_on: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return time.monotonic() if going_on is None else time.clock_gettime(going_on)


class SystemClock:
    """Implements ``Clock``. A machine whose clock is off by minutes, or set meanwhile, still agrees with the swarm."""

    def __init__(
        self,
        *,
        error_s: float = 0.0,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = elapsed_s,
    ) -> None:
        """
        Args:
            error_s: added to what the machine says; for tests of a wrong clock.
            wall: seconds since the Unix epoch, as the machine's owner or NTP sets them; read once for swarm time.
            elapsed: see ``elapsed_s``.
        """
        self._wall, self._elapsed = wall, elapsed
        self._apart_s = wall() - elapsed()
        self._offset_s = error_s

    def now(self) -> float:
        return self._apart_s + self._elapsed() + self._offset_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_moved_s(self) -> float:
        """How far the machine's clock was set since the start; positive when forward."""
        return self._wall() - self._elapsed() - self._apart_s

    def correct(self, offset_s: float) -> None:
        """Move swarm time by ``offset_s``; positive when this machine is behind."""
        self._offset_s += offset_s
