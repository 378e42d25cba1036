"""Messages between a peer and its libp2p daemon: what hivemind does with each of them, for less.

A backbone that 64 peers talk to spends most of its processor time here (docs/benchmarks.md, "All of a backbone that 64
peers talk to"): messages come one by one, and each turn of the event loop that one takes costs as much as half a look
at a signature.
"""

import asyncio
from contextlib import closing
from functools import cache
from typing import Any
from uuid import UUID

from collab.lately import kept_lately
from collab.net.hivemind_parts import P2PDaemonError, PeerID, control, p2pd_pb2

LONGEST_LENGTH = 5
"""Bytes that say how long a message is."""
KNOWN_PEERS = 256
"""Whose ids are kept as text, too: each is some hundred bytes, and takes as long to encode as to look at a record."""
AT_ONCE = frozenset({"DHTProtocol.rpc_store", "DHTProtocol.rpc_find"})
"""Questions whose answers wait for nothing (``kept_records``), so that they need no task."""
TOO_LONG = b"the answer is longer than a message may be: ask for less at once"


async def write_at_once(daemon: asyncio.StreamWriter, message: Any) -> None:
    """In one piece; ``write_pbmsg`` of hivemind writes the length first, and the daemon wakes up for each piece."""
    daemon.write(_framed(message))
    await daemon.drain()


def _framed(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; each but the last has its eighth bit set (protobuf's encoding)."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


class Answering(dict[UUID, asyncio.Task[None]]):
    """Tasks that answer questions of other peers, by the question. hivemind keeps for ever those that are cancelled,
    as when whoever asked has gone: with the question, the error and all that its traceback holds, 10 KB each.
    """

    def __setitem__(self, question: UUID, task: asyncio.Task[None]) -> None:
        super().__setitem__(question, task)
        task.add_done_callback(lambda _: self.pop(question, None))


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


class Connection(asyncio.Protocol):
    """The one to the daemon that lasts: what both have to say goes over it, piece by piece.

    hivemind reads each message's length byte by byte in one task, answers in another, and writes in a third one.
    """

    def __init__(self, client: Any, daemon: asyncio.StreamWriter) -> None:
        """
        Args:
            client: hivemind's ``ControlClient``, whose handlers answer, and whose calls wait for answers.
            daemon: with the transport that is ours from now on; nothing of the daemon's may be unread.
        """
        self._client, self._daemon, self._come = client, daemon, bytearray()
        self._has_ended = asyncio.get_running_loop().create_future()
        daemon.transport.set_protocol(self)

    async def stay(self) -> None:
        """Until it ends, which it does with this."""
        with closing(self._daemon):
            await self._has_ended

    async def put(self, message: Any) -> None:
        """Say something. Waits for nothing: what a slow daemon has not taken is kept, as in a queue of hivemind's."""
        self._say(message)

    def _say(self, message: Any) -> None:
        if not self._daemon.is_closing():  # else nobody hears it any more
            self._daemon.write(_framed(message))

    def data_received(self, data: bytes) -> None:
        """
        Raises:
            ValueError: what comes is no message; the connection ends.
        """
        self._come += data
        while (place := _whole(self._come)) is not None:
            start, stop = place
            message = p2pd_pb2.PersistentConnectionResponse.FromString(bytes(self._come[start:stop]))
            del self._come[:stop]
            self._hear(message)

    def connection_lost(self, _: Exception | None) -> None:
        if not self._has_ended.done():
            self._has_ended.set_result(None)

    def _hear(self, message: Any) -> None:
        if message.HasField("requestHandling"):
            self._answer(message.callId, message.requestHandling)
            return
        call = UUID(bytes=message.callId)
        if message.HasField("cancel"):
            if answering := self._client._handler_tasks.get(call):
                answering.cancel()
        elif (waiting := self._client._pending_calls.get(call)) is not None and not waiting.done():
            _end(waiting, message)

    def _answer(self, call: bytes, question: Any) -> None:
        if question.proto in AT_ONCE and question.proto in self._client.unary_handlers:
            answer = p2pd_pb2.PersistentConnectionRequest(callId=call, unaryResponse=self._answered(question))
            if answer.ByteSize() > self._client.persistent_conn_max_msg_size:  # the daemon would end the connection
                answer.unaryResponse.CopyFrom(p2pd_pb2.CallUnaryResponse(error=TOO_LONG))
            self._say(answer)
            return
        answering = asyncio.create_task(self._client._handle_persistent_request(UUID(bytes=call), question))
        self._client._handler_tasks[UUID(bytes=call)] = answering

    def _answered(self, question: Any) -> Any:
        """By a handler that does not wait: its first step is its last."""
        try:
            self._client.unary_handlers[question.proto](question.data, control.PeerID(question.peer)).send(None)
        except StopIteration as answered:
            return p2pd_pb2.CallUnaryResponse(response=answered.value)
        except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it is
            return p2pd_pb2.CallUnaryResponse(error=repr(error).encode())
        raise RuntimeError(f"a handler of {question.proto} waits for something")


def _end(waiting: asyncio.Future[bytes | None], message: Any) -> None:
    """A call of ours, with what ``message`` says."""
    answer = message.callUnaryResponse
    if message.HasField("callUnaryResponse") and answer.HasField("error"):
        waiting.set_exception(control.P2PHandlerError(answer.error.decode(errors="ignore")))
    elif message.HasField("callUnaryResponse"):
        waiting.set_result(answer.response)
    elif message.HasField("daemonError"):
        waiting.set_exception(P2PDaemonError(message.daemonError.message))
    else:
        waiting.set_result(None)


async def _connect(client: Any) -> None:
    """The daemon says nothing until it is asked something, so there is nothing to read yet."""
    _, daemon = await client.daemon_connector.open_persistent_connection()
    client._pending_messages = connection = Connection(client, daemon)
    client._handler_tasks = Answering()
    client._read_task = asyncio.create_task(connection.stay())


@cache
def mend() -> None:
    """Change hivemind's client of the daemon for the whole process. Before a daemon is started."""
    control.write_pbmsg = write_at_once
    control.ControlClient._ensure_persistent_conn = _connect
    control.PeerID = kept_lately(KNOWN_PEERS)(PeerID)
