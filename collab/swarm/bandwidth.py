"""What the own link carries, measured from the transfers that happen anyway.

A rate counts only while the link was full, which the queue in front of it tells: messages that wait longer than the
quickest of their path did are queueing somewhere, and if they do so on all paths at once, then at our own link. An
idle link is not a slow one. Source of the delay signal: LEDBAT (RFC 6817); clocks need not agree, since only changes
of a delay matter.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

QUEUEING_S = 0.015
"""A message that waits longer than this stands in a queue; below it is the jitter of timers and busy machines."""
CROWDED_S = 0.25
"""The same for what is left when the sender's own queue is taken off, which it knows only roughly."""
RECENT_S = 2.0
"""A path whose last news is older says nothing about now."""
LONGEST_LIFE_S = 0.01
"""A leader asks for the longest queue once for each member at a time."""
BASE_SLOT_S = 10.0
BASE_SLOTS = 6
"""The quickest delay of a path is forgotten after a minute: routes and clocks change."""
FORGOTTEN_S = 600.0
"""A path on which nothing came for so long is forgotten: peers come and go, and all that are known are looked through
for each part."""
SHORTEST_S, SMALLEST_BYTES = 0.25, 1 << 20
"""A period with less activity measures round trips and bursts, unless the link was full for long."""
LONG_S = 2.0
"""As long as many of them."""
MOSTLY = 0.5
"""Of the time: a link that had enough to carry for so long was full; timers and bunched news hide the rest."""
KEPT_PERIODS = 4
"""Newest periods, about a round each, that the estimate is made of: enough to even out noise."""
CHANGE = 1.25
"""A link that differs by so much from before is another one; so is one that once carried so much more."""


class PathDelay:
    """How long messages of one path wait in queues: their delay beyond the smallest of the last minute."""

    def __init__(self) -> None:
        self._minima: deque[tuple[float, float]] = deque(maxlen=BASE_SLOTS)
        self.queue_s = 0.0
        self.passing_s = 0.0
        """What the newest message itself took to pass our link, which is in ``queue_s`` and is no queue."""
        self.whole_s = 0.0
        """``queue_s`` with what stood in front of the other end's uplink."""
        self.heard_s = float("-inf")

    @property
    def standing_s(self) -> float:
        """How long the newest message stood in queues before it moved."""
        return max(self.queue_s - self.passing_s, 0.0)

    def add(self, now_s: float, delay_s: float, passing_s: float = 0.0) -> None:
        """Take the delay of one message: its arrival by one clock minus its departure by another.

        Args:
            passing_s: what of it is only the message's own length.
        """
        if not self._minima or now_s - self._minima[-1][0] >= BASE_SLOT_S:
            self._minima.append((now_s, delay_s))
        elif delay_s < self._minima[-1][1]:
            self._minima[-1] = (self._minima[-1][0], delay_s)
        self.queue_s = delay_s - min(smallest for _, smallest in self._minima)
        self.passing_s = passing_s
        self.heard_s = now_s


def shared_queue_s(paths: Iterable[PathDelay], now_s: float) -> float | None:
    """What all paths lately heard of have in common: the queue at our own end. None when fewer than two were heard."""
    heard, least_s = 0, math.inf
    for path in paths:
        if now_s - path.heard_s <= RECENT_S:
            heard, least_s = heard + 1, min(least_s, path.standing_s)
            if heard > 1 and not least_s:
                break  # less it cannot be: a reducer has a path to each of a thousand, and asks at each of their words
    return least_s if heard > 1 else None


@dataclass(frozen=True, slots=True)
class Rate:
    """What one direction of a link carries."""

    bytes_per_s: float
    is_limit: bool
    """Whether the link was full at this rate; if not, it carries at least so much."""


@dataclass(frozen=True, slots=True)
class _Period:
    """The part of a busy time in which most bytes a second arrived, from its beginning on."""

    seconds: float
    num_bytes: int
    was_full: bool

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds


