"""Frames: messages come out whole however the bytes are cut, and what is hostile ends the stream for its reader."""

import asyncio
import gc
import itertools
import time
import tracemalloc
import weakref
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from collab.errors import BadMessage, StreamClosed, TooLarge, VersionMismatch
from collab.net.frames import MESSAGE_BYTES, QUEUED_BYTES, READ_BYTES, FrameProtocol
from collab.net.wire import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX,
    PROTOCOL_VERSION,
    Largest,
    Message,
    decode_prefix,
)
from tests.fakes import run
from tests.frames import MESSAGES, check_equal, connected, feed, on_the_wire, take

HOSTILE = {
    "magic": (b"GET / HTTP/1.1\r\n\r\n", BadMessage),
    "version": (PREFIX.pack(b"CLB", PROTOCOL_VERSION + 1, 10, 0), VersionMismatch),
    "header too long": (PREFIX.pack(b"CLB", PROTOCOL_VERSION, MAX_HEADER_BYTES + 1, 0), BadMessage),
    "payload too long": (PREFIX.pack(b"CLB", PROTOCOL_VERSION, 1, MAX_PAYLOAD_BYTES + 1), BadMessage),
    "header is no msgpack": (PREFIX.pack(b"CLB", PROTOCOL_VERSION, 3, 0) + b"\xc1\xc1\xc1", BadMessage),
    "no kind": (PREFIX.pack(b"CLB", PROTOCOL_VERSION, 1, 0) + b"\x80", BadMessage),
}


# -- however the bytes are cut -----------------------------------------------------------------------------------------


def test_messages_cut_at_any_byte_come_out_whole() -> None:
    data = on_the_wire(*MESSAGES)

    async def main() -> None:
        for cut in range(len(data) + 1):
            frames, _ = connected()
            feed(frames, data[:cut])
            feed(frames, data[cut:])
            check_equal(await take(frames, len(MESSAGES)), MESSAGES)

    run(main())


@given(cuts=st.lists(st.integers(0, 5 * len(on_the_wire(*MESSAGES))), max_size=40))
def test_messages_in_any_number_of_pieces_come_out_whole(cuts: list[int]) -> None:
    data = on_the_wire(*MESSAGES * 5)
    edges = [0, *sorted(cuts), len(data)]

    async def main() -> None:
        frames, _ = connected()
        for start, stop in itertools.pairwise(edges):
            feed(frames, data[start:stop])
        check_equal(await take(frames, 5 * len(MESSAGES)), MESSAGES * 5)

    run(main())


def test_one_byte_at_a_time_is_enough() -> None:
    async def main() -> None:
        frames, _ = connected()
        for byte in on_the_wire(*MESSAGES):
            feed(frames, bytes([byte]))
        check_equal(await take(frames, len(MESSAGES)), MESSAGES)

    run(main())


def test_many_small_messages_come_out_of_one_read() -> None:
    async def main() -> None:
        many = [Message("ack", {"bytes": number, "delay_s": 0.0}) for number in range(1000)]
        frames, _ = connected()
        data = on_the_wire(*many)
        assert len(data) < READ_BYTES
        space = frames.get_buffer(-1)
        space[: len(data)] = data
        frames.buffer_updated(len(data))
        check_equal(await take(frames, len(many)), many)

    run(main())


@pytest.mark.parametrize("shorter_bytes", [200, 1000, READ_BYTES - 100])
def test_a_header_as_long_as_what_is_read_at_once_is_read_whole(shorter_bytes: int) -> None:
    async def main() -> None:
        long = Message("table", {"names": "x" * (READ_BYTES - shorter_bytes)}, b"payload")
        frames, _ = connected()
        feed(frames, on_the_wire(MESSAGES[1], long, MESSAGES[1]))
        check_equal(await take(frames, 3), [MESSAGES[1], long, MESSAGES[1]])

    run(main())


def test_streams_that_wait_need_no_memory_and_do_not_mix_up_what_comes() -> None:
    """All are read through one buffer: what one has only begun to read must not be lost when others read."""
    data = on_the_wire(*MESSAGES)

    async def main() -> None:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        streams = [connected()[0] for _ in range(200)]
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert used < 200 * READ_BYTES / 10
        for start in range(0, len(data), 7):
            for frames in streams[:3]:
                feed(frames, data[start : start + 7])
        for frames in streams[:3]:
            check_equal(await take(frames, len(MESSAGES)), MESSAGES)

    run(main())


