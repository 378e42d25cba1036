"""The simulated family of the ports keeps the contracts, and does under faults what a real network does."""

import asyncio
from collections.abc import Sequence

import pytest

from collab.errors import BadMessage, NetworkError, PeerUnreachable, StreamClosed, TimedOut, VersionMismatch
from collab.net.base import Stream, Transport
from collab.net.guard import Guard, GuardedTransport
from collab.net.memory_directory import LOOKUP_S
from collab.net.memory_net import MemoryDirectory, MemoryNetwork, MemoryTransport
from collab.net.memory_stream import OPEN_BYTES, WINDOW_BYTES
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.virtual_time import EPOCH_S, VirtualLoop
from collab.simulation.world import World
from collab.types import PeerId
from tests.contracts import directory_contract, transport_contract
from tests.fakes import FakeClock, FakeObserver


def connect(loop: VirtualLoop, *, peers: int, clients: int = 0) -> tuple[MemoryNetwork, list[MemoryTransport]]:
    network = MemoryNetwork(loop, seed=1)
    transports = [
        network.attach(PeerId(f"peer{n}"), index=n, link=Link(), client_mode=n >= peers - clients) for n in range(peers)
    ]
    return network, transports


class TestMemoryTransport(transport_contract.TransportContract):
    def run(self, body: transport_contract.Body, *, peers: int = 2, clients: int = 0) -> None:
        loop = VirtualLoop()
        network, transports = connect(loop, peers=peers, clients=clients)

        async def run() -> None:
            for transport in transports[1:]:
                await transport.dial(transports[0].address, timeout_s=10)
            await body(transports)

        try:
            loop.run_until_complete(run())
        finally:
            loop.shut_down()
        assert not network.failures


class TestGuardedTransport(transport_contract.TransportContract):
    def run(self, body: transport_contract.Body, *, peers: int = 2, clients: int = 0) -> None:
        observer = FakeObserver()

        async def guarded(transports: Sequence[Transport]) -> None:
            await body([GuardedTransport(transport, Guard(FakeClock(), observer)) for transport in transports])

        TestMemoryTransport().run(guarded, peers=peers, clients=clients)
        assert observer.events == []


class TestMemoryDirectory(directory_contract.DirectoryContract):
    def run(self, body: directory_contract.Body, *, peers: int = 2) -> None:
        loop = VirtualLoop()
        network, transports = connect(loop, peers=peers)

        async def run() -> None:
            await body([MemoryDirectory(network, transport) for transport in transports], lambda: EPOCH_S + loop.time())

        try:
            loop.run_until_complete(run())
        finally:
            loop.shut_down()


LINK = Link(up_bytes_per_s=1e6, down_bytes_per_s=1e6, latency_s=0.05)
ROUND_TRIP_S = 0.2


def two_peers(first, second) -> World:
    """A finished world of a server and a client, both on ``LINK``."""
    world = World(seed=0)
    world.add_peer(first, link=LINK)
    world.add_peer(second, link=LINK)
    world.run()
    return world


def peer_id_of(index: int) -> PeerId:
    with World(seed=0) as world:
        async def main(ports: Ports) -> None:
            """Nothing: only the id is asked for."""

        return [world.add_peer(main) for _ in range(index + 1)][index].peer_id


SERVER = peer_id_of(0)


async def wait_long(ports: Ports) -> None:
    await asyncio.sleep(100)


def test_open_costs_a_round_trip_and_a_message_its_bytes() -> None:
    async def server(ports: Ports) -> None:
        await ports.transport.serve("sink", sink)
        await asyncio.sleep(10)

    async def sink(stream: Stream) -> None:
        await stream.receive(timeout_s=10)
        await stream.send(Message("ok"), timeout_s=10)

    async def client(ports: Ports) -> tuple[float, float]:
        stream = await ports.transport.open(SERVER, "sink", timeout_s=10)
        opened_s = ports.clock.monotonic()
        await stream.send(Message("data", {}, bytes(500_000)), timeout_s=10)
        await stream.receive(timeout_s=10)
        return opened_s, ports.clock.monotonic() - opened_s

    opened_s, exchange_s = two_peers(server, client).peers[1].result
    assert opened_s == pytest.approx(ROUND_TRIP_S + OPEN_BYTES / 1e6)
    assert exchange_s == pytest.approx(ROUND_TRIP_S + 0.5, rel=0.001)


