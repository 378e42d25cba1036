"""One side of a stream in memory: messages become bytes, bytes become pieces, pieces wait for a window and a link."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collab.errors import NetworkError, StreamClosed, TimedOut
from collab.net import wire
from collab.simulation.links import PIECE_BYTES, Flow
from collab.types import PeerId

if TYPE_CHECKING:
    from collab.net.memory_net import MemoryNetwork, MemoryTransport

WINDOW_BYTES = 1 << 20
"""What a stream takes before its reader reads: a stalled reader behind libp2p's daemon swallowed 1.2 MB."""
CREDIT_BYTES = WINDOW_BYTES // 4
"""Read bytes are acknowledged in lots of this size; less would be one signal for every small message."""
OPEN_BYTES = 128
"""On the wire for opening a stream: multistream and protocol name."""


@dataclass(slots=True, eq=False)
class _Frame:
    """One encoded message on its way."""

    kind: str
    head: bytes
    payload: bytes
    unsent_bytes: int
    """On the links, where a byte of a vector may stand for many: they take turns with others' pieces all the same."""
    uncredited_bytes: int = 0
    sender: asyncio.Future[bool] | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.payload)


class MemoryStream:
    """One side of a stream."""

    __slots__ = (
        "_eof",
        "_frames",
        "_in_window_bytes",
        "_inbox",
        "_is_closed",
        "_largest",
        "_network",
        "_opening",
        "_other",
        "_owed_bytes",
        "_partial_bytes",
        "_reader",
        "_weight",
        "far",
        "flow",
        "near",
        "protocol",
        "relay",
    )

    def __init__(
        self,
        network: "MemoryNetwork",
        near: "MemoryTransport",
        far: "MemoryTransport",
        protocol: str,
        largest: wire.Largest | None = None,
        relay: "MemoryTransport | None" = None,
    ) -> None:
        """
        Args:
            largest: what the far side may send; None: what the wire allows.
            relay: passes on all pieces, over its own link; acknowledgements need no more time for it.
        """
        self._network = network
        self.near = near
        self.far = far
        self.protocol = protocol
        self._largest = largest
        self.relay = relay
        if relay is None:
            self.flow = Flow(near.access, far.access)
        else:
            self.flow = Flow(near.access, relay.access, onward=Flow(relay.access, far.access))
            relay.carried[self] = None
        self._weight = network.weight_of(protocol)
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
        frame = _Frame(message.kind, head, body, len(head) + self._weight * len(body))
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
            header_bytes, _ = wire.decode_prefix(frame.head[: wire.PREFIX.size], self._largest)
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
        if self.near.is_alive and not self._eof:
            self._network.fabric.push(self.flow, 0, self.end_far, None)
        self.reset(None)

    def reset(self, _: None) -> None:
        """This side is over: whoever waits on it is told."""
        self._is_closed = True
        self._inbox.clear()
        self.near.streams.pop(self, None)
        if self.relay is not None:
            self.relay.carried.pop(self, None)
        self._drop_waiting()

    def end_far(self, _: None) -> None:
        """The other side learns that nothing more comes from us."""
        if self._other is not None:
            self._other._ended()

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
