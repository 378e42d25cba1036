"""How the libp2p daemon is started."""

import asyncio
from uuid import uuid4

import pytest

from collab.net.daemon import _Answering, _Daemon, write_at_once
from collab.net.hivemind_parts import control, p2pd_pb2, read_pbmsg_safe


def command() -> list[str]:
    """What is before the daemon's own arguments."""
    made = _Daemon._make_process_args("/p2pd", listen="/unix/x")
    return made[: made.index("/p2pd")]


def test_it_uses_one_processor_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    assert command()[1] == "GOMAXPROCS=1"
    monkeypatch.setenv("GOMAXPROCS", "4")
    assert not any(word.startswith("GOMAXPROCS") for word in command())


def test_it_has_a_session_of_its_own() -> None:
    assert command()[-1].endswith("setsid")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16_383, 16_384, 5_000_000])
def test_a_message_to_the_daemon_is_one_piece_that_hivemind_reads(number: int) -> None:
    class Pieces:
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, piece: bytes) -> None:
            self.written.append(piece)

        async def drain(self) -> None:
            pass

    async def main() -> None:
        pieces, heard = Pieces(), p2pd_pb2.StreamInfo()
        sent = p2pd_pb2.StreamInfo(peer=b"", addr=b"", proto="x" * number)
        await write_at_once(pieces, sent)
        (piece,) = pieces.written
        stream = asyncio.StreamReader()
        stream.feed_data(piece)
        stream.feed_eof()
        await read_pbmsg_safe(stream, heard)
        assert heard == sent
        assert not await stream.read()

    asyncio.run(main())
    assert control.write_pbmsg is write_at_once


def test_questions_whose_askers_have_gone_are_forgotten() -> None:
    async def main() -> None:
        answering, question = _Answering(), uuid4()
        answering[question] = asyncio.create_task(asyncio.sleep(1000.0))
        await asyncio.sleep(0)
        assert question in answering
        answering[question].cancel()
        await asyncio.sleep(0.01)
        assert not answering

    asyncio.run(main())
