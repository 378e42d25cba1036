"""Frames on a connection that a test plays."""

import asyncio

from collab.net.frames import FrameProtocol
from collab.net.wire import Largest, Message, encode

MESSAGES = [
    Message("round", {"round_id": "r"}),
    Message("part", {"index": 0, "sent_s": 1.5}, b"payload"),
    Message("part", {"index": 1, "sent_s": 2.5}, bytes(range(256)) * 3),
    Message("ack", {"bytes": 7, "delay_s": 0.5}),
]


class Connection(asyncio.Transport):
    """What a protocol sees of its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = self.is_shut = False
        self.written = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = high

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_shut

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_shut = True


def on_the_wire(*messages: Message) -> bytes:
    return b"".join(head + bytes(payload) for head, payload in map(encode, messages))


def connected(
    early: bytes = b"", *, is_over: bool = False, largest: Largest | None = None
) -> tuple[FrameProtocol, Connection]:
    frames, connection = FrameProtocol("peer", largest), Connection()
    frames.take_over(connection, early, is_over=is_over)
    return frames, connection


def feed(frames: FrameProtocol, data: bytes) -> None:
    """As the event loop does: as many bytes at once as the protocol has room for."""
    view = memoryview(data)
    while view:
        space = frames.get_buffer(-1)
        assert len(space) > 0
        num_bytes = min(len(space), len(view))
        space[:num_bytes] = view[:num_bytes]
        frames.buffer_updated(num_bytes)
        view = view[num_bytes:]


async def take(frames: FrameProtocol, count: int) -> list[Message]:
    return [await frames.next() for _ in range(count)]


def check_equal(came: list[Message], sent: list[Message]) -> None:
    assert [(message.kind, message.fields, bytes(message.payload)) for message in came] == [
        (message.kind, message.fields, bytes(message.payload)) for message in sent
    ]
