"""The owner's limits: everything that a peer sends and takes over its streams shares two allowances.

Small messages never wait, so that a limited peer answers as quickly as any other; they count, and large ones wait the
longer for it. A peer that reads no faster than it may is sent no more than that: who sends is slowed down.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from collab.net.around import AroundStream, AroundTransport
from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.ports import NO_LIMITS, LinkLimits, Ports
from collab.types import PeerId

SMALL_BYTES = 1 << 10
"""Payloads up to this are control, not transfer."""
HEAD_BYTES = 64
"""Of a message, beside its payload."""


class Allowance:
    """So many bytes a second in one direction, for all streams together."""

    def __init__(self, clock: Callable[[], float], bytes_per_s: float | None) -> None:
        """
        Args:
            clock: monotonic seconds, of the running event loop.
            bytes_per_s: None: as many as come.
        """
        self._clock, self._bytes_per_s = clock, bytes_per_s
        self._spent_until_s = 0.0

    def spend(self, num_bytes: int) -> float:
        """Account for ``num_bytes``; how long whoever wants to keep within the limit waits before they leave."""
        if self._bytes_per_s is None:
            return 0.0
        now_s = self._clock()
        begins_s = max(self._spent_until_s, now_s)
        self._spent_until_s = begins_s + num_bytes / self._bytes_per_s
        return begins_s - now_s

    async def recover(self) -> None:
        """Wait until nothing more is spent than was allowed."""
        while (wait_s := self._spent_until_s - self._clock()) > 0:
            await asyncio.sleep(wait_s)


class LimitedStream(AroundStream):
    """Implements ``Stream``; the time that the owner's limits cost does not count as the other side's."""

    def __init__(self, stream: Stream, up: Allowance, down: Allowance) -> None:
        super().__init__(stream)
        self._up, self._down = up, down
        self._took_much = False

    async def send(self, message: Message, *, timeout_s: float) -> None:
        num_bytes = memoryview(message.payload).nbytes
        wait_s = self._up.spend(num_bytes + HEAD_BYTES)
        if wait_s > 0 and num_bytes > SMALL_BYTES:
            await asyncio.sleep(wait_s)
        await super().send(message, timeout_s=timeout_s)

    async def receive(self, *, timeout_s: float) -> Message:
        if self._took_much:
            await self._down.recover()
        message = await super().receive(timeout_s=timeout_s)
        num_bytes = memoryview(message.payload).nbytes
        self._down.spend(num_bytes + HEAD_BYTES)
        self._took_much = num_bytes > SMALL_BYTES
        return message


class LimitedTransport(AroundTransport):
    """Implements ``Transport``: another one's streams within the owner's limits; those to ourselves cost nothing."""

    def __init__(self, outer: Transport, clock: Callable[[], float], limits: LinkLimits) -> None:
        super().__init__(outer)
        self._up = Allowance(clock, limits.up_bytes_per_s)
        self._down = Allowance(clock, limits.down_bytes_per_s)

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        return self._limited(await super().open(peer, protocol, timeout_s=timeout_s))

    async def serve(self, protocol: str, handler: Handler) -> None:
        await super().serve(protocol, lambda stream: handler(self._limited(stream)))

    def _limited(self, stream: Stream) -> Stream:
        return stream if stream.remote == self.peer_id else LimitedStream(stream, self._up, self._down)


def within_limits(ports: Ports, limits: LinkLimits) -> Ports:
    """The same surroundings on a link of which the owner gives only so much."""
    if limits == NO_LIMITS:
        return ports
    return replace(ports, limits=limits, transport=LimitedTransport(ports.transport, ports.clock.monotonic, limits))
