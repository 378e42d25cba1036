"""Each fault does to a swarm what its real counterpart does."""

import asyncio
from itertools import pairwise

import pytest

from collab.errors import CollabError, PeerUnreachable, StreamClosed, TimedOut
from collab.metrics.records import Event, Notice, Phase, PhaseReached
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.churn import Churn
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.types import PeerId

LATENCY_S = 0.1
"""Of a path between two peers here."""
HOME = Link(latency_s=LATENCY_S / 2)


class Swarm:
    """Peer 0 is the victim, which echoes; peer 1 is the witness, whose story each test tells."""

    def __init__(self, witness, *, victim=None) -> None:
        self.world = World(seed=3)
        self.churn = Churn(self.world)
        self.finally_said: list[str] = []
        self.world.add_peer(victim or self._victim, link=HOME)
        self.world.add_peer(witness, link=HOME)

    @property
    def victim(self) -> PeerId:
        return self.world.peers[0].peer_id

    def tell(self):
        self.world.run()
        return self.world.peers[1].result

    async def _victim(self, ports: Ports) -> None:
        await ports.transport.serve("echo", self._echo)
        for epoch in range(100):
            observe(ports, Phase.ACCUMULATE, epoch)
            await asyncio.sleep(1)

    async def _echo(self, stream: Stream) -> None:
        try:
            while True:
                await stream.send(await stream.receive(timeout_s=100), timeout_s=10)
        finally:
            try:
                await stream.send(Message("last words"), timeout_s=10)
                self.finally_said.append("sent")
            except StreamClosed:
                self.finally_said.append("refused")


def observe(ports: Ports, phase: Phase, epoch: int) -> None:
    ports.observer.observe(PhaseReached(at_s=ports.clock.now(), phase=phase, epoch=epoch))


async def ask(stream: Stream, *, timeout_s: float = 10.0) -> str:
    await stream.send(Message("hello", {}, b"0123456789"), timeout_s=timeout_s)
    return bytes((await stream.receive(timeout_s=timeout_s)).payload).decode("latin1")


def test_killed_peer_breaks_its_streams_one_latency_later_and_cannot_be_reached() -> None:
    async def witness(ports: Ports) -> tuple[float, str]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=10)
        with pytest.raises(StreamClosed):
            await stream.receive(timeout_s=50)
        broken_s = ports.clock.monotonic()
        with pytest.raises(StreamClosed):
            await stream.send(Message("anybody?"), timeout_s=10)
        with pytest.raises(PeerUnreachable, match="gone"):
            await ports.transport.open(swarm.victim, "echo", timeout_s=10)
        with pytest.raises(PeerUnreachable, match="gone"):
            await ports.transport.dial(swarm.world.peers[0].transport.address, timeout_s=10)
        return broken_s

    swarm = Swarm(witness)
    swarm.churn.fail_at(peer=0, time_s=5)
    assert swarm.tell() == pytest.approx(5 + LATENCY_S)
    assert not swarm.world.peers[0].is_alive
    assert not swarm.churn.unfired()


def test_nothing_that_a_killed_peer_does_while_it_ends_reaches_the_network() -> None:
    async def victim(ports: Ports) -> None:
        try:
            await swarm._victim(ports)
        finally:
            with pytest.raises(TimedOut):
                await ports.directory.store("key", "ghost", b"x", expires_at=ports.clock.now() + 50, timeout_s=10)
            with pytest.raises(PeerUnreachable):
                await ports.transport.open(swarm.world.peers[1].peer_id, "any", timeout_s=10)
            observe(ports, Phase.COMMIT, 99)
            swarm.finally_said.append("done")

    async def witness(ports: Ports) -> list[str]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=10)
        with pytest.raises(StreamClosed):
            await stream.receive(timeout_s=50)
        await asyncio.sleep(20)
        return list(await ports.directory.get("key", timeout_s=10))

    swarm = Swarm(witness, victim=victim)
    swarm.churn.fail_at(peer=0, time_s=5)
    assert swarm.tell() == []
    assert sorted(swarm.finally_said) == ["done", "refused"]
    assert PhaseReached not in {type(e) for e in swarm.world.peers[0].events if getattr(e, "epoch", 0) == 99}


