"""Streams to oneself: a peer that leads or reduces for its own round talks to itself like to anybody else."""

import asyncio

from collab.concurrency import Background
from collab.errors import NetworkError, PeerUnreachable, StreamClosed, TimedOut
from collab.net.around import AroundTransport
from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId


class _End:
    """One end of an in-process stream."""

    def __init__(self, peer: PeerId) -> None:
        self._peer = peer
        self._incoming: asyncio.Queue[Message | None] = asyncio.Queue()
        self._other: _End | None = None
        self._is_closed = False

    @property
    def remote(self) -> PeerId:
        return self._peer

    async def send(self, message: Message, *, timeout_s: float) -> None:
        other = self._other
        if self._is_closed or other is None or other._is_closed:
            raise StreamClosed("our own end of the stream is closed")
        other._incoming.put_nowait(message)

    async def receive(self, *, timeout_s: float) -> Message:
        if self._is_closed:
            raise StreamClosed("our own end of the stream is closed")
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._incoming.get()
        except TimeoutError:
            self.close()
            raise TimedOut(f"nothing from ourselves within {timeout_s:.1f} s") from None
        if message is None:
            self._incoming.put_nowait(None)
            raise StreamClosed("our own other end closed the stream")
        return message

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._incoming.put_nowait(None)
        if self._other is not None:
            self._other._incoming.put_nowait(None)


class LoopbackTransport(AroundTransport):
    """Implements ``Transport``: streams to other peers through ``outer``, streams to ourselves in memory."""

    def __init__(self, outer: Transport, tasks: Background) -> None:
        super().__init__(outer)
        self._tasks = tasks
        self._handlers: dict[str, Handler] = {}

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        if peer != self.peer_id:
            return await super().open(peer, protocol, timeout_s=timeout_s)
        handler = self._handlers.get(protocol)
        if handler is None:
            raise PeerUnreachable(f"we do not serve {protocol} ourselves")
        ours, theirs = _End(peer), _End(peer)
        ours._other, theirs._other = theirs, ours
        self._tasks.create_task(_run(handler, theirs))
        return ours

    async def serve(self, protocol: str, handler: Handler) -> None:
        self._handlers[protocol] = handler
        await super().serve(protocol, handler)


async def _run(handler: Handler, end: _End) -> None:
    try:
        await handler(end)
    except NetworkError:
        return  # ends only its stream, as on the network
    finally:
        end.close()
