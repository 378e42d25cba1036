"""What two peers send each other in a probe: parts in one direction, then in the other, and when they arrived.

More is put under way as long as nothing queues, from little at first, so that a narrow link is not stuffed and a wide
one is full before the second is over.
"""

import asyncio
import math
from dataclasses import dataclass

from collab.averaging.flow import HEAD_BYTES, Inflow, Links, Outflow, Part
from collab.averaging.passages import Passage
from collab.errors import BadMessage
from collab.net.base import Stream
from collab.net.wire import Message

SECONDS = 1.0
"""Of parts, half of it in each direction."""
LONGEST_S = 2 * SECONDS
"""With all that is still under way then; whoever is not done is left alone."""
GROWTH = 3
"""More under way for each byte that arrives without a queue, so that a second is enough for long ways, too."""
ENOUGH_S = 0.05
"""Queue on a path that shows that its link is full; more under way would only lengthen it."""
SMALLEST_PART_BYTES, LARGEST_PART_BYTES, PARTS_UNDER_WAY = 4 << 10, 64 << 10, 32
LAST = 2.0
"""Place of a probe's parts in the queue: behind all of a round, whose places are below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much one peer may send in a probe."""

    num_bytes: int
    first_bytes: int
    """Under way at the beginning."""


class Traffic:
    """What goes to one peer and comes from it."""

    def __init__(self, stream: Stream, links: Links) -> None:
        self._stream, self._links = stream, links
        self._outflow = Outflow(stream, links, is_probe=True)
        self._window_bytes = self._under_way_bytes = self._came_bytes = 0
        self._shortest_s, self._receives = math.inf, False
        self._moved = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self.went: list[Passage] = []
        self.came: list[Passage] = []

    def begin(self, volume: Volume, closing: Message) -> None:
        """Send parts for half of the time, and ``closing`` behind them; what fails shows in receiving, too."""
        if self._sending is not None:
            raise BadMessage(f"{self._stream.remote} asks for more than one probe")
        self._sending = asyncio.create_task(self._send(volume, closing))

    async def _send(self, volume: Volume, closing: Message) -> None:
        self._window_bytes, left_bytes = volume.first_bytes, volume.num_bytes
        until_s = self._links.clock() + SECONDS / 2
        while left_bytes > 0 and (rest_s := until_s - self._links.clock()) > 0:
            num_bytes = min(max(self._window_bytes // PARTS_UNDER_WAY, SMALLEST_PART_BYTES), LARGEST_PART_BYTES)
            if self._under_way_bytes + num_bytes > self._window_bytes:
                await self._move(rest_s)
                continue
            data = bytes(min(num_bytes, left_bytes))
            left_bytes -= len(data)
            self._under_way_bytes += len(data) + HEAD_BYTES
            part = Part(kind="part", index=0, num_bytes=len(data), encode=lambda data=data: data, order=LAST)  # type: ignore[misc]
            await self._outflow.send(part, timeout_s=LONGEST_S)
        await self._stream.send(closing, timeout_s=LONGEST_S)

    async def _move(self, timeout_s: float) -> None:
        self._moved.clear()
        waking = asyncio.get_running_loop().call_later(timeout_s, self._moved.set)
        await self._moved.wait()
        waking.cancel()

    async def take(self, message: Message, inflow: Inflow, *, most_bytes: int) -> None:
        """Take one part or acknowledgement.

        Raises:
            BadMessage: it is neither, or more than ``most_bytes`` of parts have come.
        """
        if message.kind == "ack":
            self._acknowledged(message)
            return
        num_bytes = memoryview(message.payload).nbytes
        self._came_bytes += num_bytes
        if message.kind != "part" or not num_bytes or self._came_bytes > most_bytes:
            raise BadMessage(f"{self._stream.remote} sends {message.kind}, {self._came_bytes} bytes in all, in a probe")
        if not self._receives:
            self._receives = True
            self._links.downlink.begin()
        inflow.took(message)
        self.came.append(Passage(message.get("sent_s", float), self._links.clock(), num_bytes + HEAD_BYTES))

    def _acknowledged(self, message: Message) -> None:
        self._outflow.acknowledged(message)
        num_bytes, sent_s = message.get("bytes", int), message.get("sent_s", float)
        now_s = self._links.clock()  # what the other side says of times need not be true
        self.went.append(Passage(sent_s, now_s, num_bytes))
        self._shortest_s = min(self._shortest_s, now_s - sent_s)
        if now_s - sent_s - self._shortest_s < ENOUGH_S:
            self._window_bytes += GROWTH * num_bytes
        self._under_way_bytes -= num_bytes
        self._moved.set()

    async def settle(self) -> None:
        """It is over, and nothing is under way any more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self._outflow.settle()
        if self._receives:
            self._links.downlink.end()
