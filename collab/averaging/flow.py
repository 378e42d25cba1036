"""Parts on one stream: sent as the uplink allows, acknowledged by the receiver, measured at both ends.

An acknowledgement says how many bytes the receiver has taken, and how long the newest part was under way: the time of
its arrival by the receiver's clock minus the time of its departure by the sender's. The clocks need not agree.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypedDict

from collab.averaging.plan import MAX_RATE, MIN_RATE
from collab.averaging.timeouts import FIRST, MeasuredTimeouts, RoundTimeouts
from collab.averaging.uplink import Uplink
from collab.compression.base import Buffer
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.bandwidth import Downlink

HEAD_BYTES = 64
"""Of a part's message, beside its payload."""
PROMPT_BYTES = 256 << 10
"""Taken, and acknowledged at once; on a fast link an acknowledgement for each part would cost as much as the part."""
ANSWER_S = 0.008
"""Longest that an acknowledgement waits for more to come: short beside the queues that it measures."""


class Measured(TypedDict):
    """Rates as fields of ``Join``."""

    up_bytes_per_s: float
    up_is_limit: bool
    down_bytes_per_s: float
    down_is_limit: bool


class Links:
    """This peer's link, as all its streams share it."""

    def __init__(
        self, clock: Callable[[], float], limits: LinkLimits = NO_LIMITS, timeouts: RoundTimeouts = FIRST
    ) -> None:
        """
        Args:
            clock: monotonic seconds, of the running event loop.
        """
        self.clock = clock
        self.timeouts = MeasuredTimeouts(clock, timeouts)
        self.uplink = Uplink(clock, max_bytes_per_s=limits.up_bytes_per_s)
        self.downlink = Downlink(clock, max_bytes_per_s=limits.down_bytes_per_s)
        self.timeouts.queue_s = self.downlink.longest_queue_s

    def measured(self) -> Measured:
        """What our link was seen to carry, as a leader is told: one that was mismeasured is no reason to refuse us."""
        up, down = self.uplink.rate(), self.downlink.rate()
        return Measured(
            up_bytes_per_s=_sayable(up.bytes_per_s) if up else 0.0,
            up_is_limit=up is not None and up.is_limit,
            down_bytes_per_s=_sayable(down.bytes_per_s) if down else 0.0,
            down_is_limit=down is not None and down.is_limit,
        )


def _sayable(bytes_per_s: float) -> float:
    return min(max(bytes_per_s, MIN_RATE), MAX_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Elements on their way; encoded when their turn has come."""

    kind: str
    index: int
    num_bytes: int
    """Of the encoding."""
    encode: Callable[[], Buffer]
    order: float
    """Of all that wants to leave this peer, the smallest goes first."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its message."""


@asynccontextmanager
async def kept_alive(stream: Stream, timeouts: MeasuredTimeouts) -> AsyncIterator[None]:
    """Meanwhile the other side hears that we are there, also while nothing else may leave."""
    over = asyncio.Event()

    async def say_so() -> None:
        with suppress(NetworkError):  # who reads from this stream sees the same, and knows why
            while not over.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeouts.fixed.alive_s):
                        await over.wait()
                        return
                await stream.send(Message("wait"), timeout_s=timeouts.answer_s())

    saying = asyncio.create_task(say_so())
    try:
        yield
    except BaseException:
        saying.cancel()
        raise
    finally:
        over.set()  # and not cancelled: half a message would spoil the stream for the next round
        await asyncio.gather(saying, return_exceptions=True)


