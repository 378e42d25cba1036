"""The real clock: the machine's, corrected by the offset to the swarm that was measured at joining."""

import asyncio
import time


class SystemClock:
    """Implements ``Clock``. A machine whose clock is off by minutes still agrees with the swarm on expiries."""

    def __init__(self, *, error_s: float = 0.0) -> None:
        """
        Args:
            error_s: added to what the machine says; for tests of a wrong clock.
        """
        self._error_s = error_s
        self._offset_s = 0.0

    def now(self) -> float:
        return time.time() + self._error_s + self._offset_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def correct(self, offset_s: float) -> None:
        """Move swarm time by ``offset_s``; positive when this machine is behind."""
        self._offset_s += offset_s