def test_kill_at_a_phase_happens_before_that_phase_sends_anything() -> None:
    async def victim(ports: Ports) -> None:
        stream = await ports.transport.open(swarm.world.peers[1].peer_id, "parts", timeout_s=10)
        for epoch in range(5):
            observe(ports, Phase.SEND_PARTS, epoch)
            await stream.send(Message("part", {"epoch": epoch}), timeout_s=10)
            await asyncio.sleep(1)

    async def witness(ports: Ports) -> list[int]:
        seen: list[int] = []

        async def collect(stream: Stream) -> None:
            while True:
                seen.append((await stream.receive(timeout_s=50)).get("epoch", int))

        await ports.transport.serve("parts", collect)
        await asyncio.sleep(20)
        return seen

    swarm = Swarm(witness, victim=victim)
    swarm.churn.fail_at(peer=0, phase=Phase.SEND_PARTS, epoch=2)
    assert swarm.tell() == [0, 1]
    assert not swarm.churn.unfired()


def test_killed_peer_comes_back_with_its_identity_and_serves_again() -> None:
    async def witness(ports: Ports) -> str:
        await asyncio.sleep(6)
        with pytest.raises(PeerUnreachable):
            await ports.transport.open(swarm.victim, "echo", timeout_s=10)
        await asyncio.sleep(10)
        return await ask(await ports.transport.open(swarm.victim, "echo", timeout_s=10))

    swarm = Swarm(witness)
    swarm.churn.fail_at(peer=0, time_s=5, restart_after_s=4)
    assert swarm.tell() == "0123456789"
    assert swarm.world.peers[0].lives == 2
    assert not swarm.churn.unfired()


def test_frozen_peer_accepts_streams_and_bytes_but_answers_only_after_the_thaw() -> None:
    async def witness(ports: Ports) -> tuple[float, float, str]:
        await asyncio.sleep(10)
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        opened_s = ports.clock.monotonic()
        answer = await ask(stream, timeout_s=60)
        answered_s = ports.clock.monotonic()
        deaf = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        return opened_s, answered_s, answer + await ask(deaf)

    swarm = Swarm(witness)
    swarm.churn.freeze_at(peer=0, time_s=5, for_s=30)
    opened_s, answered_s, answers = swarm.tell()
    assert opened_s == pytest.approx(10 + 2 * LATENCY_S, abs=0.01)
    assert answered_s == pytest.approx(35 + LATENCY_S, abs=0.01)
    assert answers == "01234567890123456789"
    gaps_s = [later.at_s - event.at_s for event, later in pairwise(swarm.world.peers[0].events)]
    assert max(gaps_s) == pytest.approx(30, abs=1)


def test_frozen_peer_swallows_one_window_and_no_more() -> None:
    async def witness(ports: Ports) -> tuple[int, float]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        await asyncio.sleep(10)
        swallowed = 0
        try:
            while True:
                await stream.send(Message("data", {}, bytes(100_000)), timeout_s=5)
                swallowed += 100_000
        except TimedOut:
            return swallowed, ports.clock.monotonic()

    swarm = Swarm(witness)
    swarm.churn.freeze_at(peer=0, time_s=5, for_s=80)
    swallowed, gave_up_s = swarm.tell()
    assert swallowed == 1_000_000
    assert gave_up_s == pytest.approx(10 + 2 * LATENCY_S + 5, abs=0.5)


def test_peer_frozen_by_its_own_event_sends_nothing_until_the_thaw() -> None:
    async def victim(ports: Ports) -> None:
        stream = await ports.transport.open(swarm.world.peers[1].peer_id, "parts", timeout_s=10)
        observe(ports, Phase.SEND_PARTS, 0)
        await stream.send(Message("part"), timeout_s=10)
        await asyncio.sleep(50)

    async def witness(ports: Ports) -> float:
        came: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def collect(stream: Stream) -> None:
            await stream.receive(timeout_s=50)
            came.set_result(ports.clock.monotonic())

        await ports.transport.serve("parts", collect)
        return await came

    swarm = Swarm(witness, victim=victim)
    swarm.churn.freeze_at(peer=0, phase=Phase.SEND_PARTS, for_s=20)
    assert swarm.tell() > 20