class Outflow:
    """What leaves on one stream."""

    def __init__(self, stream: Stream, links: Links, *, is_probe: bool = False) -> None:
        self._stream, self._uplink, self._clock, self._is_probe = stream, links.uplink, links.clock, is_probe
        self._timeouts = links.timeouts
        self._path = links.uplink.path(stream.remote)
        self._under_way_bytes = 0

    async def send(self, part: Part, *, timeout_s: float) -> None:
        """Send a part when its turn has come."""
        num_bytes = part.num_bytes + HEAD_BYTES
        await self._uplink.admit(self._path, part.order, num_bytes, is_probe=self._is_probe)
        self._under_way_bytes += num_bytes
        data = part.encode()
        times = {"sent_s": self._clock(), "queue_s": self._uplink.queue_s(self._path)}
        fields = {"index": part.index, **times, **part.extra}
        await self._stream.send(Message(part.kind, fields, data), timeout_s=timeout_s)

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that the receiver has not acknowledged."""
        return self._under_way_bytes > 0

    def acknowledged(self, message: Message) -> None:
        """Take the receiver's word.

        Raises:
            BadMessage: it has taken more than was sent, or measures nonsense.
        """
        num_bytes, delay_s = message.get("bytes", int), message.get("delay_s", float)
        trip_s = self._clock() - message.get("sent_s", float)
        if not 0 <= num_bytes <= self._under_way_bytes or not (math.isfinite(delay_s) and 0 <= trip_s < math.inf):
            raise BadMessage(f"{self._stream.remote} acknowledges {num_bytes} bytes of {self._under_way_bytes}")
        self._under_way_bytes -= num_bytes
        self._uplink.acknowledge(self._path, num_bytes, delay_s, trip_s, is_probe=self._is_probe)
        self._timeouts.answered(trip_s)
        self._timeouts.showed(self._stream.remote)

    def settle(self) -> None:
        """Nothing of this stream is under way any more: all has been answered, or the stream is over."""
        num_bytes, self._under_way_bytes = self._under_way_bytes, 0
        self._uplink.give_up(self._path, num_bytes)


class Inflow:
    """What comes on one stream. An async context: meanwhile what was taken is acknowledged.

    A task of its own does that, so that reading never waits for writing: two peers that both wait to write and do not
    read would wait for ever.
    """

    def __init__(self, stream: Stream, links: Links, *, timeout_s: float) -> None:
        self._stream, self._downlink, self._clock, self._timeout_s = stream, links.downlink, links.clock, timeout_s
        self._timeouts = links.timeouts
        self._owed_bytes = 0
        self._delay_s = self._sent_s = 0.0
        self._took = asyncio.Event()
        self._is_owed = self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._answering = asyncio.create_task(self._answer())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answering is None:
            return
        if error is not None:
            self._answering.cancel()
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._took.set()
        await asyncio.gather(self._answering, return_exceptions=True)  # what ends it ends the reading, too
        self._answering = None  # it holds the error that it ended with, whose traceback holds us

    def opened(self, message: Message) -> None:
        """Acknowledge the first message of a round: small and early, it shows the delay of a path without queues.

        Raises:
            BadMessage: it does not say when it was sent.
        """
        self._sent_s, self._delay_s, _ = self._times(message)
        self._took.set()
        self._is_owed = True

    def _times(self, message: Message) -> tuple[float, float, float]:
        """When it was sent, how long it was under way, and how long it waited for the sender's own uplink."""
        sent_s, queue_s = message.get("sent_s", float), message.get("queue_s", float)
        delay_s = self._clock() - sent_s
        if not (math.isfinite(delay_s) and 0 <= queue_s < math.inf):
            raise BadMessage(f"{self._stream.remote} sends at no time")
        return sent_s, delay_s, queue_s

    def took(self, message: Message) -> None:
        """Account for one part.

        Raises:
            BadMessage: it does not say when it was sent.
        """
        num_bytes = memoryview(message.payload).nbytes + HEAD_BYTES
        self._sent_s, self._delay_s, queue_s = self._times(message)
        self._downlink.arrived(self._stream.remote, num_bytes, self._delay_s, queue_s)
        self._timeouts.showed(self._stream.remote)
        self._owed_bytes += num_bytes
        self._is_owed = True
        if self._owed_bytes >= PROMPT_BYTES:
            self._took.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self._remind)

    def _remind(self) -> None:
        self._timer = None
        self._took.set()

    async def _answer(self) -> None:
        while self._is_owed or not self._is_over:
            await self._took.wait()
            self._took.clear()
            if self._is_owed:
                fields = {"bytes": self._owed_bytes, "delay_s": self._delay_s, "sent_s": self._sent_s}
                self._owed_bytes, self._is_owed = 0, False
                await self._stream.send(Message("ack", fields), timeout_s=self._timeout_s)
