"""A peer's transport with a tap in it: every message is shown before it leaves, and may be changed, or sent twice."""

from collections.abc import Awaitable, Callable

from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

Passing = Callable[[PeerId, Message], Awaitable[list[Message]]]
"""Called with receiver and message; what it returns leaves instead."""
Passed = Callable[[PeerId, Message], Awaitable[None]]
"""Called when the message has left."""


class TappedStream:
    """Implements ``Stream``."""

    def __init__(self, inner: Stream, passing: Passing, passed: Passed) -> None:
        self._inner, self._passing, self._passed = inner, passing, passed

    @property
    def remote(self) -> PeerId:
        return self._inner.remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        for each in await self._passing(self.remote, message):
            await self._inner.send(each, timeout_s=timeout_s)
        await self._passed(self.remote, message)

    async def receive(self, *, timeout_s: float) -> Message:
        return await self._inner.receive(timeout_s=timeout_s)

    def close(self) -> None:
        self._inner.close()


class TappedTransport:
    """Implements ``Transport``."""

    def __init__(self, inner: Transport, passing: Passing, passed: Passed) -> None:
        self._inner, self._passing, self._passed = inner, passing, passed

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    async def addresses(self) -> tuple[str, ...]:
        return await self._inner.addresses()

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        return await self._inner.dial(address, timeout_s=timeout_s)

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        return self._tapped(await self._inner.open(peer, protocol, timeout_s=timeout_s))

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def serve(stream: Stream) -> None:
            await handler(self._tapped(stream))

        await self._inner.serve(protocol, serve)

    def _tapped(self, stream: Stream) -> TappedStream:
        return TappedStream(stream, self._passing, self._passed)
