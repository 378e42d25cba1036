"""Transports and streams that pass everything on to others, for those that change a part of it."""

from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId


class AroundStream:
    """Implements ``Stream`` by another one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def remote(self) -> PeerId:
        return self._stream.remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        await self._stream.send(message, timeout_s=timeout_s)

    async def receive(self, *, timeout_s: float) -> Message:
        return await self._stream.receive(timeout_s=timeout_s)

    def close(self) -> None:
        self._stream.close()


class AroundTransport:
    """Implements ``Transport`` by another one."""

    def __init__(self, outer: Transport) -> None:
        self._outer = outer

    @property
    def peer_id(self) -> PeerId:
        return self._outer.peer_id

    async def addresses(self) -> tuple[str, ...]:
        return await self._outer.addresses()

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        return await self._outer.dial(address, timeout_s=timeout_s)

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        return await self._outer.open(peer, protocol, timeout_s=timeout_s)

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._outer.serve(protocol, handler)
