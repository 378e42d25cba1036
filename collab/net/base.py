"""The network as peers see it: streams of messages between two peers, and a directory of expiring records."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from collab.net.wire import Message
from collab.types import PeerId


class Stream(Protocol):
    """An ordered, reliable, bidirectional channel of messages to one authenticated peer."""

    @property
    def remote(self) -> PeerId:
        """The other side, proven by its key."""
        ...

    async def send(self, message: Message, *, timeout_s: float) -> None:
        """Hand ``message`` to the network. Returning does not mean that the other side has it.

        Raises:
            StreamClosed: the other side is gone.
            TimedOut: the network did not take it within ``timeout_s``; the stream is closed, as half may be sent.
        """
        ...

    async def receive(self, *, timeout_s: float) -> Message:
        """Next message of the other side.

        Raises:
            StreamClosed: the other side closed or died.
            TimedOut: nothing whole came within ``timeout_s``; the stream is closed, as half may have been read.
            BadMessage, VersionMismatch: what came is no message of ours; the stream is closed.
        """
        ...

    def close(self) -> None:
        """Give the stream up, now. What was sent may still arrive. Closing twice is fine."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one incoming stream, which closes when it returns. A ``NetworkError`` it raises ends only that stream."""


class Transport(Protocol):
    """Streams to peers by their id."""

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        ...

    async def addresses(self) -> tuple[str, ...]:
        """Multiaddresses under which others can dial us, ending in ``/p2p/<peer id>``; empty in client mode."""
        ...

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        """Connect to a multiaddress, so that streams to its peer can be opened.

        Raises:
            PeerUnreachable: nobody answers there, or somebody else does.
            TimedOut: no answer within ``timeout_s``.
        """
        ...

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        """Open a stream to the handler that ``peer`` serves under ``protocol``.

        Raises:
            PeerUnreachable: the peer is gone, unknown, or serves no such protocol.
            TimedOut: no answer within ``timeout_s``.
        """
        ...

    async def serve(self, protocol: str, handler: Handler) -> None:
        """Answer streams for ``protocol`` with ``handler`` until this transport closes."""
        ...


@dataclass(frozen=True, slots=True)
class Barred:
    """Why a peer may not take part."""

    reason: str
    """One word for counters."""
    text: str
    """For the person behind it."""


class Door(Protocol):
    """Who may open streams to us."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody comes in without a pass."""
        ...

    def barred(self, peer: PeerId, credential: bytes) -> Barred | None:
        """Why ``peer`` may not come in; None: it may.

        Args:
            credential: what it showed now; empty: nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One value in the directory."""

    value: bytes
    expires_at: float
    """Swarm time, seconds since the Unix epoch."""


LONGEST_RECORD_S = 3 * 3600.0
"""From now until a record's end: what was trained of a page is kept for two hours. Nobody fills the table for ever."""
LARGEST_RECORD_BYTES = 40 << 10
"""Name, value and signature of a record; a summary of a crowd has 32 KB."""


def record_end(now: float, life_s: float, last_end: float) -> float:
    """When a record of ours ends that is to take the place of our last one under its name.

    Keepers take none that ends no later than what they have, so ends go on when swarm time is corrected backwards. One
    that is now too far off for them is left aside: no keeper with the right time has it.

    Args:
        now: swarm time.
        last_end: the latest end that we have given; 0.0: none.
    """
    next_end = last_end + 0.001  # two words may follow each other in milliseconds
    return now + life_s if next_end > now + LONGEST_RECORD_S else max(now + life_s, next_end)


def owner_of(subkey: str) -> PeerId:
    """Whose record it is: the peer at the end of its name, after what the record is about."""
    return PeerId(subkey.rpartition(":")[2])


class Directory(Protocol):
    """A distributed table: key -> subkey -> value, each value with an expiry. Nothing in it is to be trusted.

    A peer stores under subkeys that are its id, or end with ``:`` and its id, and under no others.
    """

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        """Store ``value``; of two values under one subkey the one that expires later stays.

        Returns:
            Whether at least one keeper of the key took it; none takes what is another's, or ends in many hours.

        Raises:
            TimedOut: no keeper answered within ``timeout_s``.
        """
        ...

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        """All unexpired values under ``key``; empty when there are none.

        Args:
            fresh_until: the first keeper's answer is enough if one of its values expires later than this (swarm time);
                None: all keepers are asked, each of which may know of some that others do not.

        Raises:
            TimedOut: no keeper answered within ``timeout_s``.
        """
        ...
