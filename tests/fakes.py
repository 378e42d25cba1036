"""The ports of a peer, in memory and without any world: for tests of one part at a time, in virtual time."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from collab.concurrency import Background
from collab.errors import NetworkError, PeerUnreachable, StreamClosed, TimedOut
from collab.metrics.records import Event
from collab.net.base import Entry, Handler, Stream
from collab.net.wire import PREFIX, Message, decode, decode_prefix, encode
from collab.ports import Ports
from collab.simulation import virtual_time
from collab.types import PeerId

T = TypeVar("T")
Tamper = Callable[[PeerId, PeerId, str, Message], Message | None]
"""Called with sender, receiver, protocol and message; what it returns arrives, None breaks the stream."""
Ahead = Callable[[PeerId, PeerId, str, Message], list[Message]]
"""Called likewise; what it returns arrives before the message, on the same stream."""
NOW = 1_700_000_000.0


def through_the_wire(message: Message) -> Message:
    """What a receiver on a real connection would see."""
    head, payload = encode(message)
    decode_prefix(head[: PREFIX.size])
    return decode(head[PREFIX.size :], bytes(payload))


class FakeStream:
    """One end of a stream; made in pairs by ``FakeNetwork``."""

    def __init__(self, network: "FakeNetwork", owner: PeerId, remote: PeerId, protocol: str) -> None:
        self._network, self._owner, self._remote, self._protocol = network, owner, remote, protocol
        self._incoming: asyncio.Queue[Message | None] = asyncio.Queue()
        self.other: FakeStream | None = None
        self.is_closed = False

    @property
    def remote(self) -> PeerId:
        return self._remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        await asyncio.sleep(0)
        other = self.other
        if self.is_closed or other is None or other.is_closed:
            raise StreamClosed(f"{self._remote} closed the stream")
        if self._network.ahead is not None:
            for earlier in self._network.ahead(self._owner, self._remote, self._protocol, message):
                other._incoming.put_nowait(through_the_wire(earlier))
        arriving: Message | None = through_the_wire(message)
        if self._network.tamper is not None:
            arriving = self._network.tamper(self._owner, self._remote, self._protocol, through_the_wire(message))
        if arriving is None:
            self.close()
            raise StreamClosed(f"the stream to {self._remote} broke")
        self._network.sent.append((self._owner, self._remote, self._protocol, arriving))
        other._incoming.put_nowait(arriving)

    async def receive(self, *, timeout_s: float) -> Message:
        if self.is_closed:
            raise StreamClosed("closed by ourselves")
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._incoming.get()
        except TimeoutError:
            self.close()
            raise TimedOut(f"nothing from {self._remote} within {timeout_s:.1f} s") from None
        if message is None:
            self._incoming.put_nowait(None)
            raise StreamClosed(f"{self._remote} closed the stream")
        return message

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._incoming.put_nowait(None)
        if self.other is not None:
            self.other._incoming.put_nowait(None)


class FakeTransport:
    """Implements ``Transport`` between the peers of one ``FakeNetwork``, oneself included."""

    def __init__(self, network: "FakeNetwork", peer_id: PeerId) -> None:
        self._network, self._peer_id = network, peer_id
        self.handlers: dict[str, Handler] = {}

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    async def addresses(self) -> tuple[str, ...]:
        return (f"/memory/p2p/{self._peer_id}",)

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        peer = PeerId(address.rpartition("/")[2])
        if peer not in self._network.peers:
            raise PeerUnreachable(f"nobody answers at {address}")
        return peer

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        await asyncio.sleep(0)
        there = self._network.peers.get(peer)
        if there is None or protocol not in there.handlers:
            raise PeerUnreachable(f"{peer} is gone or does not serve {protocol}")
        ours = FakeStream(self._network, self._peer_id, peer, protocol)
        theirs = FakeStream(self._network, peer, self._peer_id, protocol)
        ours.other, theirs.other = theirs, ours
        self._network.serve_stream(there.handlers[protocol], theirs)
        return ours

    async def serve(self, protocol: str, handler: Handler) -> None:
        self.handlers[protocol] = handler


class FakeNetwork:
    """An async context: its handlers end with it, and one that raises more than a ``NetworkError`` fails the test."""

    def __init__(self) -> None:
        self.peers: dict[PeerId, FakeTransport] = {}
        self.sent: list[tuple[PeerId, PeerId, str, Message]] = []
        self.tamper: Tamper | None = None
        self.ahead: Ahead | None = None
        self._tasks = Background()

    def join(self, name: str) -> FakeTransport:
        """The transport of a new peer."""
        self.peers[PeerId(name)] = FakeTransport(self, PeerId(name))
        return self.peers[PeerId(name)]

    def leave(self, name: str) -> None:
        """Nobody reaches the peer any more; its open streams stay."""
        del self.peers[PeerId(name)]

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something beside the test until it ends or the network does."""
        self._tasks.create_task(coroutine)

    def serve_stream(self, handler: Handler, stream: FakeStream) -> None:
        self._tasks.create_task(self._serve(handler, stream))

    async def _serve(self, handler: Handler, stream: FakeStream) -> None:
        try:
            await handler(stream)
        except NetworkError:
            return  # ends only its stream, as on the real network
        finally:
            stream.close()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)


class FakeDirectory:
    """Implements ``Directory`` as one table; an expired entry stays, so that readers must look for themselves."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Entry]] = {}
        self.is_silent = False
        self.answers_after_s = 0.0
        """Of reading; infinity: never."""
        self.stores = 0

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        if self.is_silent:
            raise TimedOut("no keeper answered")
        self.stores += 1
        known = self.table.setdefault(key, {}).get(subkey)
        if known is not None and known.expires_at >= expires_at:
            return False
        self.table[key][subkey] = Entry(value, expires_at)
        return True

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        if self.is_silent:
            raise TimedOut("no keeper answered")
        answer = dict(self.table.get(key, {}))
        await asyncio.sleep(min(self.answers_after_s, timeout_s))
        if self.answers_after_s > timeout_s:
            raise TimedOut("no keeper answered in time")
        return answer


class FakeClock:
    """Swarm time that the test sets; durations are the loop's."""

    def __init__(self, now: float = NOW) -> None:
        self.at = now

    def now(self) -> float:
        return self.at + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def correct(self, offset_s: float) -> None:
        self.at += offset_s


class FakeCompute:
    """Runs work at once, in the event loop."""

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        return work()

    async def beside(self, work: Callable[[], T]) -> T:
        return work()

    async def apart(self, work: Callable[[], T]) -> T:
        return work()


class FakeKeys:
    """Implements ``Keys`` for any name; who knows the name can sign for it."""

    def __init__(self, peer: PeerId) -> None:
        self._peer = peer

    def sign(self, content: bytes) -> bytes:
        return hashlib.sha512(f"{self._peer} signs ".encode() + content).digest()

    def is_signed_by(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        return signature == FakeKeys(peer).sign(content)


class FakeObserver:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)


def make_ports(transport: FakeTransport, directory: FakeDirectory | None = None) -> Ports:
    """All ports of one peer."""
    return Ports(
        clock=FakeClock(),
        compute=FakeCompute(),
        transport=transport,
        directory=directory or FakeDirectory(),
        keys=FakeKeys(transport.peer_id),
        observer=FakeObserver(),
        rng=random.Random(f"ports of {transport.peer_id}"),
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` in virtual time: nothing waits, and what would hang raises ``Deadlock`` or ``Livelock``."""
    return virtual_time.run(main)
