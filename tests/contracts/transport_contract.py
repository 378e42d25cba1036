"""What every implementation of ``Transport`` must do. Join it in three lines::

    class TestMyTransport(TransportContract):
        def run(self, body, *, peers=2, clients=0): ...
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from collab.errors import NetworkError, PeerUnreachable, StreamClosed, TimedOut
from collab.net.base import Stream, Transport
from collab.net.wire import MAX_PAYLOAD_BYTES, Message
from collab.types import PeerId

PATIENCE_S = 30.0
"""For what must succeed, on a busy machine too."""
IMPATIENCE_S = 0.3
"""For what must not come."""
STRANGER = PeerId("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")

Body = Callable[[Sequence[Transport]], Awaitable[None]]


async def echo(stream: Stream) -> None:
    """Send everything back until the other side closes."""
    while True:
        message = await stream.receive(timeout_s=PATIENCE_S)
        await stream.send(message, timeout_s=PATIENCE_S)


async def flood(stream: Stream) -> None:
    """Send 128 MiB: more than all buffers between two peers hold."""
    for _ in range(32):
        await stream.send(Message("data", {}, bytes(4 << 20)), timeout_s=2.0)


class TransportContract:
    """The tests; a subclass says how to run one."""

    def run(self, body: Body, *, peers: int = 2, clients: int = 0) -> None:
        """Run ``body`` with ``peers`` connected transports; the last ``clients`` of them are in client mode.

        Connected: every peer has dialled the first, so that streams can be opened between it and any other.
        """
        raise NotImplementedError

    def test_messages_arrive_whole_and_in_order_both_ways(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            seen: list[PeerId] = []

            async def serve(stream: Stream) -> None:
                seen.append(stream.remote)
                await echo(stream)

            await server.serve("echo", serve)
            stream = await client.open(server.peer_id, "echo", timeout_s=PATIENCE_S)
            sent = [Message("count", {"number": n, "nested": {"list": [n, "text", None, 1.5]}}) for n in range(50)]
            for message in sent:
                await stream.send(message, timeout_s=PATIENCE_S)
            back = [await stream.receive(timeout_s=PATIENCE_S) for _ in sent]
            stream.close()
            assert [(m.kind, m.fields) for m in back] == [(m.kind, m.fields) for m in sent]
            assert stream.remote == server.peer_id
            assert seen == [client.peer_id]

        self.run(body)

    @pytest.mark.parametrize("num_bytes", [0, 1, 4 << 20])
    def test_payload_arrives_byte_for_byte(self, num_bytes: int) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            await server.serve("echo", echo)
            stream = await client.open(server.peer_id, "echo", timeout_s=PATIENCE_S)
            payload = (bytes(range(256)) * (num_bytes // 256 + 1))[:num_bytes]
            await stream.send(Message("data", {}, memoryview(payload)), timeout_s=PATIENCE_S)
            back = await stream.receive(timeout_s=PATIENCE_S)
            stream.close()
            assert bytes(back.payload) == payload

        self.run(body)

    def test_many_streams_at_once_keep_to_themselves(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            await transports[0].serve("echo", echo)

            async def exchange(client: Transport, number: int) -> int:
                stream = await client.open(transports[0].peer_id, "echo", timeout_s=PATIENCE_S)
                await stream.send(Message("count", {"number": number}, bytes(5000)), timeout_s=PATIENCE_S)
                back = await stream.receive(timeout_s=PATIENCE_S)
                stream.close()
                return back.get("number", int)

            numbers = await asyncio.gather(*(exchange(transports[1 + n % 2], n) for n in range(60)))
            assert numbers == list(range(60))

        self.run(body, peers=3)

    def test_open_to_an_unknown_peer_is_refused(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            with pytest.raises(PeerUnreachable):
                await transports[0].open(STRANGER, "echo", timeout_s=PATIENCE_S)

        self.run(body)

    def test_open_of_an_unknown_protocol_is_refused(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            with pytest.raises(PeerUnreachable):
                await transports[1].open(transports[0].peer_id, "no-such-protocol", timeout_s=PATIENCE_S)

        self.run(body)

    def test_receive_gives_up_at_its_deadline_and_closes_the_stream(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def listen(stream: Stream) -> None:
                try:
                    await stream.receive(timeout_s=PATIENCE_S)
                except StreamClosed:
                    ended.set_result(None)

            await server.serve("silent", listen)
            stream = await client.open(server.peer_id, "silent", timeout_s=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(TimedOut):
                    await stream.receive(timeout_s=IMPATIENCE_S)
                await ended
            with pytest.raises(StreamClosed):
                await stream.receive(timeout_s=PATIENCE_S)

        self.run(body)

    def test_send_to_a_reader_that_does_not_read_gives_up_at_its_deadline(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            done = asyncio.Event()

            async def ignore(stream: Stream) -> None:
                await done.wait()

            await server.serve("deaf", ignore)
            stream = await client.open(server.peer_id, "deaf", timeout_s=PATIENCE_S)
            with pytest.raises(TimedOut):
                await flood(stream)
            done.set()

        self.run(body)

    def test_closing_one_side_ends_the_other_after_what_was_sent(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports

            async def say_one_thing(stream: Stream) -> None:
                await stream.send(Message("only"), timeout_s=PATIENCE_S)

            await server.serve("brief", say_one_thing)
            stream = await client.open(server.peer_id, "brief", timeout_s=PATIENCE_S)
            assert (await stream.receive(timeout_s=PATIENCE_S)).kind == "only"
            with pytest.raises(StreamClosed):
                await stream.receive(timeout_s=PATIENCE_S)
            stream.close()
            stream.close()

        self.run(body)

    def test_closing_wakes_a_waiting_reader_at_the_other_side(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def listen(stream: Stream) -> None:
                try:
                    await stream.receive(timeout_s=PATIENCE_S)
                    outcome.set_result("a message")
                except NetworkError as error:
                    outcome.set_result(type(error).__name__)

            await server.serve("listen", listen)
            stream = await client.open(server.peer_id, "listen", timeout_s=PATIENCE_S)
            stream.close()
            async with asyncio.timeout(PATIENCE_S):
                assert await outcome == "StreamClosed"

        self.run(body)

    def test_a_handlers_network_error_ends_only_its_stream(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports

            async def stumble(stream: Stream) -> None:
                message = await stream.receive(timeout_s=PATIENCE_S)
                if message.kind == "bad":
                    raise PeerUnreachable("somebody further on is gone")
                await stream.send(message, timeout_s=PATIENCE_S)

            await server.serve("stumble", stumble)
            bad = await client.open(server.peer_id, "stumble", timeout_s=PATIENCE_S)
            good = await client.open(server.peer_id, "stumble", timeout_s=PATIENCE_S)
            await bad.send(Message("bad"), timeout_s=PATIENCE_S)
            with pytest.raises(StreamClosed):
                await bad.receive(timeout_s=PATIENCE_S)
            await good.send(Message("good"), timeout_s=PATIENCE_S)
            assert (await good.receive(timeout_s=PATIENCE_S)).kind == "good"
            bad.close()
            good.close()

        self.run(body)

    def test_a_message_over_the_limit_is_the_senders_mistake_and_harms_nothing(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            await server.serve("echo", echo)
            stream = await client.open(server.peer_id, "echo", timeout_s=PATIENCE_S)
            with pytest.raises(ValueError, match="over the limit"):
                await stream.send(Message("data", {}, bytes(MAX_PAYLOAD_BYTES + 1)), timeout_s=PATIENCE_S)
            await stream.send(Message("small"), timeout_s=PATIENCE_S)
            assert (await stream.receive(timeout_s=PATIENCE_S)).kind == "small"
            stream.close()

        self.run(body)

    def test_dialling_an_address_names_its_peer(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            address = (await transports[0].addresses())[0]
            assert address.endswith(f"/p2p/{transports[0].peer_id}")
            assert await transports[1].dial(address, timeout_s=PATIENCE_S) == transports[0].peer_id

        self.run(body)

    def test_dialling_a_wrong_address_fails(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            address = (await server.addresses())[0]
            somebody_else = address.replace(server.peer_id, STRANGER)
            nobody_there = f"/ip4/127.0.0.1/tcp/1/p2p/{STRANGER}"
            for wrong in (somebody_else, nobody_there, "no address at all"):
                with pytest.raises(PeerUnreachable):
                    await client.dial(wrong, timeout_s=PATIENCE_S)

        self.run(body)

    def test_nobody_is_looked_for_under_a_name_as_long_as_a_message(self) -> None:
        """Of whom we open a stream to we may have heard from anybody; an id of this length takes hours to decode."""

        async def body(transports: Sequence[Transport]) -> None:
            with pytest.raises(PeerUnreachable):
                await transports[0].open(PeerId("2" * 4_000_000), "echo", timeout_s=PATIENCE_S)

        self.run(body)

    def test_a_client_mode_peer_has_no_address_but_can_be_called_back(self) -> None:
        async def body(transports: Sequence[Transport]) -> None:
            server, client = transports
            assert await client.addresses() == ()
            await client.serve("echo", echo)
            stream = await server.open(client.peer_id, "echo", timeout_s=PATIENCE_S)
            await stream.send(Message("ping"), timeout_s=PATIENCE_S)
            assert (await stream.receive(timeout_s=PATIENCE_S)).kind == "ping"
            stream.close()

        self.run(body, clients=1)