class RateMeter:
    """One direction of the own link.

    All that arrives in a busy time set out in it, so bytes over the time since its beginning never exceed what the link
    carries, however messages and acknowledgements bunch up; and at the moment at which the link has nothing more to do,
    they are what it carries.
    """

    def __init__(self) -> None:
        self._full: deque[_Period] = deque(maxlen=KEPT_PERIODS)
        self._any: deque[_Period] = deque(maxlen=KEPT_PERIODS)
        self._best: _Period | None = None
        self._began_s: float | None = None
        self._last_s = self._full_s = 0.0
        self._bytes = 0
        self._was_full = False

    @property
    def is_busy(self) -> bool:
        """Between ``resume`` and ``pause``."""
        return self._began_s is not None

    def resume(self, now_s: float) -> None:
        """Something sets out after a pause."""
        self._began_s = self._last_s = now_s
        self._bytes, self._full_s, self._was_full, self._best = 0, 0.0, True, None

    def add(self, now_s: float, num_bytes: int, *, is_full: bool) -> None:
        """Take note that ``num_bytes`` have just arrived at the other end, or here.

        Args:
            is_full: whether the link, as far as known, has as much to carry as it can.
        """
        if self._began_s is None:
            return
        self._bytes += num_bytes
        if is_full and self._was_full:
            self._full_s += now_s - self._last_s
        self._last_s, self._was_full = now_s, is_full
        elapsed_s = now_s - self._began_s
        was_full = self._full_s >= MOSTLY * elapsed_s
        if elapsed_s < SHORTEST_S or (self._bytes < SMALLEST_BYTES and not (was_full and elapsed_s >= LONG_S)):
            return
        if self._best is None or self._bytes / elapsed_s > self._best.bytes_per_s:
            self._best = _Period(elapsed_s, self._bytes, was_full)

    def pause(self) -> None:
        """Nothing is under way: the time until more comes measures nothing."""
        best, self._best, self._began_s = self._best, None, None
        if best is not None:
            self._keep(best)

    def believe(self, rate: Rate, seconds: float) -> None:
        """Take a rate that was measured for so long by a probe, in place of what was seen so far."""
        self._full.clear()
        self._any.clear()
        self._keep(_Period(seconds, round(rate.bytes_per_s * seconds), rate.is_limit))

    def _keep(self, best: _Period) -> None:
        if best.was_full:
            if self._full and not 1 / CHANGE < best.bytes_per_s / _mean(self._full) < CHANGE:
                self._full.clear()
            self._full.append(best)
            if best.bytes_per_s * CHANGE < max((period.bytes_per_s for period in self._any), default=0.0):
                self._any.clear()  # what the link once carried it does not any more
        self._any.append(best)

    def rate(self) -> Rate | None:
        """The mean over the busy times in which the link was full, unless it has carried more; None: unknown."""
        best = max((period.bytes_per_s for period in self._any), default=0.0)
        if self._full and _mean(self._full) * CHANGE >= best:
            return Rate(_mean(self._full), is_limit=True)
        return Rate(best, is_limit=False) if best else None


def limited(rate: Rate | None, max_bytes_per_s: float | None) -> Rate | None:
    """``rate``, but no more than the owner of the link allows; None: no limit."""
    if max_bytes_per_s is None or (rate is not None and rate.is_limit and rate.bytes_per_s <= max_bytes_per_s):
        return rate
    seen = rate.bytes_per_s if rate is not None else max_bytes_per_s
    return Rate(min(seen, max_bytes_per_s), is_limit=rate is not None and seen * CHANGE >= max_bytes_per_s)


def _mean(periods: Iterable[_Period]) -> float:
    """Bytes/s."""
    periods = list(periods)
    return sum(period.num_bytes for period in periods) / sum(period.seconds for period in periods)


class Downlink:
    """What comes in, from whomever."""

    def __init__(self, clock: Callable[[], float], *, max_bytes_per_s: float | None = None) -> None:
        """
        Args:
            clock: monotonic seconds, of the running event loop.
            max_bytes_per_s: what the owner of the machine allows; None: all that the link gives.
        """
        self._clock, self._max_rate = clock, max_bytes_per_s
        self._paths: dict[str, PathDelay] = {}
        self._meter = RateMeter()
        self._under_way = 0
        self._longest_s, self._longest_at_s = 0.0, -math.inf

    def begin(self) -> None:
        """An exchange begins that brings bytes in."""
        if not self._under_way:
            self._meter.resume(self._clock())
        self._under_way += 1

    def end(self) -> None:
        """An exchange is over."""
        self._under_way -= 1
        if not self._under_way:
            self._meter.pause()

    @property
    def is_under_way(self) -> bool:
        """Whether an exchange is, as a round."""
        return self._under_way > 0

    def arrived(self, source: str, num_bytes: int, delay_s: float, sender_queue_s: float) -> None:
        """``num_bytes`` came from ``source``.

        Args:
            delay_s: arrival by our clock minus departure by the source's.
            sender_queue_s: how long they stood in front of the source's own uplink, as it believes.
        """
        now_s = self._clock()
        path = self._paths.get(source)
        if path is None:
            self._paths = {peer: one for peer, one in self._paths.items() if now_s - one.heard_s < FORGOTTEN_S}
            path = self._paths[source] = PathDelay()
        path.add(now_s, delay_s)
        path.whole_s = path.queue_s
        path.queue_s = max(path.queue_s - sender_queue_s, 0.0)  # what is left stood in front of our downlink
        queue_s = shared_queue_s(self._paths.values(), now_s)
        self._meter.add(now_s, num_bytes, is_full=queue_s is not None and queue_s >= CROWDED_S)

    def longest_queue_s(self) -> float:
        """How long the newest message of a path stood in queues on its way to us, of the slowest path of late."""
        now_s = self._clock()
        if now_s - self._longest_at_s >= LONGEST_LIFE_S:
            recent = (path.whole_s for path in self._paths.values() if now_s - path.heard_s <= RECENT_S)
            self._longest_at_s, self._longest_s = now_s, max(recent, default=0.0)
        return self._longest_s

    def believe(self, rate: Rate, seconds: float) -> None:
        """As ``RateMeter.believe``."""
        self._meter.believe(rate, seconds)

    def rate(self) -> Rate | None:
        """What the link brings, as far as seen; never more than the owner allows."""
        return limited(self._meter.rate(), self._max_rate)
