"""Frames of one connection, read straight into the memory they end up in.

``asyncio``'s own streams copy every byte three times and wake a task for every piece. Here the kernel writes payloads
into the message's own buffer, and a message costs one wake-up of whoever waits for it.
"""

import asyncio
import threading
from collections import deque
from contextlib import suppress

from collab.errors import NetworkError, StreamClosed, VersionMismatch
from collab.net.wire import PREFIX, Largest, Message, decode, decode_prefix, encode

READ_BYTES = 1 << 16
"""Offered to the kernel for heads and small messages: one read takes in all of several small ones."""
QUEUED_BYTES = 1 << 20
"""Messages that nobody has taken yet; beyond this the other side is made to wait."""
MESSAGE_BYTES = 256
"""What a queued message costs beside header and payload; else empty ones could be queued without end."""
WRITE_BUFFER_BYTES = 1 << 18
"""Handed to the connection and not taken by the kernel yet; beyond this ``drain`` waits."""


class _Space(threading.local):
    """Where the kernel writes heads and small messages: one place for all connections of a thread, and so of a loop.

    What it has written is taken out before anything else is read: a loop asks for room, reads, and tells in one go.
    One for each connection would be 64 KiB for every stream that waits.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_SPACE = _Space()


class FrameProtocol(asyncio.BufferedProtocol):
    """Turns bytes into messages and back; the connection's only owner."""

    def __init__(self, remote: str, largest: Largest | None = None) -> None:
        """
        Args:
            remote: who is on the other side, for error messages.
            largest: what it may send; None: what the wire allows.
        """
        self._remote, self._largest = remote, largest
        self._transport: asyncio.Transport | None = None
        self._rest, self._needed_bytes = bytearray(), 0
        """The beginning of a head, whose end has not come, and with how many bytes more of it can be said."""
        self._header = b""
        self._payload: bytearray | None = None
        self._payload_end = 0
        self._messages: deque[tuple[Message, int]] = deque()
        """With the bytes that each counts as."""
        self._queued_bytes = 0
        self._error: NetworkError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def take_over(self, transport: asyncio.Transport, early: bytes, *, is_over: bool) -> None:
        """Become the protocol of an open connection.

        Args:
            early: what has been read of it already.
            is_over: nothing more will come.
        """
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        transport.set_protocol(self)
        view = memoryview(early)
        while view and self._error is None:
            space = self.get_buffer(len(view))
            num_bytes = min(len(view), len(space))
            space[:num_bytes] = view[:num_bytes]
            self.buffer_updated(num_bytes)
            view = view[num_bytes:]
        if is_over or transport.is_closing():
            self.connection_lost(None)
        else:
            transport.resume_reading()

    # -- asyncio's side ----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._payload is not None:
            return memoryview(self._payload)[self._payload_end :]
        return _SPACE.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            return
        try:
            if self._payload is not None:
                self._payload_end += nbytes
                self._end_payload()
            else:
                self._read_heads(_SPACE.view[:nbytes])
        except NetworkError as error:
            self._end(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(StreamClosed(f"{self._remote} closed the stream"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_heads(self, came: memoryview) -> None:
        if self._rest:
            self._rest += came
            if len(self._rest) < self._needed_bytes:
                return
            came, self._rest = memoryview(self._rest), bytearray()
        start, self._needed_bytes = 0, PREFIX.size
        while self._payload is None and len(came) - start >= PREFIX.size:
            body = start + PREFIX.size
            header_bytes, payload_bytes = decode_prefix(bytes(came[start:body]), self._largest)
            if len(came) - body < header_bytes:
                self._needed_bytes = PREFIX.size + header_bytes
                break
            self._header = bytes(came[body : body + header_bytes])
            start = body + header_bytes
            here = min(payload_bytes, len(came) - start)
            self._payload = bytearray(payload_bytes)
            self._payload[:here] = came[start : start + here]
            self._payload_end = here
            start += here
            self._end_payload()
        self._rest = bytearray(came[start:])

    def _end_payload(self) -> None:
        """Hand on the message whose last byte has come, if it has."""
        payload = self._payload
        if payload is None or self._payload_end < len(payload):
            return
        self._payload = None
        num_bytes = MESSAGE_BYTES + len(self._header) + len(payload)
        self._messages.append((decode(self._header, payload), num_bytes))
        self._queued_bytes += num_bytes
        if self._queued_bytes > QUEUED_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def _end(self, error: NetworkError) -> None:
        if self._error is None:
            self._error = error.again()
            self._writable.set()
            self._wake()
            if isinstance(error, VersionMismatch):
                self._name_our_version()
        self.close()

    def _name_our_version(self) -> None:
        """Whoever speaks another version learns from any message of ours who has to upgrade."""
        with suppress(StreamClosed):
            self.write(Message("version"))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def has_message(self) -> bool:
        """Whether ``next`` would return at once."""
        return bool(self._messages)

    async def next(self) -> Message:
        """The next message.

        Raises:
            StreamClosed, BadMessage, VersionMismatch: nothing more will come.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error.again()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message, num_bytes = self._messages.popleft()
        was_full = self._queued_bytes > QUEUED_BYTES
        self._queued_bytes -= num_bytes
        if was_full and self._queued_bytes <= QUEUED_BYTES and self._transport is not None:
            self._transport.resume_reading()
        return message

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, message: Message) -> None:
        """Hand ``message`` to the connection; ``drain`` before the next one.

        Raises:
            StreamClosed: the connection is over.
        """
        if self._transport is None or self._transport.is_closing():
            raise StreamClosed(f"{self._remote} closed the stream")
        head, payload = encode(message)
        if payload:
            self._transport.writelines((head, payload))
        else:
            self._transport.write(head)

    @property
    def is_writable(self) -> bool:
        """Whether ``drain`` would return at once."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the kernel has taken most of what was written."""
        await self._writable.wait()

    def close(self) -> None:
        """Give the connection up; what was written may still arrive. Closing twice is fine."""
        if self._transport is not None:
            self._transport.close()
