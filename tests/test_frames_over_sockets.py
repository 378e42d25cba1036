"""Frames over real sockets, in real time: both ends are ours."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from collab.errors import NetworkError
from collab.net.frames import READ_BYTES, FrameProtocol
from collab.net.wire import MAX_PAYLOAD_BYTES, Message
from tests.frames import MESSAGES, check_equal, on_the_wire, take


def over_a_socket(talk: Callable[[FrameProtocol, FrameProtocol], Awaitable[None]]) -> None:
    """On the event loop that peers run on, and on Python's own."""

    async def main() -> None:
        ends = [await open_frames(end) for end in socket.socketpair()]
        try:
            async with asyncio.timeout(60.0):
                await talk(ends[0], ends[1])
        finally:
            for frames in ends:
                frames.close()
            await asyncio.sleep(0)

    uvloop.run(main())
    asyncio.run(main())


async def open_frames(end: socket.socket) -> FrameProtocol:
    frames = FrameProtocol("peer")
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=end)
    transport.pause_reading()
    frames.take_over(transport, b"", is_over=False)
    return frames


def test_both_directions_of_a_socket_carry_messages_at_once() -> None:
    sizes = [0, 1, 1000, READ_BYTES, MAX_PAYLOAD_BYTES, 3, 0, 1 << 20]
    messages = [Message("part", {"index": index}, bytes([index]) * size) for index, size in enumerate(sizes)]

    async def send(frames: FrameProtocol) -> None:
        for message in messages:
            frames.write(message)
            await frames.drain()

    async def talk(ours: FrameProtocol, theirs: FrameProtocol) -> None:
        _, _, here, there = await asyncio.gather(
            send(ours), send(theirs), take(ours, len(messages)), take(theirs, len(messages))
        )
        check_equal(here, messages)
        check_equal(there, messages)

    over_a_socket(talk)


def test_streams_whose_heads_come_in_pieces_and_in_turns_do_not_get_each_others() -> None:
    """All read through one buffer; each piece is sent when the one before it of another stream has just come."""
    messages = [[Message("part", {"stream": stream, "index": i}, bytes(40)) for i in range(20)] for stream in range(4)]

    async def main() -> None:
        pairs = [socket.socketpair() for _ in messages]
        readers = [await open_frames(pair[0]) for pair in pairs]
        data = [on_the_wire(*ours) for ours in messages]
        for start in range(0, max(map(len, data)), 5):
            for (_, there), ours in zip(pairs, data, strict=True):
                there.sendall(ours[start : start + 5])
            await asyncio.sleep(0)
        for frames, ours in zip(readers, messages, strict=True):
            check_equal(await take(frames, len(ours)), ours)
            frames.close()
        for _, there in pairs:
            there.close()

    uvloop.run(asyncio.wait_for(main(), 60.0))
    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_a_sender_over_a_socket_waits_for_a_reader_and_then_everything_comes() -> None:
    message = Message("part", {}, bytes(1 << 20))

    async def talk(ours: FrameProtocol, theirs: FrameProtocol) -> None:
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                for _ in range(100):
                    ours.write(message)
                    sent += 1
                    await ours.drain()
        assert sent < 10
        check_equal(await take(theirs, sent), [message] * sent)

    over_a_socket(talk)


def test_closing_one_end_of_a_socket_wakes_the_reader_of_the_other() -> None:
    async def talk(ours: FrameProtocol, theirs: FrameProtocol) -> None:
        ours.write(MESSAGES[1])
        ours.close()
        check_equal(await take(theirs, 1), [MESSAGES[1]])
        with pytest.raises(NetworkError):
            await theirs.next()

    over_a_socket(talk)