def test_sender_is_held_back_by_a_reader_that_does_not_read() -> None:
    async def server(ports: Ports) -> None:
        await ports.transport.serve("late", read_late)
        await asyncio.sleep(60)

    async def read_late(stream: Stream) -> None:
        await asyncio.sleep(30)
        for _ in range(4):
            await stream.receive(timeout_s=10)

    async def client(ports: Ports) -> list[float]:
        stream = await ports.transport.open(SERVER, "late", timeout_s=10)
        taken_s = []
        for _ in range(4):
            await stream.send(Message("data", {}, bytes(WINDOW_BYTES // 2 - 100)), timeout_s=60)
            taken_s.append(ports.clock.monotonic())
        return taken_s

    taken_s = two_peers(server, client).peers[1].result
    assert max(taken_s[:2]) < 1, "the window takes two messages at once"
    assert min(taken_s[2:]) > 30, "the third waits for the reader"


@pytest.mark.parametrize(("damage", "error"), [(b"XYZ\x01", BadMessage), (b"CLB\x63", VersionMismatch)])
def test_what_is_no_message_of_ours_is_named_and_closes_the_stream(damage: bytes, error: type[NetworkError]) -> None:
    async def server(ports: Ports) -> None:
        await ports.transport.serve("speak", speak)
        await asyncio.sleep(10)

    async def speak(stream: Stream) -> None:
        await stream.send(Message("fine"), timeout_s=1)
        await stream.send(Message("fine"), timeout_s=1)

    async def client(ports: Ports) -> str:
        stream = await ports.transport.open(SERVER, "speak", timeout_s=10)
        first = await stream.receive(timeout_s=10)
        await asyncio.sleep(1)
        frame = stream._stream._inbox[0]
        frame.head = damage + frame.head[len(damage):]
        with pytest.raises(error):
            await stream.receive(timeout_s=10)
        with pytest.raises(StreamClosed):
            await stream.send(Message("more"), timeout_s=10)
        return first.kind

    assert two_peers(server, client).peers[1].result == "fine"


def test_open_is_given_up_at_its_deadline() -> None:
    async def server(ports: Ports) -> None:
        await asyncio.sleep(10)

    async def client(ports: Ports) -> float:
        with pytest.raises(TimedOut):
            await ports.transport.open(SERVER, "sink", timeout_s=ROUND_TRIP_S / 2)
        return ports.clock.monotonic()

    assert two_peers(server, client).peers[1].result == pytest.approx(ROUND_TRIP_S / 2)


def test_two_client_mode_peers_never_meet() -> None:
    async def client(ports: Ports) -> None:
        others = [peer.peer_id for peer in world.peers if peer.peer_id != ports.transport.peer_id]
        for other in others:
            with pytest.raises(PeerUnreachable):
                await ports.transport.open(other, "anything", timeout_s=10)

    world = World(seed=0)
    world.add_peer(client, client_mode=True)
    world.add_peer(client, client_mode=True)
    world.run()


def hidden_pair(*, relay_dies: bool) -> World:
    """A relay, and two hidden peers that both know it; the second sends the first half a megabyte through it."""
    world = World(seed=0)

    async def relay(ports: Ports) -> None:
        await ports.transport.serve("hello", sink)
        await asyncio.sleep(1.0 if relay_dies else 100.0)

    async def sink(stream: Stream) -> None:
        await stream.receive(timeout_s=100)
        await stream.send(Message("ok"), timeout_s=100)

    async def hidden(ports: Ports) -> float:
        hello = await ports.transport.open(SERVER, "hello", timeout_s=10)
        await hello.send(Message("hello"), timeout_s=10)
        await ports.transport.serve("sink", sink)
        await asyncio.sleep(50)
        return 0.0

    async def other(ports: Ports) -> float:
        hello = await ports.transport.open(SERVER, "hello", timeout_s=10)
        await hello.send(Message("hello"), timeout_s=10)
        await asyncio.sleep(0.5)
        stream = await ports.transport.open(world.peers[1].peer_id, "sink", timeout_s=10)
        began_s = ports.clock.monotonic()
        await stream.send(Message("data", {}, bytes(1_000_000)), timeout_s=100)
        await stream.receive(timeout_s=100)
        return ports.clock.monotonic() - began_s

    world.add_peer(relay, link=LINK)
    for main in (hidden, other):
        world.add_peer(main, link=LINK, client_mode=True)
    world.network.relays[SERVER] = None
    return world


def test_hidden_peers_meet_through_a_relay_whose_link_carries_every_byte_twice() -> None:
    with hidden_pair(relay_dies=False) as world:
        world.run()
        relay, receiver, sender = world.peers
        assert sender.result == pytest.approx(1.0 + 8 * 0.05 + 0.065, rel=0.01), "and one piece is twice on its way"
        assert sender.sent_bytes >= 1_000_000
        assert receiver.received_bytes >= 1_000_000
        assert min(relay.sent_bytes, relay.received_bytes) >= 1_000_000
        assert not relay.transport.carried


def test_streams_through_a_relay_end_with_it() -> None:
    with hidden_pair(relay_dies=True) as world, pytest.raises(StreamClosed):
        world.run()


def test_another_exception_of_a_handler_ends_the_run() -> None:
    async def server(ports: Ports) -> None:
        await ports.transport.serve("broken", broken)
        await asyncio.sleep(10)

    async def broken(stream: Stream) -> None:
        raise KeyError("a defect")

    async def client(ports: Ports) -> None:
        await ports.transport.open(SERVER, "broken", timeout_s=10)
        await asyncio.sleep(10)

    with pytest.raises(KeyError, match="a defect"):
        two_peers(server, client)


def test_cancelled_receive_closes_the_stream() -> None:
    async def server(ports: Ports) -> None:
        await ports.transport.serve("silent", silent)
        await asyncio.sleep(10)

    async def silent(stream: Stream) -> None:
        await stream.receive(timeout_s=10)

    async def client(ports: Ports) -> None:
        stream = await ports.transport.open(SERVER, "silent", timeout_s=10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await stream.receive(timeout_s=10)
        with pytest.raises(StreamClosed):
            await stream.receive(timeout_s=10)

    two_peers(server, client)


def test_store_with_a_clock_that_runs_late_is_refused() -> None:
    async def publish(ports: Ports) -> bool:
        me, expires_at = ports.transport.peer_id, ports.clock.now() + 30
        return await ports.directory.store("key", me, b"x", expires_at=expires_at, timeout_s=5)

    world = World(seed=0)
    world.add_peer(publish)
    world.add_peer(publish, clock_error_s=-300)
    world.add_peer(publish, clock_error_s=300)
    world.run()
    assert [peer.result for peer in world.peers] == [True, False, True]


def test_directory_call_costs_a_round_trip_and_keeps_its_deadline() -> None:
    async def main(ports: Ports) -> tuple[float, float]:
        await ports.directory.get("key", timeout_s=5)
        first_s = ports.clock.monotonic()
        with pytest.raises(TimedOut):
            await ports.directory.get("key", timeout_s=0.01)
        return first_s, ports.clock.monotonic() - first_s

    first_s, second_s = two_peers(main, wait_long).peers[0].result
    assert first_s == pytest.approx(LOOKUP_S + 2 * LINK.latency_s)
    assert second_s == pytest.approx(0.01)


def test_wrong_arguments_are_value_errors() -> None:
    async def nothing(stream: Stream) -> None:
        """Serves nothing."""

    async def body(transports: Sequence[Transport]) -> None:
        await transports[0].serve("once", nothing)
        with pytest.raises(ValueError, match="served already"):
            await transports[0].serve("once", nothing)

    TestMemoryTransport().run(body)
