"""Transport and directory in memory, over the links of a simulation.

Every message passes through :mod:`collab.net.wire` as on a real connection. As with a libp2p daemon, an endpoint is not
its peer: the endpoint of a frozen peer still accepts streams and takes bytes until a window is full.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from collab.errors import NetworkError, PeerUnreachable, StreamClosed, TimedOut
from collab.net import wire
from collab.net.base import Entry, Handler
from collab.simulation.links import PIECE_BYTES, Access, Fabric, Flow, Link
from collab.simulation.virtual_time import EPOCH_S, OWNER, VirtualLoop
from collab.types import PeerId

WINDOW_BYTES = 1 << 20
"""What a stream takes before its reader reads: a stalled reader behind libp2p's daemon swallowed 1.2 MB."""
CREDIT_BYTES = WINDOW_BYTES // 4
"""Read bytes are acknowledged in lots of this size; less would be one signal for every small message."""
OPEN_BYTES = 128
"""On the wire for opening a stream: multistream and protocol name."""
LOOKUP_S = 0.02
"""What finding a peer or a record costs beyond the caller's own round trip; hivemind's DHT took 11-25 ms on loopback."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Frame:
    """One encoded message on its way."""

    kind: str
    head: bytes
    payload: bytes
    unsent_bytes: int
    uncredited_bytes: int = 0
    sender: asyncio.Future[bool] | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.payload)


Delivery = Callable[[int, int, str, int], None]
"""Called for each message that arrives whole: index of sender and of receiver, kind, bytes."""
Tamper = Callable[[str, bytes], bytes]
"""Called with protocol and payload of each message sent; returns what goes on the wire."""


class MemoryNetwork:
    """Everybody's endpoints and the one table that stands for the DHT."""

    def __init__(self, loop: VirtualLoop, *, seed: int = 0) -> None:
        self.loop = loop
        self.fabric = Fabric(loop, random.Random(f"links {seed}"))
        self.endpoints: dict[PeerId, MemoryTransport] = {}
        self.table: dict[str, dict[str, Entry]] = {}
        self.on_delivery: Delivery | None = None
        self.failures: list[BaseException] = []
        """What handlers raised that is no ``NetworkError``: a defect of the peer's code."""
        self.on_failure: Callable[[BaseException], None] = self.failures.append

    def attach(self, peer_id: PeerId, *, index: int, link: Link, client_mode: bool = False) -> "MemoryTransport":
        """Give a peer its endpoint; an earlier one under the same id must be dead.

        Args:
            index: names the peer in addresses, and as ``OWNER`` of the tasks that serve it.
        """
        earlier = self.endpoints.get(peer_id)
        if earlier is not None and earlier.is_alive:
            raise ValueError(f"{peer_id} is attached already")
        endpoint = MemoryTransport(self, peer_id, index, Access(link), client_mode)
        self.endpoints[peer_id] = endpoint
        return endpoint

    def split(self, groups: list[list["MemoryTransport"]]) -> None:
        """Partition the network; endpoints in no group form one more."""
        self.fabric.split([endpoint.access for endpoint in group] for group in groups)

    def heal(self, *, resets_streams: bool = False) -> None:
        """End the partition; with ``resets_streams`` the streams across it break, as after a long one."""
        if resets_streams:
            for endpoint in self.endpoints.values():
                for stream in list(endpoint.streams):
                    if self.fabric.is_cut(endpoint.access, stream.far.access):
                        stream.reset(None)
        self.fabric.heal(endpoint.access for endpoint in self.endpoints.values())

    def is_isolated(self, endpoint: "MemoryTransport") -> bool:
        """Whether a partition leaves ``endpoint`` alone."""
        return self.fabric.is_split and not any(
            other is not endpoint and other.is_alive and other.access.group == endpoint.access.group
            for other in self.endpoints.values()
        )


