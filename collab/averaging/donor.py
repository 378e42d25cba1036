"""Somebody who is asked for a round that was missed, and how it does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collab.averaging.flow import Links
from collab.averaging.silence import Silence
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId

SLOW = 16.0
"""A donor that brings this much less than our link carries is slow: uplinks have a tenth of downlinks, often."""
Streams = dict[PeerId, Stream]
"""To donors, for the next round: to open one takes as long as to ask over it."""


@contextmanager
def kept_streams() -> Iterator[Streams]:
    """While rounds are fetched that follow each other."""
    streams = Streams()
    try:
        yield streams
    finally:
        for stream in streams.values():
            stream.close()


class Donor:
    """One peer that was asked, and how it does."""

    def __init__(self, peer: PeerId, links: Links, silence: Silence) -> None:
        self.peer, self.num_bytes = peer, 0
        self._links, self._silence, self._watch = links, silence, silence.watch()
        self._began_s = links.clock()

    def heard(self, stream: Stream) -> Stream:
        """``stream``, watched."""
        return _WatchedStream(stream, self._take)

    def _take(self, message: Message) -> None:
        self.num_bytes += memoryview(message.payload).nbytes
        self._watch.heard()

    def is_behind(self) -> bool:
        """Whether somebody else should be asked, too."""
        seconds, rate = self._links.clock() - self._began_s, self._links.downlink.rate()
        is_slow = rate is not None and self.num_bytes < seconds * rate.bytes_per_s / SLOW
        return self._watch.left_s() <= 0 or (seconds > self._silence.limit_s() and is_slow)


class _WatchedStream:
    """Implements ``Stream``: somebody is told of all that comes."""

    def __init__(self, inner: Stream, took: Callable[[Message], None]) -> None:
        self._inner, self._took = inner, took

    @property
    def remote(self) -> PeerId:
        return self._inner.remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        await self._inner.send(message, timeout_s=timeout_s)

    async def receive(self, *, timeout_s: float) -> Message:
        message = await self._inner.receive(timeout_s=timeout_s)
        self._took(message)
        return message

    def close(self) -> None:
        self._inner.close()
