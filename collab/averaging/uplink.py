"""Which part leaves next: the own link is kept full, and nothing waits long in front of it.

Bytes that are sent and not acknowledged stand in queues that everything else of this peer has to pass, heartbeats
included; streams themselves take more than a megabyte before they say stop, so they cannot be asked. So parts leave at
the pace at which the link delivers: faster while nothing queues, slower while much does. What is under way in front of
all links together is limited generously, since acknowledgements wait behind other peers' parts.

Sources: delivery rate as in BBR (Cardwell et al., 2016), queue from one-way delays as in LEDBAT (RFC 6817).
"""

import asyncio
import heapq
import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from collab.swarm.bandwidth import FORGOTTEN_S, QUEUEING_S, PathDelay, Rate, RateMeter, limited, shared_queue_s
from collab.types import PeerId

TARGET_S = 0.12
"""Queue in front of the own link beyond which the pace slows down."""
CROWDED_S = 0.75
"""Queue at the other end of a path beyond which no more is sent there; many senders fill it without knowing of each
other, and a shorter one would run empty between them."""
UNDER_WAY_S = 0.6
"""What may be under way beyond a round trip, at the pace."""
BACKGROUND = math.inf
"""The order of what leaves only when nothing else wants to; parts of rounds have orders from 0 to 1."""
BACKGROUND_UNDER_WAY_S = 0.1
"""As ``UNDER_WAY_S``, for that: a round that begins finds no more than this before it."""
FIRST_WINDOW_BYTES = 384 << 10
"""The same before a pace is known: 0.3 s of a 10 Mbit/s link. It grows while nothing queues."""
LARGEST_WINDOW_BYTES = 32 << 20
SMALLEST_PARTS = 2
"""Under way at least, whatever the delays: one that leaves and one that arrives."""
SAMPLE_S = 0.25
"""A delivery rate is taken over so much time: longer than the bursts of late timers and collected acknowledgements."""
SAMPLES_A_PACE = 4
REMEMBERED_SAMPLES = 12
"""Three seconds of a full link: what it no longer gives is forgotten after that."""
FAST_GAIN, STEADY_GAIN, SLOW_GAIN = 1.5, 1.1, 0.8
"""Of the delivery rate: while nothing queues, up to the queue aimed at, and beyond."""
BURST_S = 0.02
"""So far ahead of the pace a part may leave: timers are late by some milliseconds."""
TICK_S = 0.0005
"""Timers that are set for less would be late anyway."""


class DeliveryRate:
    """Best rate at which parts were delivered lately."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=REMEMBERED_SAMPLES)
        self._began_s: float | None = None
        self._last_s = self._queued_s = 0.0
        self._bytes = 0
        self.bytes_per_s: float | None = None
        """None before the first sample."""

    def add(self, now_s: float, num_bytes: int, queue_s: float) -> None:
        """``num_bytes`` were acknowledged, the last of which stood ``queue_s`` in a queue."""
        if self._began_s is None:
            self._began_s = self._last_s = now_s  # when these bytes set out is not known
            return
        self._bytes += num_bytes
        self._queued_s += queue_s * (now_s - self._last_s)
        self._last_s = now_s
        elapsed_s = now_s - self._began_s
        if elapsed_s < SAMPLE_S:
            return
        rate = self._bytes / elapsed_s
        if self._queued_s >= QUEUEING_S * elapsed_s or rate > (self.bytes_per_s or 0.0):
            self._samples.append(rate)  # else it was low because there was little to send
            self.bytes_per_s = _best_mean(list(self._samples))
        self._began_s, self._bytes, self._queued_s = now_s, 0, 0.0

    def pause(self) -> None:
        """Nothing is under way: the time until more comes measures nothing."""
        self._began_s, self._bytes, self._queued_s = None, 0, 0.0


@dataclass(slots=True, eq=False)
class Path:
    """One destination."""

    delay: PathDelay = field(default_factory=PathDelay)
    delivery: DeliveryRate = field(default_factory=DeliveryRate)
    trip_s: float = math.inf
    """Shortest time from a part's departure to its acknowledgement."""
    under_way_bytes: int = 0
    part_bytes: int = 0
    """Of the newest part."""
    asked_s: float = -math.inf
    """When somebody wanted to send on it last."""

    def is_crowded(self, num_bytes: int, own_queue_s: float) -> bool:
        """Whether ``num_bytes`` more would only lengthen the queue at the other end."""
        rate = self.delivery.bytes_per_s
        if not self.under_way_bytes or rate is None or self.delay.queue_s - own_queue_s <= CROWDED_S:
            return False
        return self.under_way_bytes + num_bytes > rate * (self.trip_s + CROWDED_S)


