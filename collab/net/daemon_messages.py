"""Messages between a peer and its libp2p daemon: what hivemind does with each of them, for less.

A backbone that 64 peers talk to spends most of its processor time here (docs/benchmarks.md, "All of a backbone that 64
peers talk to"). Importing this changes hivemind's client of the daemon for the whole process.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

from collab.net.hivemind_parts import PeerID, control

CHUNK_BYTES = 1 << 16
"""Read at a time; most messages have some hundred."""
LONGEST_LENGTH = 5
"""Bytes that say how long a message is."""
KNOWN_PEERS = 256
"""Whose ids are kept as text, too: each is some hundred bytes, and takes as long to encode as to look at a record."""


async def write_at_once(daemon: asyncio.StreamWriter, message: Any) -> None:
    """In one piece; ``write_pbmsg`` of hivemind writes the length first, and the daemon wakes up for each piece."""
    content = message.SerializeToString()
    daemon.write(_varint(len(content)) + content)
    await daemon.drain()


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; each but the last has its eighth bit set (protobuf's encoding)."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


class Messages:
    """Of the daemon, over the one connection that lasts, as they come; hivemind reads each one's length byte by byte.

    Nobody else reads that connection: what has come of the next message is kept here.
    """

    def __init__(self, daemon: asyncio.StreamReader) -> None:
        self._daemon, self._come = daemon, bytearray()

    async def take(self, message: Any) -> None:
        """Fill ``message`` with the next one.

        Raises:
            asyncio.IncompleteReadError: the connection has ended.
            ValueError: what comes is no length of a message.
        """
        while (whole := _whole(self._come)) is None:
            if not (piece := await self._daemon.read(CHUNK_BYTES)):
                raise asyncio.IncompleteReadError(bytes(self._come), None)
            self._come += piece
        start, stop = whole
        message.ParseFromString(bytes(self._come[start:stop]))
        del self._come[:stop]


def _whole(come: bytearray) -> tuple[int, int] | None:
    """Where the first message begins and ends; None: not all of it is there."""
    length = 0
    for place, byte in enumerate(come[:LONGEST_LENGTH]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (place + 1, place + 1 + length) if len(come) > place + length else None
    if len(come) >= LONGEST_LENGTH:
        raise ValueError(f"the libp2p daemon says something that is no message: {bytes(come[:LONGEST_LENGTH])!r}")
    return None


class Answering(dict[UUID, asyncio.Task[None]]):
    """Tasks that answer questions of other peers, by the question. hivemind keeps for ever those that are cancelled,
    as when whoever asked has gone: with the question, the error and all that its traceback holds, 10 KB each.
    """

    def __setitem__(self, question: UUID, task: asyncio.Task[None]) -> None:
        super().__setitem__(question, task)
        task.add_done_callback(lambda _: self.pop(question, None))


def _taking(read: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
    async def take(stream: asyncio.StreamReader | Messages, message: Any) -> None:
        await (stream.take(message) if isinstance(stream, Messages) else read(stream, message))

    return take


def _listening(listen: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
    async def listen_to_messages(client: Any, daemon: asyncio.StreamReader) -> None:
        await listen(client, Messages(daemon))

    return listen_to_messages


control.write_pbmsg = write_at_once
control.read_pbmsg_safe = _taking(control.read_pbmsg_safe)
control.ControlClient._read_from_persistent_conn = _listening(control.ControlClient._read_from_persistent_conn)
control.PeerID = lru_cache(KNOWN_PEERS)(PeerID)