def test_partition_holds_messages_and_opens_until_it_heals() -> None:
    async def witness(ports: Ports) -> tuple[float, str]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        await asyncio.sleep(10)
        with pytest.raises(TimedOut):
            await ports.transport.open(swarm.victim, "echo", timeout_s=5)
        with pytest.raises(TimedOut):
            await ports.directory.get("key", timeout_s=5)
        answer = await ask(stream, timeout_s=60)
        return ports.clock.monotonic(), answer

    swarm = Swarm(witness)
    swarm.churn.partition_at([[0], [1]], time_s=5, for_s=40)
    healed_s, answer = swarm.tell()
    assert healed_s == pytest.approx(45 + 2 * LATENCY_S, abs=0.01)
    assert answer == "0123456789"


def test_long_partition_breaks_the_streams_across_it() -> None:
    async def witness(ports: Ports) -> str:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        await asyncio.sleep(10)
        with pytest.raises(StreamClosed):
            await ask(stream, timeout_s=60)
        return await ask(await ports.transport.open(swarm.victim, "echo", timeout_s=1))

    swarm = Swarm(witness)
    swarm.churn.partition_at([[0]], time_s=5, for_s=40, resets_streams=True)
    assert swarm.tell() == "0123456789"


def test_directory_works_inside_a_part_of_the_swarm() -> None:
    async def main(ports: Ports) -> str:
        await asyncio.sleep(10)
        try:
            await ports.directory.get("key", timeout_s=5)
        except TimedOut:
            return "alone"
        return "served"

    world = World(seed=0)
    for _ in range(3):
        world.add_peer(main)
    Churn(world).partition_at([[0, 1], [2]], time_s=5, for_s=40)
    world.run()
    assert [peer.result for peer in world.peers] == ["served", "served", "alone"]


def test_parts_of_the_swarm_do_not_hear_each_other_through_the_directory_until_it_heals() -> None:
    async def main(ports: Ports) -> list[list[bytes]]:
        heard = []
        for at_s, word in ((5, b"early"), (20, b"late")):
            await asyncio.sleep(at_s - ports.clock.monotonic())
            end = ports.clock.now() + 30 + at_s
            await ports.directory.store("key", ports.transport.peer_id, word, expires_at=end, timeout_s=5)
            await asyncio.sleep(1)
            heard.append(sorted(entry.value for entry in (await ports.directory.get("key", timeout_s=5)).values()))
        await asyncio.sleep(20)
        heard.append([entry.value for entry in (await ports.directory.get("key", timeout_s=5)).values()])
        return heard

    world = World(seed=0)
    for _ in range(5):
        world.add_peer(main)
    Churn(world).partition_at([[0, 1]], time_s=10, for_s=25)
    world.run()
    assert world.peers[0].result == [[b"early"] * 5, [b"early"] * 3 + [b"late"] * 2, [b"late"] * 5]
    assert world.peers[2].result == [[b"early"] * 5, [b"early"] * 2 + [b"late"] * 3, [b"late"] * 5]


def test_corruption_flips_bytes_of_one_payload_under_one_protocol() -> None:
    async def witness(ports: Ports) -> list[str]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=1)
        return [await ask(stream) for _ in range(3)]

    swarm = Swarm(witness)
    swarm.churn.corrupt_at(peer=0, protocol="ec", time_s=0.25)
    swarm.churn.corrupt_at(peer=0, protocol="other", time_s=0.25)
    answers = swarm.tell()
    assert len([answer for answer in answers if answer != "0123456789"]) == 1
    assert all(len(answer) == 10 for answer in answers)
    assert swarm.churn.unfired() == ("corrupt_at(peer=0, protocol='other', time_s=0.25)",)


def test_slow_peer_computes_by_the_factor_more_slowly() -> None:
    async def main(ports: Ports) -> list[float]:
        ends_s = []
        for _ in range(3):
            await ports.compute.run(lambda: None, samples=100)
            ends_s.append(ports.clock.monotonic())
        return ends_s

    world = World(seed=0)
    peer = world.add_peer(main, samples_per_s=100)
    churn = Churn(world)
    churn.slow_at(peer=0, factor=4, time_s=1.5)
    world.run()
    assert peer.result == [1, 2, 6]
    assert not churn.unfired()