def test_a_long_header_that_comes_in_small_pieces_is_not_read_again_with_each() -> None:
    """In 65,536 pieces, of which each would copy half a megabyte: 32 gigabytes."""
    message = Message("table", {"names": "x" * (MAX_HEADER_BYTES - 100)})
    data, piece = on_the_wire(message), 16

    async def main() -> None:
        frames, _ = connected()
        began_s = time.process_time()
        for start in range(0, len(data), piece):
            feed(frames, data[start : start + piece])
        assert time.process_time() - began_s < 1.0
        check_equal(await take(frames, 1), [message])

    run(main())


@pytest.mark.parametrize("num_bytes", [0, 1, READ_BYTES, QUEUED_BYTES + 1, MAX_PAYLOAD_BYTES])
def test_payloads_of_every_allowed_size_arrive(num_bytes: int) -> None:
    async def main() -> None:
        message = Message("part", {}, bytes(num_bytes))
        frames, _ = connected()
        feed(frames, on_the_wire(message, MESSAGES[0]))
        check_equal(await take(frames, 2), [message, MESSAGES[0]])

    run(main())


def test_what_was_read_before_the_connection_was_taken_over_comes_first() -> None:
    data = on_the_wire(*MESSAGES)

    async def main() -> None:
        for cut in range(len(data) + 1):
            frames, connection = connected(data[:cut])
            assert not connection.is_shut
            feed(frames, data[cut:])
            check_equal(await take(frames, len(MESSAGES)), MESSAGES)

    run(main())


def test_a_connection_that_was_over_before_it_was_taken_over_still_gives_what_came() -> None:
    async def main() -> None:
        frames, _ = connected(on_the_wire(*MESSAGES), is_over=True)
        check_equal(await take(frames, len(MESSAGES)), MESSAGES)
        with pytest.raises(StreamClosed):
            await frames.next()

    run(main())


# -- who waits ---------------------------------------------------------------------------------------------------------