@dataclass(slots=True, order=True)
class _Request:
    order: float
    number: int
    path: Path = field(compare=False)
    num_bytes: int = field(compare=False)
    is_probe: bool = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)


class Uplink:
    """Lets parts out in their order, at the pace of the link. One for all streams of a peer."""

    def __init__(self, clock: Callable[[], float], *, max_bytes_per_s: float | None = None) -> None:
        """
        Args:
            clock: monotonic seconds, of the running event loop.
            max_bytes_per_s: what the owner of the machine allows; None: all that the link gives.
        """
        self._clock, self._max_rate = clock, max_bytes_per_s
        self._meter = RateMeter()
        self._delivery = DeliveryRate()
        self._paths: dict[PeerId, Path] = {}
        self._waiting: list[_Request] = []
        self._numbers = itertools.count()
        self._first_bytes = FIRST_WINDOW_BYTES
        self._trip_s = math.inf
        self._under_way_bytes = 0
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def path(self, peer: PeerId) -> Path:
        """What is known of the way to ``peer``."""
        now_s, path = self._clock(), self._paths.get(peer)
        if path is None:
            self._paths = {
                other: one
                for other, one in self._paths.items()
                if one.under_way_bytes or now_s - max(one.asked_s, one.delay.heard_s) < FORGOTTEN_S
            }
            path = self._paths[peer] = Path()
        path.asked_s = now_s
        return path

    def farthest_s(self) -> float:
        """Round trip of a part on the longest path that is known; 0: none is."""
        trips = [path.trip_s for path in self._paths.values() if math.isfinite(path.trip_s)]
        return max(trips, default=0.0)

    def rate(self) -> Rate | None:
        """What the link carries, as far as seen; never more than the owner allows."""
        return limited(self._meter.rate(), self._max_rate)

    def believe(self, rate: Rate, seconds: float) -> None:
        """As ``RateMeter.believe``."""
        self._meter.believe(rate, seconds)

    def queue_s(self, path: Path) -> float:
        """How long parts stand in front of the own link, as all paths together show."""
        shared_s = self._shared_queue_s()
        return path.delay.standing_s if shared_s is None else shared_s  # the only path: whichever end is full

    def _shared_queue_s(self) -> float | None:
        return shared_queue_s((path.delay for path in self._paths.values()), self._clock())

    async def admit(self, path: Path, order: float, num_bytes: int, *, is_probe: bool = False) -> None:
        """Wait until a part of ``num_bytes`` may leave; small ``order`` first.

        Every admitted byte is acknowledged or given up later.

        Args:
            is_probe: it leaves when nothing else may, at no pace: what we know of the link is not to limit a probe.
        """
        if not self._waiting and not self._is_early() and self._has_room(path, order, num_bytes, self.queue_s(path)):
            self._take(path, num_bytes, is_probe)
            return
        admitted = asyncio.get_running_loop().create_future()
        request = _Request(order, next(self._numbers), path, num_bytes, is_probe, admitted)
        heapq.heappush(self._waiting, request)
        self._let_out()
        try:
            await request.admitted
        except asyncio.CancelledError:
            if request.admitted.done() and not request.admitted.cancelled():
                self.give_up(path, num_bytes)
            else:
                self._waiting.remove(request)
                heapq.heapify(self._waiting)
            raise

    def acknowledge(self, path: Path, num_bytes: int, delay_s: float, trip_s: float, *, is_probe: bool = False) -> None:
        """The receiver has ``num_bytes`` more.

        Args:
            num_bytes: 0 answers a message without a payload, which only shows the delay of an empty path.
            delay_s: of the newest of them on the way there, by two clocks.
            trip_s: from their departure to this acknowledgement.
            is_probe: whose they are; the other end of a probe is often narrower than our own link.
        """
        now_s = self._clock()
        rate = self._delivery.bytes_per_s
        path.delay.add(now_s, delay_s, path.part_bytes / rate if rate and num_bytes else 0.0)
        path.trip_s, self._trip_s = min(path.trip_s, trip_s), min(self._trip_s, trip_s)
        if not num_bytes:
            return
        queue_s = self.queue_s(path)
        if queue_s < QUEUEING_S:
            self._first_bytes = min(self._first_bytes + num_bytes, LARGEST_WINDOW_BYTES)
        if not is_probe:
            self._delivery.add(now_s, num_bytes, queue_s)
            path.delivery.add(now_s, num_bytes, path.delay.queue_s)
            self._meter.add(now_s, num_bytes, is_full=bool(self._waiting) and queue_s >= QUEUEING_S)
        self.give_up(path, num_bytes)

    def give_up(self, path: Path, num_bytes: int) -> None:
        """``num_bytes`` that were admitted are not under way any more."""
        path.under_way_bytes -= num_bytes
        self._under_way_bytes -= num_bytes
        if not path.under_way_bytes and all(request.path is not path for request in self._waiting):
            path.delivery.pause()
        if not self._under_way_bytes and not self._waiting:  # else the pace makes us pause, and must be able to rise
            self._meter.pause()
            self._delivery.pause()
        self._let_out()

    def _let_out(self) -> None:
        """Admit all that may leave now, in order; a path that is crowded does not hold up the others."""
        kept: list[_Request] = []
        shared_s = self._shared_queue_s() if self._waiting else None  # once: it looks at all paths
        while self._waiting and not self._is_early() and self._under_way_bytes < self._window_bytes():
            request = heapq.heappop(self._waiting)
            is_gone = request.admitted.cancelled()  # and will take itself out of the queue
            queue_s = request.path.delay.standing_s if shared_s is None else shared_s
            if not is_gone and self._has_room(request.path, request.order, request.num_bytes, queue_s):
                self._take(request.path, request.num_bytes, request.is_probe)
                request.admitted.set_result(None)
            else:
                kept.append(request)
        for request in kept:
            heapq.heappush(self._waiting, request)

    def _window_bytes(self, order: float = 0.0) -> float:
        """How much may be under way on all paths when something of this order leaves."""
        rate = self._delivery.bytes_per_s
        if rate is None:
            return self._first_bytes
        beyond_s = UNDER_WAY_S if order < BACKGROUND else BACKGROUND_UNDER_WAY_S
        return min(rate * (self._trip_s + beyond_s), LARGEST_WINDOW_BYTES)

    def _has_room(self, path: Path, order: float, num_bytes: int, queue_s: float) -> bool:
        if path.is_crowded(num_bytes, queue_s):
            return False
        return self._under_way_bytes + num_bytes <= max(self._window_bytes(order), SMALLEST_PARTS * num_bytes)

    def _take(self, path: Path, num_bytes: int, is_probe: bool) -> None:
        now_s = self._clock()
        if not self._meter.is_busy:
            self._meter.resume(now_s)
        path.part_bytes = num_bytes
        path.under_way_bytes += num_bytes
        self._under_way_bytes += num_bytes
        if not is_probe:
            pace = self._pace(self.queue_s(path))
            self._next_s = max(self._next_s, now_s) + num_bytes / pace

    def _pace(self, queue_s: float) -> float:
        """Bytes/s at which parts may leave."""
        rate = self._delivery.bytes_per_s
        allowed = math.inf if self._max_rate is None else self._max_rate
        if rate is None:
            return allowed
        queue_s = min(queue_s, self._under_way_bytes / rate)  # more cannot stand there, whatever the delays say
        gain = FAST_GAIN if queue_s < QUEUEING_S else STEADY_GAIN if queue_s < TARGET_S else SLOW_GAIN
        return min(rate * gain, allowed)

    def _is_early(self) -> bool:
        """Whether the pace forbids to send now; if so, a timer looks again."""
        wait_s = self._next_s - BURST_S - self._clock()
        if wait_s <= TICK_S:
            return False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)
        return True

    def _wake(self) -> None:
        self._timer = None
        self._let_out()


def _best_mean(samples: list[float]) -> float:
    """The largest mean of samples that follow each other."""
    starts = range(max(1, len(samples) - SAMPLES_A_PACE + 1))
    return max(statistics.fmean(samples[start : start + SAMPLES_A_PACE]) for start in starts)
