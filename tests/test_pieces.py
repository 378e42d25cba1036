"""Bytes over a stream in pieces."""

import random

import pytest

from collab.errors import BadMessage
from collab.net.base import Stream
from collab.net.pieces import PIECE_BYTES, receive_bytes, send_bytes
from collab.net.wire import Message
from collab.types import PeerId
from tests.fakes import FakeNetwork, run


@pytest.mark.parametrize("num_bytes", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7])
def test_any_number_of_bytes_arrives_whole_and_in_pieces(num_bytes: int) -> None:
    data = random.Random(num_bytes).randbytes(num_bytes)

    async def main() -> None:
        async with FakeNetwork() as network:

            async def serve(stream: Stream) -> None:
                await send_bytes(stream, data, timeout_s=1)

            await network.join("them").serve("get", serve)
            stream = await network.join("us").open(PeerId("them"), "get", timeout_s=1)
            assert await receive_bytes(stream, num_bytes, timeout_s=1) == data
            sizes = [memoryview(message.payload).nbytes for *_, message in network.sent]
            assert all(size <= PIECE_BYTES for size in sizes)
            assert len(sizes) == -(-num_bytes // PIECE_BYTES)

    run(main())


@pytest.mark.parametrize(
    "piece",
    [
        Message("lump", {"start": 0}, bytes(5)),
        Message("piece", {}, bytes(5)),
        Message("piece", {"start": 1}, bytes(5)),
        Message("piece", {"start": "0"}, bytes(5)),
        Message("piece", {"start": 0}, b""),
        Message("piece", {"start": 0}, bytes(4)),
        Message("piece", {"start": 0}, bytes(6)),
    ],
)
def test_anything_but_the_next_piece_is_refused(piece: Message) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def serve(stream: Stream) -> None:
                await stream.send(piece, timeout_s=1)

            await network.join("them").serve("get", serve)
            stream = await network.join("us").open(PeerId("them"), "get", timeout_s=1)
            with pytest.raises(BadMessage):
                await receive_bytes(stream, 5, timeout_s=1)

    run(main())