def test_reading_pauses_while_nobody_takes_messages_and_goes_on_when_they_do() -> None:
    async def main() -> None:
        large = Message("part", {}, bytes(QUEUED_BYTES // 4 - 2 * MESSAGE_BYTES))
        frames, connection = connected()
        feed(frames, on_the_wire(*[large] * 4))
        assert not connection.is_paused
        feed(frames, on_the_wire(large))
        assert connection.is_paused
        await frames.next()
        assert not connection.is_paused
        check_equal(await take(frames, 4), [large] * 4)

    run(main())


@pytest.mark.parametrize(
    "message", [Message("empty"), Message("gossip", {"words": "x" * 10_000})], ids=["empty", "header only"]
)
def test_messages_without_payload_count_too_so_that_nobody_fills_the_memory_with_them(message: Message) -> None:
    async def main() -> None:
        frames, connection = connected()
        came = 0
        while not connection.is_paused and came <= QUEUED_BYTES // MESSAGE_BYTES:
            feed(frames, on_the_wire(message))
            came += 1
        assert connection.is_paused
        assert came * len(on_the_wire(message)) <= QUEUED_BYTES + len(on_the_wire(message))
        for _ in range(came):
            await frames.next()
        assert not connection.is_paused

    run(main())


NARROW = Largest(header_bytes=100, payload_bytes=1000)


@pytest.mark.parametrize(("header_bytes", "payload_bytes"), [(101, 0), (50, 1001), (MAX_HEADER_BYTES, 0)])
def test_what_is_larger_than_its_protocol_needs_is_refused_before_a_byte_of_it_is_read(
    header_bytes: int, payload_bytes: int
) -> None:
    async def main() -> None:
        frames, connection = connected(largest=NARROW)
        feed(frames, PREFIX.pack(b"CLB", PROTOCOL_VERSION, header_bytes, payload_bytes))
        assert connection.is_shut
        with pytest.raises(TooLarge):
            await frames.next()

    run(main())


def test_what_is_as_large_as_its_protocol_needs_comes_through() -> None:
    async def main() -> None:
        message = Message("part", {}, bytes(1000))
        frames, _ = connected(largest=NARROW)
        feed(frames, on_the_wire(message))
        check_equal(await take(frames, 1), [message])

    run(main())


def test_whoever_speaks_another_version_is_told_ours() -> None:
    async def main() -> None:
        frames, connection = connected()
        feed(frames, HOSTILE["version"][0])
        assert connection.is_shut
        assert decode_prefix(connection.written[: PREFIX.size])[1] == 0
        silent, connection = connected()
        feed(silent, HOSTILE["magic"][0])
        assert connection.written == b""

    run(main())


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_bytes_end_the_stream_for_the_reader_who_waits(hostile: str) -> None:
    data, error = HOSTILE[hostile]

    async def main() -> None:
        frames, connection = connected()
        waiting = asyncio.create_task(frames.next())
        await asyncio.sleep(0)
        feed(frames, data)
        with pytest.raises(error):
            await waiting
        with pytest.raises(error):
            await frames.next()
        assert connection.is_shut

    run(main())


def test_a_stream_that_is_over_does_not_hold_who_read_from_it() -> None:
    """Its error would, through the traceback, if readers got that very one; and a round reads with its vectors."""

    class Vector:
        pass

    async def read(frames: FrameProtocol, vector: Vector) -> None:
        await frames.next()

    async def main() -> None:
        frames, _ = connected()
        feed(frames, HOSTILE["magic"][0])
        vector = Vector()
        held = weakref.ref(vector)
        with suppress(BadMessage):
            await read(frames, vector)
        del vector
        assert held() is None

    run(main())


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_comes_after_hostile_bytes_is_read_and_nothing_comes_twice(hostile: str) -> None:
    data, error = HOSTILE[hostile]

    async def main() -> None:
        frames, _ = connected()
        for byte in on_the_wire(MESSAGES[1])[:5]:
            feed(frames, bytes([byte]))
        feed(frames, on_the_wire(MESSAGES[1])[5:] + data)
        feed(frames, on_the_wire(*MESSAGES))
        check_equal(await take(frames, 1), [MESSAGES[1]])
        with pytest.raises(error):
            await frames.next()

    run(main())


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_came_before_hostile_bytes_is_not_lost(hostile: str) -> None:
    data, error = HOSTILE[hostile]

    async def main() -> None:
        frames, _ = connected(on_the_wire(*MESSAGES) + data)
        check_equal(await take(frames, len(MESSAGES)), MESSAGES)
        with pytest.raises(error):
            await frames.next()

    run(main())


def test_a_reader_that_waits_learns_of_the_end() -> None:
    async def main() -> None:
        for half in (b"", on_the_wire(MESSAGES[1])[:-1]):
            frames, _ = connected()
            waiting = asyncio.create_task(frames.next())
            await asyncio.sleep(0)
            feed(frames, half)
            frames.connection_lost(ConnectionResetError())
            with pytest.raises(StreamClosed):
                await waiting

    run(main())


def test_a_reader_that_gives_up_loses_no_message() -> None:
    async def main() -> None:
        frames, _ = connected()
        waiting = asyncio.create_task(frames.next())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        feed(frames, on_the_wire(*MESSAGES))
        check_equal(await take(frames, len(MESSAGES)), MESSAGES)

    run(main())


def test_a_writer_waits_until_the_connection_has_room_or_is_over() -> None:
    async def main() -> None:
        for end in (FrameProtocol.resume_writing, lambda frames: frames.connection_lost(None)):
            frames, _ = connected()
            assert frames.is_writable
            await frames.drain()
            frames.pause_writing()
            waiting = asyncio.create_task(frames.drain())
            await asyncio.sleep(0)
            assert not waiting.done()
            end(frames)
            await waiting

    run(main())


def test_nothing_is_written_to_a_connection_that_is_over() -> None:
    async def main() -> None:
        frames, connection = connected()
        frames.write(MESSAGES[1])
        assert connection.written == on_the_wire(MESSAGES[1])
        frames.close()
        frames.close()
        with pytest.raises(StreamClosed):
            frames.write(MESSAGES[1])

    run(main())
