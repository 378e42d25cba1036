"""How the libp2p daemon is started."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from collab.net import daemon_messages
from collab.net.daemon import _Daemon
from collab.net.daemon_messages import AT_ONCE, TOO_LONG, Answering, _varint, write_at_once
from collab.net.hivemind_parts import P2PDaemonError, PeerID, control, p2pd_pb2, read_pbmsg_safe


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
    daemon_messages.mend()
    assert control.write_pbmsg is write_at_once


class Line(asyncio.Transport):
    """To the daemon; what is said over it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []
        self.is_closed = False
        self.hears: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.hears = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closed:
            raise RuntimeError("as uvloop's")
        self.said.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Daemon:
    """Where hivemind's client gets its lasting connection from."""

    def __init__(self) -> None:
        self.line = Line()

    async def open_persistent_connection(self) -> tuple[None, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        unused = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        return None, asyncio.StreamWriter(self.line, unused, None, loop)

    def say(self, written: bytes, piece_bytes: int = 1 << 20) -> None:
        """So many at a time."""
        assert isinstance(self.line.hears, asyncio.Protocol)
        for start in range(0, len(written), piece_bytes):
            self.line.hears.data_received(written[start : start + piece_bytes])

    def heard(self) -> list[p2pd_pb2.PersistentConnectionRequest]:
        """What our side has said since it was asked last."""
        said, self.line.said = self.line.said, []
        return [p2pd_pb2.PersistentConnectionRequest.FromString(piece[2:]) for piece in map(one_byte_more, said)]


def one_byte_more(piece: bytes) -> bytes:
    """As if each length took two bytes."""
    return piece if piece[0] & 0x80 else b"\0" + piece


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Daemon, control.ControlClient]]:
    """hivemind's client, and the daemon's end of its lasting connection."""
    daemon_messages.mend()
    daemon = Daemon()
    client = await control.ControlClient.create(daemon, "/unix/x")
    await asyncio.sleep(0)
    try:
        yield daemon, client
    finally:
        client.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert daemon.line.is_closed


def encode(message: p2pd_pb2.StreamInfo) -> bytes:
    """As the daemon writes it."""
    content = message.SerializeToString()
    return _varint(len(content)) + content


def response(call: UUID, **what: object) -> bytes:
    """A message of the daemon's."""
    return encode(p2pd_pb2.PersistentConnectionResponse(callId=call.bytes, **what))


def answer(**what: bytes) -> dict[str, object]:
    return {"callUnaryResponse": p2pd_pb2.CallUnaryResponse(**what)}


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 100, 1 << 20])
def test_messages_of_the_daemon_are_taken_in_as_they_come_whatever_the_pieces(piece_bytes: int) -> None:
    async def main() -> None:
        async with connected() as (daemon, client):
            sizes = (0, 1, 100, 20_000)
            asking = [asyncio.create_task(client.call_unary_handler(PEER, "talk", b"")) for _ in sizes]
            await asyncio.sleep(0)
            calls = [UUID(bytes=message.callId) for message in daemon.heard()]
            said = (response(call, **answer(response=bytes(size))) for call, size in zip(calls, sizes, strict=True))
            daemon.say(b"".join(said), piece_bytes)
            assert await asyncio.gather(*asking) == [bytes(size) for size in sizes]

    asyncio.run(main())


PEER = PeerID(b"\0\1\2")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (answer(response=b"well"), b"well"),
        (answer(error=b"no \xff"), control.P2PHandlerError("no ")),
        ({"daemonError": p2pd_pb2.DaemonError(message="nobody there")}, P2PDaemonError("nobody there")),
        ({}, None),
    ],
)
def test_calls_end_as_the_daemon_says(what: dict[str, object], told: bytes | Exception | None) -> None:
    async def main() -> None:
        async with connected() as (daemon, client):
            asking = asyncio.create_task(client.call_unary_handler(PEER, "talk", b"well?"))
            await asyncio.sleep(0)
            (asked,) = daemon.heard()
            assert (asked.callUnary.peer, asked.callUnary.proto, asked.callUnary.data) == (b"\0\1\2", "talk", b"well?")
            daemon.say(response(UUID(bytes=asked.callId), **what))
            (ended,) = await asyncio.gather(asking, return_exceptions=True)
            assert (type(ended), str(ended)) == (type(told), str(told))
            assert not client._pending_calls

    asyncio.run(main())


def test_an_answer_that_comes_when_nobody_waits_any_more_ends_nothing() -> None:
    """hivemind's reader would end with the answer to a call that was cancelled in the same moment."""

    async def main() -> None:
        async with connected() as (daemon, client):
            asking = asyncio.create_task(client.call_unary_handler(PEER, "talk", b""))
            await asyncio.sleep(0)
            (asked,) = daemon.heard()
            asking.cancel()
            daemon.say(response(UUID(bytes=asked.callId), **answer(response=b"late")) * 2)
            with pytest.raises(asyncio.CancelledError):
                await asking
            daemon.say(response(uuid4(), **answer(response=b"nobody's")))
            (gone,) = daemon.heard()
            assert gone.HasField("cancel")
            assert not daemon.line.is_closed

    asyncio.run(main())