def test_slow_link_carries_a_tenth_and_then_all_again() -> None:
    async def witness(ports: Ports) -> list[float]:
        stream = await ports.transport.open(swarm.victim, "echo", timeout_s=10)
        took_s = []
        for at_s in (5.0, 15.0, 45.0):
            await asyncio.sleep(at_s - ports.clock.monotonic())
            await stream.send(Message("data", {}, bytes(1_250_000)), timeout_s=60)
            await stream.receive(timeout_s=60)
            took_s.append(ports.clock.monotonic() - at_s)
        return took_s

    swarm = Swarm(witness)
    swarm.churn.slow_link_at(peer=0, factor=10, time_s=10, for_s=30)
    full_s, slow_s, again_s = swarm.tell()
    assert again_s == pytest.approx(full_s, rel=0.05)
    assert slow_s > 3 * full_s  # what is left are round trips
    assert not swarm.churn.unfired()
    with pytest.raises(ValueError, match="factor"):
        swarm.churn.slow_link_at(peer=0, factor=0, time_s=10, for_s=30)


def test_a_fault_whose_moment_never_came_is_reported() -> None:
    async def witness(ports: Ports) -> None:
        await asyncio.sleep(150)

    swarm = Swarm(witness)
    swarm.churn.fail_at(peer=0, phase=Phase.COMMIT, epoch=2)
    swarm.churn.fail_at(peer=0, epoch=2)
    swarm.churn.fail_at(peer=0, time_s=120)  # by then its main has ended
    swarm.tell()
    assert swarm.churn.unfired() == (
        "fail_at(peer=0, phase=commit, epoch=2)", "fail_at(peer=0, epoch=2)", "fail_at(peer=0, time_s=120)",
    )


@pytest.mark.parametrize("when", [{}, {"time_s": 1.0, "epoch": 2}, {"time_s": -1.0}])
def test_a_fault_needs_one_moment(when) -> None:
    with World(seed=0) as world, pytest.raises(ValueError, match="fail_at"):
        Churn(world).fail_at(peer=0, **when)


def test_endpoint_of_a_peer_that_is_done_goes_after_its_last_message() -> None:
    async def victim(ports: Ports) -> None:
        stream = await ports.transport.open(swarm.world.peers[1].peer_id, "bye", timeout_s=10)
        await stream.send(Message("bye"), timeout_s=10)

    async def witness(ports: Ports) -> list[str]:
        heard: list[str] = []

        async def listen(stream: Stream) -> None:
            heard.append((await stream.receive(timeout_s=10)).kind)
            try:
                await stream.receive(timeout_s=10)
            except CollabError as error:
                heard.append(type(error).__name__)

        await ports.transport.serve("bye", listen)
        await asyncio.sleep(5)
        return heard

    swarm = Swarm(witness, victim=victim)
    assert swarm.tell() == ["bye", "StreamClosed"]


def test_late_joiner_takes_part_from_its_arrival_on() -> None:
    async def main(ports: Ports) -> float:
        end = ports.clock.now() + 90
        await ports.directory.store("peers", ports.transport.peer_id, b"", expires_at=end, timeout_s=9)
        started_s = ports.clock.monotonic()
        while len(await ports.directory.get("peers", timeout_s=9)) < 2:
            await asyncio.sleep(1)
        return started_s

    world = World(seed=0)
    world.add_peer(main)
    world.call_at(30, lambda: world.add_peer(main, name="late"))
    world.run()
    assert world.peers[1].result > 30
    assert world.peers[1].name == "late"


def test_an_error_of_a_main_ends_the_run_and_names_its_peer() -> None:
    async def main(ports: Ports) -> None:
        await asyncio.sleep(3)
        raise LookupError("a defect")

    world = World(seed=0)
    peer = world.add_peer(main)
    with pytest.raises(LookupError, match="a defect") as caught:
        world.run()
    assert "main of peer 0 at 3.000" in caught.value.__notes__[0]
    assert peer.exception is caught.value


def test_world_can_be_looked_at_on_the_way() -> None:
    async def main(ports: Ports) -> None:
        for number in range(4):
            ports.observer.observe(Notice(at_s=ports.clock.now(), text=str(number)))
            await asyncio.sleep(10)

    seen: list[tuple[int, Event]] = []
    world = World(seed=0)
    peer = world.add_peer(main)
    world.subscribe(lambda source, event: seen.append((source.index, event)))
    world.run(until_s=15)
    assert (world.time_s, len(peer.events), peer.is_alive) == (15, 2, True)
    world.run()
    assert [event.text for _, event in seen if isinstance(event, Notice)] == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match="over"):
        world.run()
