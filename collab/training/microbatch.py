"""How many samples one forward and backward takes on this machine, found by doing it."""

from statistics import median

TRIED = 3
"""Microbatches of one size that are timed, after one that is not: the first of each shape is slow."""
GAIN = 1.1
"""More samples a second that twice the size must bring; less is noise, and a longer wait for whoever wants us."""
LONGEST_S = 0.5
"""Of a microbatch that is still doubled: rounds, and an owner who wants the machine back, wait for its end."""
SHARE = 8
"""Of a batch that one microbatch is at most: others compute, too, and nobody should overshoot by much."""


class MicrobatchSize:
    """As many as bring more samples a second and fit into the memory. Pure."""

    def __init__(self, first: int, *, most: int, grows: bool) -> None:
        """
        Args:
            most: never more than this, unless ``first`` is.
            grows: whether larger ones are tried; never on a processor, where they bring nothing.
        """
        self.size = first
        self._most, self._grows = most, grows
        self._best: tuple[int, float] | None = None
        """Size, and samples a second."""
        self._seconds: list[float] = []

    def note(self, samples: int, seconds: float) -> None:
        """A microbatch has taken so long; smaller ones, where a piece of work ends, tell nothing."""
        if not self._grows or samples != self.size:
            return
        self._seconds.append(seconds)
        if len(self._seconds) <= TRIED:
            return
        usual_s = max(median(self._seconds[1:]), 1e-9)
        self._seconds = []
        rate = self.size / usual_s
        if self._best is not None and rate < GAIN * self._best[1]:
            self.size, self._grows = self._best[0], False
            return
        self._best = self.size, rate
        if 2 * self.size > self._most or 2 * usual_s > LONGEST_S:
            self._grows = False
            return
        self.size *= 2

    def too_large(self, samples: int) -> bool:
        """So many did not fit; whether fewer may."""
        self._grows, self._seconds = False, []
        self.size = max(min(self.size, samples // 2), 1)
        return samples > 1
