"""How the libp2p daemon is started."""

import asyncio
from uuid import UUID, uuid4

import pytest

from collab.net.daemon import _Daemon
from collab.net.daemon_messages import Answering, Messages, _varint, write_at_once
from collab.net.hivemind_parts import PeerID, control, p2pd_pb2, read_pbmsg_safe


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


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 100, 1 << 20])
def test_messages_of_the_daemon_are_taken_in_as_they_come_whatever_the_pieces(piece_bytes: int) -> None:
    async def main() -> None:
        sent = [p2pd_pb2.StreamInfo(peer=b"", addr=b"", proto="x" * length) for length in (0, 1, 130, 0, 20_000)]
        written = b"".join(encode(message) for message in sent)
        stream = asyncio.StreamReader()

        async def come() -> None:
            for start in range(0, len(written), piece_bytes):
                stream.feed_data(written[start : start + piece_bytes])
                await asyncio.sleep(0)
            stream.feed_eof()

        coming, messages = asyncio.create_task(come()), Messages(stream)
        for message in sent:
            heard = p2pd_pb2.StreamInfo(peer=b"", addr=b"", proto="of the message before")
            await control.read_pbmsg_safe(messages, heard)
            assert heard == message
        with pytest.raises(asyncio.IncompleteReadError):
            await control.read_pbmsg_safe(messages, heard)
        await coming

    asyncio.run(main())


def encode(message: p2pd_pb2.StreamInfo) -> bytes:
    """As the daemon writes it."""
    content = message.SerializeToString()
    return _varint(len(content)) + content


def test_a_daemon_that_ends_in_a_message_or_says_nonsense_is_told_as_such() -> None:
    async def main() -> None:
        for written, error in ((b"\x05ab", asyncio.IncompleteReadError), (b"\xff" * 9, ValueError)):
            stream = asyncio.StreamReader()
            stream.feed_data(written)
            stream.feed_eof()
            with pytest.raises(error):
                await Messages(stream).take(p2pd_pb2.StreamInfo())

    asyncio.run(main())


def test_the_lasting_connection_is_read_so_and_others_as_ever() -> None:
    """Behind a message on another connection there is a stream's own content, of which nothing may be taken."""

    async def main() -> None:
        message = p2pd_pb2.PersistentConnectionResponse(callId=bytes(16))
        client = control.ControlClient(None, _initialized_with_create=True)
        client._pending_calls[UUID(bytes=bytes(16))] = waiting = asyncio.get_running_loop().create_future()
        stream = asyncio.StreamReader()
        stream.feed_data(encode(message) * 2)
        stream.feed_eof()
        stream.readexactly = None  # type: ignore[method-assign,assignment]  # hivemind would call it for each byte
        with pytest.raises(asyncio.InvalidStateError):  # the second answer to one call: both were taken in
            await client._read_from_persistent_conn(stream)
        assert waiting.done()
        other = asyncio.StreamReader()
        other.feed_data(encode(message) + b"content")
        await control.read_pbmsg_safe(other, p2pd_pb2.PersistentConnectionResponse())
        assert await other.readexactly(7) == b"content"

    asyncio.run(main())


def test_a_peers_id_is_made_once() -> None:
    assert control.PeerID(b"\0\1\2") is control.PeerID(b"\0\1\2") == PeerID(b"\0\1\2")


def test_questions_whose_askers_have_gone_are_forgotten() -> None:
    async def main() -> None:
        answering, question = Answering(), uuid4()
        answering[question] = asyncio.create_task(asyncio.sleep(1000.0))
        await asyncio.sleep(0)
        assert question in answering
        answering[question].cancel()
        await asyncio.sleep(0.01)
        assert not answering

    asyncio.run(main())
