"""A peer's transport with a tap in it: every message is shown before it leaves, and may be changed, or sent twice."""

from collections.abc import Awaitable, Callable

from collab.net.around import AroundStream, AroundTransport
from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

Passing = Callable[[PeerId, Message], Awaitable[list[Message]]]
"""Called with receiver and message; what it returns leaves instead."""
Passed = Callable[[PeerId, Message], Awaitable[None]]
"""Called when the message has left."""


class TappedStream(AroundStream):
    """Implements ``Stream``."""

    def __init__(self, inner: Stream, passing: Passing, passed: Passed) -> None:
        super().__init__(inner)
        self._passing, self._passed = passing, passed

    async def send(self, message: Message, *, timeout_s: float) -> None:
        for each in await self._passing(self.remote, message):
            await super().send(each, timeout_s=timeout_s)
        await self._passed(self.remote, message)


class TappedTransport(AroundTransport):
    """Implements ``Transport``."""

    def __init__(self, inner: Transport, passing: Passing, passed: Passed) -> None:
        super().__init__(inner)
        self._passing, self._passed = passing, passed

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        return self._tapped(await super().open(peer, protocol, timeout_s=timeout_s))

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def serve(stream: Stream) -> None:
            await handler(self._tapped(stream))

        await super().serve(protocol, serve)

    def _tapped(self, stream: Stream) -> TappedStream:
        return TappedStream(stream, self._passing, self._passed)
