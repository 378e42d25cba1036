"""A peer whose leader is not told what was measured of its link, so that rounds are planned as if all were alike."""

from collab.averaging.messages import ROUND_PROTOCOL
from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

ALIKE = {"up_bytes_per_s": 1.25e7, "up_is_limit": True, "down_bytes_per_s": 1.25e7, "down_is_limit": True}
"""In every peer's word to its leader: 100 Mbit/s, with which nobody is left out."""


class _BlindStream:
    """Implements ``Stream``: says the same rates as everybody."""

    def __init__(self, inner: Stream) -> None:
        self._inner = inner
        self.receive, self.close = inner.receive, inner.close

    @property
    def remote(self) -> PeerId:
        return self._inner.remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        if message.kind == "join":
            message = Message("join", {**message.fields, **ALIKE})
        await self._inner.send(message, timeout_s=timeout_s)


class BlindTransport:
    """Implements ``Transport`` around another one."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.addresses, self.dial = inner.addresses, inner.dial

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        stream = await self._inner.open(peer, protocol, timeout_s=timeout_s)
        return _BlindStream(stream) if protocol == ROUND_PROTOCOL else stream

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._inner.serve(protocol, handler)