def question(call: UUID, protocol: str, data: bytes = b"?") -> bytes:
    """Of another peer."""
    asked = p2pd_pb2.CallUnaryRequest(peer=b"\0\1\2", proto=protocol, data=data)
    return response(call, requestHandling=asked)


@pytest.mark.parametrize("protocol", ["talk", *sorted(AT_ONCE)])
def test_questions_of_others_are_answered_and_what_fails_is_told(protocol: str) -> None:
    async def handler(data: bytes, peer: PeerID) -> bytes:
        if data == b"bad":
            raise ValueError("no")
        return data + peer.to_bytes()

    async def main() -> None:
        async with connected() as (daemon, client):
            client.unary_handlers[protocol] = handler
            calls = [uuid4(), uuid4()]
            daemon.say(question(calls[0], protocol) + question(calls[1], protocol, b"bad"))
            is_there_at_once = bool(daemon.line.said)
            await asyncio.sleep(0.01)
            told = daemon.heard()
            assert [UUID(bytes=message.callId) for message in told] == calls
            assert [message.unaryResponse.response for message in told] == [b"?\0\1\2", b""]
            assert [message.unaryResponse.error for message in told] == [b"", b"ValueError('no')"]
            assert is_there_at_once == (protocol in AT_ONCE)
            assert not client._handler_tasks

    asyncio.run(main())


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_that_is_longer_than_the_daemon_takes_is_an_error(more: int) -> None:
    """It would end the connection, and with it the peer."""

    async def main() -> None:
        async with connected() as (daemon, client):
            call, room = uuid4(), client.persistent_conn_max_msg_size
            frame = p2pd_pb2.PersistentConnectionRequest(
                callId=call.bytes, unaryResponse=p2pd_pb2.CallUnaryResponse(response=bytes(room))
            )
            size = 2 * room - frame.ByteSize() + more

            async def handler(_: bytes, __: PeerID) -> bytes:
                return bytes(size)

            client.unary_handlers[min(AT_ONCE)] = handler
            daemon.say(question(call, min(AT_ONCE)))
            (said,) = daemon.line.said
            assert (len(said) <= 1000) == bool(more)
            assert (TOO_LONG in said) == bool(more)

    asyncio.run(main())


def test_a_question_whose_asker_has_gone_is_not_answered() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def handler(_: bytes, __: PeerID) -> bytes:
            begun.set()
            try:
                await asyncio.sleep(1000.0)
            finally:
                ended.set()
            return b""

        async with connected() as (daemon, client):
            client.unary_handlers["talk"] = handler
            call = uuid4()
            daemon.say(question(call, "talk"))
            await begun.wait()
            daemon.say(response(call, cancel=p2pd_pb2.Cancel()))
            await ended.wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not client._handler_tasks
            assert not daemon.heard()

    asyncio.run(main())


def test_a_handler_that_waits_is_none_to_be_asked_at_once() -> None:
    async def handler(_: bytes, __: PeerID) -> bytes:
        await asyncio.sleep(0)
        return b""

    async def main() -> None:
        async with connected() as (daemon, client):
            (protocol, *_) = sorted(AT_ONCE)
            client.unary_handlers[protocol] = handler
            with pytest.raises(RuntimeError, match="waits for something"):
                daemon.say(question(uuid4(), protocol))

    asyncio.run(main())


def test_a_daemon_that_says_nonsense_is_told_as_such_and_one_that_has_gone_is_noticed() -> None:
    async def main() -> None:
        async with connected() as (daemon, client):
            with pytest.raises(ValueError, match="no message"):
                daemon.say(b"\xff" * 9)
            assert isinstance(daemon.line.hears, asyncio.Protocol)
            daemon.line.hears.connection_lost(None)
            await client._read_task
            assert daemon.line.is_closed
            asking = asyncio.create_task(client.call_unary_handler(PEER, "talk", b""))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not daemon.heard()

    asyncio.run(main())


def test_other_connections_are_read_as_ever() -> None:
    """Behind a message on another connection there is a stream's own content, of which nothing may be taken."""

    async def main() -> None:
        message = p2pd_pb2.PersistentConnectionResponse(callId=bytes(16))
        other = asyncio.StreamReader()
        other.feed_data(encode(message) + b"content")
        await control.read_pbmsg_safe(other, p2pd_pb2.PersistentConnectionResponse())
        assert await other.readexactly(7) == b"content"

    asyncio.run(main())


def test_a_peers_id_is_made_once() -> None:
    daemon_messages.mend()
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