class MemoryTransport:
    """One peer's endpoint: the transport port, and what fault scripts do to it."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, index: int, access: Access, client_mode: bool) -> None:
        self._network = network
        self._peer_id = peer_id
        self.index = index
        self.access = access
        self.client_mode = client_mode
        self.is_alive = True
        self.is_frozen = False
        self.tamper: Tamper | None = None
        self.handlers: dict[str, Handler] = {}
        self.streams: dict[MemoryStream, None] = {}
        self.connections: set[PeerId] = set()
        self._serving: dict[asyncio.Task[None], None] = {}
        self.context = Context()
        self.context.run(OWNER.set, index)

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        return self._peer_id

    @property
    def address(self) -> str:
        """Where the endpoint is, whether or not others may dial it."""
        return f"/ip4/10.{self.index >> 16 & 255}.{self.index >> 8 & 255}.{self.index & 255}/tcp/4001/p2p/{self._peer_id}"

    async def addresses(self) -> tuple[str, ...]:
        """See ``Transport``."""
        return () if self.client_mode else (self.address,)

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        """See ``Transport``."""
        place, _, name = address.rpartition("/p2p/")
        target = self._network.endpoints.get(PeerId(name))
        if target is None or target.address != address or target.client_mode:
            await self._look_up(timeout_s)
            raise PeerUnreachable(f"nobody with id {name or '?'} answers at {place or address}")
        stream = MemoryStream(self._network, self, target, "")
        try:
            await self._shake_hands(stream, timeout_s)
        finally:
            stream.close()
        return target.peer_id

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> "MemoryStream":
        """See ``Transport``."""
        target = self._network.endpoints.get(peer)
        if target is None or target is self or (target.client_mode and peer not in self.connections):
            await self._look_up(timeout_s)
            raise PeerUnreachable(f"no way to peer {peer}")
        if not protocol:
            raise ValueError("a protocol needs a name")
        stream = MemoryStream(self._network, self, target, protocol)
        try:
            await self._shake_hands(stream, timeout_s)
        except BaseException:  # a cancelled caller must not leave half a stream either
            stream.close()
            raise
        return stream

    async def serve(self, protocol: str, handler: Handler) -> None:
        """See ``Transport``."""
        if protocol in self.handlers:
            raise ValueError(f"{protocol} is served already")
        self.handlers[protocol] = handler

    async def _look_up(self, timeout_s: float) -> None:
        """The time it takes to learn that a peer cannot be found; without it a retrying peer would never wait."""
        needed_s = LOOKUP_S + 2 * self.access.link.latency_s
        await asyncio.sleep(min(needed_s, timeout_s))
        if needed_s > timeout_s:
            raise TimedOut(f"no answer within {timeout_s} s")

    async def _shake_hands(self, stream: "MemoryStream", timeout_s: float) -> None:
        if self.is_frozen:
            await asyncio.sleep(0)
        if not self.is_alive:
            raise PeerUnreachable("this peer has left the network")
        self.streams[stream] = None
        refusal = await stream.opened(timeout_s)
        if refusal:
            raise PeerUnreachable(f"peer {stream.remote} {refusal}")

    def accept(self, theirs: "MemoryStream") -> None:
        """An opening stream reached us: answer it, and start the handler."""
        fabric = self._network.fabric
        handler = self.handlers.get(theirs.protocol)
        refusal = ""
        if not self.is_alive:
            refusal = "is gone"
        elif handler is None and theirs.protocol:
            refusal = f"does not serve {theirs.protocol}"
        else:
            self.connections.add(theirs.near.peer_id)
            theirs.near.connections.add(self._peer_id)
        if handler is not None and not refusal:
            ours = MemoryStream(self._network, self, theirs.near, theirs.protocol)
            ours.join(theirs)
            self.streams[ours] = None
            task = self._network.loop.create_task(_serve(handler, ours), context=self.context.copy(),
                                                  name=f"peer {self.index} serving {theirs.protocol}")
            self._serving[task] = None
            task.add_done_callback(lambda done: self._served(done, ours), context=fabric.context)
        fabric.signal(self.access, theirs.near.access, theirs.answered, refusal)

    def _served(self, task: asyncio.Task[None], stream: "MemoryStream") -> None:
        del self._serving[task]
        stream.close()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NetworkError):
            _logger.debug("stream ended peer=%d protocol=%s error=%s", self.index, stream.protocol, error)
        elif error is not None and self.is_alive:
            error.add_note(f"raised by peer {self.index}'s handler of {stream.protocol}")
            self._network.on_failure(error)

    # -- what happens to peers -----------------------------------------------------------------------------------------

    def die(self) -> None:
        """Vanish at once: what is on the wire arrives, what is queued does not, streams break one latency later."""
        if not self.is_alive:
            return
        self.is_alive = False
        fabric = self._network.fabric
        fabric.drop_queued(self.access)
        for stream in list(self.streams):
            fabric.signal(self.access, stream.far.access, stream.reset_far, None)
            stream.reset(None)
        self._forget()

    def leave(self) -> None:
        """End as a process does that is done: what was sent arrives, then streams close."""
        if not self.is_alive:
            return
        for stream in list(self.streams):
            stream.close()
        self.is_alive = False
        self._forget()

    def _forget(self) -> None:
        for task in list(self._serving):
            task.cancel()
        for peer in self.connections:
            self._network.endpoints[peer].connections.discard(self._peer_id)
        self.connections.clear()

    def freeze(self) -> None:
        """The peer stops reading; its endpoint does not."""
        self.is_frozen = True

    def thaw(self) -> None:
        """The peer reads again."""
        self.is_frozen = False
        for stream in self.streams:
            stream.resume_reading()


async def _serve(handler: Handler, stream: "MemoryStream") -> None:
    await handler(stream)


class MemoryStream:
    """One side of a stream."""

    __slots__ = ("_eof", "_frames", "_in_window_bytes", "_inbox", "_is_closed", "_network", "_opening", "_other",
                 "_owed_bytes", "_partial_bytes", "_reader", "far", "flow", "near", "protocol")

    def __init__(self, network: MemoryNetwork, near: MemoryTransport, far: MemoryTransport, protocol: str) -> None:
        self._network = network
        self.near = near
        self.far = far
        self.protocol = protocol
        self.flow = Flow(near.access, far.access)
        self._other: MemoryStream | None = None
        self._opening: asyncio.Future[Any] | None = None
        self._frames: deque[_Frame] = deque()
        self._in_window_bytes = 0
        self._inbox: deque[_Frame] = deque()
        self._reader: asyncio.Future[bool] | None = None
        self._partial_bytes = 0
        self._owed_bytes = 0
        self._eof = False
        self._is_closed = False

    @property
    def remote(self) -> PeerId:
        """See ``Stream``."""
        return self.far.peer_id

    # -- opening -------------------------------------------------------------------------------------------------------

    async def opened(self, timeout_s: float) -> str:
        """Ask the far side for the stream; returns why it refused, or an empty text."""
        self._opening = self._network.loop.create_future()
        self._network.fabric.push(self.flow, OPEN_BYTES, self.far.accept, self)
        answer = await self._outcome(self._opening, timeout_s)
        if answer is False:
            raise TimedOut(f"peer {self.remote} did not answer within {timeout_s} s")
        return str(answer)

    def join(self, other: "MemoryStream") -> None:
        """Make two halves one stream."""
        self._other, other._other = other, self

    def answered(self, refusal: str) -> None:
        """The far side's answer to :meth:`opened` is here."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(refusal)

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send(self, message: wire.Message, *, timeout_s: float) -> None:
        """See ``Stream``."""
        head, payload = wire.encode(message)
        if self.near.is_frozen:
            await asyncio.sleep(0)  # parks here: a peer frozen by its own event must not send before it thaws
        if self._is_closed or self._eof:
            raise StreamClosed(f"stream to {self.remote} is closed")
        body = bytes(payload)
        if self.near.tamper is not None:
            body = self.near.tamper(self.protocol, body)
        frame = _Frame(message.kind, head, body, len(head) + len(body))
        self._frames.append(frame)
        self._fill_window(None)
        if not frame.unsent_bytes:
            return
        frame.sender = self._network.loop.create_future()
        try:
            taken = await self._outcome(frame.sender, timeout_s)
        finally:
            if frame.unsent_bytes:  # half a message is out: nothing sensible can follow it
                self.close()
        if frame.unsent_bytes and taken:
            raise StreamClosed(f"{self.remote} closed the stream")
        if frame.unsent_bytes:
            raise TimedOut(f"{self.remote} took only a part of a message within {timeout_s} s")

    def _fill_window(self, _: None) -> None:
        frames, push = self._frames, self._network.fabric.push
        while frames:
            frame = frames[0]
            size_bytes = min(frame.unsent_bytes, PIECE_BYTES)
            if self._in_window_bytes + size_bytes > WINDOW_BYTES:
                return
            self._in_window_bytes += size_bytes
            frame.unsent_bytes -= size_bytes
            if frame.unsent_bytes:
                push(self.flow, size_bytes, self._hand_over, (size_bytes, None))
                continue
            frames.popleft()
            push(self.flow, size_bytes, self._hand_over, (size_bytes, frame))
            _wake(frame.sender)

    def _hand_over(self, piece: tuple[int, _Frame | None]) -> None:
        if self._other is not None:
            self._other._take(*piece)

    def _credited(self, num_bytes: int) -> None:
        self._in_window_bytes -= num_bytes
        self._fill_window(None)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive(self, *, timeout_s: float) -> wire.Message:
        """See ``Stream``."""
        if self.near.is_frozen:
            await asyncio.sleep(0)
        if not self._inbox:
            await self._wait_for_frame(timeout_s)
        frame = self._inbox.popleft()
        self._credit(frame.uncredited_bytes)
        try:
            header_bytes, _ = wire.decode_prefix(frame.head[: wire.PREFIX.size])
            return wire.decode(frame.head[wire.PREFIX.size : wire.PREFIX.size + header_bytes], frame.payload)
        except NetworkError:
            self.close()
            raise

    async def _wait_for_frame(self, timeout_s: float) -> None:
        if self._reader is not None:
            raise RuntimeError("two tasks receive from one stream")
        if self._is_closed or self._eof:
            raise StreamClosed(f"stream to {self.remote} is closed")
        self._credit(self._partial_bytes)
        self._partial_bytes = 0
        self._reader = self._network.loop.create_future()
        try:
            woken = await self._outcome(self._reader, timeout_s)
        except asyncio.CancelledError:
            self.close()  # on a real connection half a message may have been read
            raise
        finally:
            self._reader = None
        if self._inbox:
            return
        self.close()
        if woken:
            raise StreamClosed(f"{self.remote} closed the stream")
        raise TimedOut(f"nothing whole came from {self.remote} within {timeout_s} s")

    def _take(self, size_bytes: int, frame: _Frame | None) -> None:
        """A piece is here; ``frame`` is the message that it completes."""
        if self._is_closed or not self.near.is_alive:
            return
        self._partial_bytes += size_bytes
        if frame is not None:
            frame.uncredited_bytes = self._partial_bytes
            self._partial_bytes = 0
            self._inbox.append(frame)
            if self._network.on_delivery is not None:
                self._network.on_delivery(self.far.index, self.near.index, frame.kind, frame.size_bytes)
            _wake(self._reader)
        elif self._reader is not None and not self.near.is_frozen:
            self.resume_reading()

    def resume_reading(self) -> None:
        """Free the window of what a waiting reader reads."""
        if self._reader is not None and not self._inbox:
            self._credit(self._partial_bytes)
            self._partial_bytes = 0

    def _credit(self, num_bytes: int) -> None:
        self._owed_bytes += num_bytes
        if self._owed_bytes >= CREDIT_BYTES and self._other is not None:
            self._network.fabric.signal(self.near.access, self.far.access, self._other._credited, self._owed_bytes)
            self._owed_bytes = 0

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See ``Stream``."""
        if self._is_closed:
            return
        if self.near.is_alive:
            self._network.fabric.push(self.flow, 0, self._end_far, None)
        self.reset(None)

    def reset(self, _: None) -> None:
        """This side is over: whoever waits on it is told."""
        self._is_closed = True
        self._inbox.clear()
        self.near.streams.pop(self, None)
        self._drop_waiting()

    def reset_far(self, _: None) -> None:
        """The other side learns that we died."""
        self._end_far(None)

    def _end_far(self, _: None) -> None:
        if self._other is not None:
            self._other._ended()
        self.answered("is gone")

    def _ended(self) -> None:
        """Nothing more comes from the far side; what came can still be read."""
        self._eof = True
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        for frame in self._frames:
            _wake(frame.sender)
        self._frames.clear()
        _wake(self._reader)

    async def _outcome(self, future: asyncio.Future[Any], timeout_s: float) -> Any:
        """Result of ``future``, or False once ``timeout_s`` have passed."""
        deadline = self._network.loop.call_later(timeout_s, _expire, future)
        try:
            return await future
        finally:
            deadline.cancel()


def _wake(future: asyncio.Future[bool] | None) -> None:
    if future is not None and not future.done():
        future.set_result(True)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(False)


class MemoryDirectory:
    """The directory port of one peer. There is one table: where a record lives in a DHT is not simulated."""

    def __init__(self, network: MemoryNetwork, endpoint: MemoryTransport) -> None:
        self._network = network
        self._endpoint = endpoint

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        """See ``Directory``; refused when expired by swarm time, or when what is there expires no earlier."""
        await self._reach_keeper(timeout_s)
        now = EPOCH_S + self._network.loop.time()
        records = self._network.table.setdefault(key, {})
        known = records.get(subkey)
        if expires_at <= now or (known is not None and known.expires_at > now and known.expires_at >= expires_at):
            return False
        records[subkey] = Entry(bytes(value), expires_at)
        return True

    async def get(self, key: str, *, timeout_s: float) -> Mapping[str, Entry]:
        """See ``Directory``."""
        await self._reach_keeper(timeout_s)
        now = EPOCH_S + self._network.loop.time()
        records = self._network.table.get(key, {})
        expired = [subkey for subkey, entry in records.items() if entry.expires_at <= now]
        for subkey in expired:
            del records[subkey]
        return dict(records)

    async def _reach_keeper(self, timeout_s: float) -> None:
        if self._endpoint.is_frozen:
            await asyncio.sleep(0)
        needed_s = LOOKUP_S + 2 * self._endpoint.access.link.latency_s
        is_alone = self._network.is_isolated(self._endpoint)
        if self._endpoint.is_alive and not is_alone and needed_s <= timeout_s:
            await asyncio.sleep(needed_s)
            is_alone = self._network.is_isolated(self._endpoint)
            timeout_s -= needed_s
            needed_s = 0.0
        if self._endpoint.is_alive and (is_alone or needed_s):
            await asyncio.sleep(max(0.0, timeout_s))
        if not self._endpoint.is_alive or is_alone or needed_s:
            raise TimedOut("no keeper of the key answered in time")
