"""Whoever attacks a run for invited people, from outside or from within: the others take as many steps as without."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from collab.averaging.messages import ROUND_PROTOCOL
from collab.compression.base import Buffer
from collab.concurrency import Background
from collab.errors import NetworkError
from collab.metrics.records import EpochFinished, PeerRefused
from collab.net import wire
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.identity import Identity
from collab.swarm.order_exchange import ORDERS_PROTOCOL
from collab.swarm.statements import Ban, End
from collab.types import PeerId
from tests.simulation.leasing import SLOW, Forger
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_guard import keep_opening, send_what_is_too_large, talk_nonsense, talk_without_end
from tests.simulation.test_invited import call_everything

OWNER, ANNA, EVE = (Identity.from_seed(bytes([number] * 32)) for number in (77, 78, 80))
HONEST, SPEED, TARGET = 4, 20.0, 240
"""Trainers, samples per second of each, and samples of a step: one in three seconds."""
ANOTHER_VERSION = "from another version"
BEGIN_S, END_S = 15.0, 60.0
"""The attack, and what is counted."""
Attack = Callable[[SimSwarm], None]
Flood = Callable[[Ports, PeerId], Awaitable[None]]


def swarm_under(
    directory: Path, attack: Attack | None, *, samples_per_s: float = SPEED, until_s: float = END_S
) -> SimSwarm:
    target = int(TARGET * samples_per_s / SPEED)
    swarm = SimSwarm(directory, owner=OWNER, access="invite_only", until=1000, target=target)
    swarm.add_backbone()
    for _ in range(HONEST):
        swarm.add_trainer(samples_per_s=samples_per_s, papers=swarm.papers("Anna", key=ANNA))
    if attack is not None:
        swarm.world.call_at(BEGIN_S, partial(attack, swarm))
    with swarm.world as world:
        world.run(until_s=until_s)
    return swarm


def honest(swarm: SimSwarm) -> list[SimPeer]:
    return swarm.world.peers[1 : HONEST + 1]


def steps(swarm: SimSwarm) -> int:
    """Of the slowest honest trainer, in the time that counts."""
    return min(sum(e.at_s - EPOCH_S >= BEGIN_S for e in swarm.events(peer, EpochFinished)) for peer in honest(swarm))


def refusals(swarm: SimSwarm) -> list[PeerRefused]:
    return [event for peer in swarm.world.peers[: HONEST + 1] for event in swarm.events(peer, PeerRefused)]


# -- from within -------------------------------------------------------------------------------------------------------


def of_an_insider(flood: Flood) -> Attack:
    """Somebody who was invited floods every peer at once, without end."""

    async def insist(ports: Ports, target: PeerId) -> None:
        while True:
            with suppress(NetworkError):
                await flood(ports, target)
            await asyncio.sleep(0.1)

    def attack(swarm: SimSwarm) -> None:
        async def main(ports: Ports) -> None:
            mine = swarm.papers("Eve", key=EVE)
            ports.entrance.credential = mine.credentials(ports.transport.peer_id, ports.clock.now).current
            async with Background() as tasks:
                for peer in swarm.world.peers[: HONEST + 1]:
                    tasks.create_task(insist(ports, peer.peer_id))
                await asyncio.Event().wait()

        swarm.world.add_peer(main)

    return attack


async def orders_of_its_own(ports: Ports, target: PeerId, *, swarm: SimSwarm) -> None:
    """The run's end at the next epoch, signed by the one who brings it."""
    book = replace(swarm.participants[1].statutes.mandate.book, owner=EVE.peer_id)
    order = book.signed(End(at_epoch=swarm.replicas[1].epoch + 1), EVE, ports.clock.now())
    stream = await ports.transport.open(target, ORDERS_PROTOCOL, timeout_s=5.0)
    try:
        nothing = {"count": 0, "mark": "", "start": 0, "orders": []}
        await stream.send(Message("orders", nothing), timeout_s=5.0)
        await stream.receive(timeout_s=5.0)
        await stream.send(Message("orders", {**nothing, "count": 1, "orders": [order]}), timeout_s=5.0)
        await stream.receive(timeout_s=5.0)
    finally:
        stream.close()


async def speak_another_version(ports: Ports, target: PeerId) -> None:
    """Frames of a version that is not ours, see ``another_version``."""
    stream = await ports.transport.open(target, ROUND_PROTOCOL, timeout_s=5.0)
    try:
        await stream.send(Message(ANOTHER_VERSION), timeout_s=5.0)
        await stream.receive(timeout_s=5.0)
    finally:
        stream.close()


@pytest.fixture(autouse=True)
def another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of this kind are encoded as another version of the wire does it."""
    encode = wire.encode

    def encode_as_said(message: Message) -> tuple[bytes, Buffer]:
        head, payload = encode(message)
        if message.kind == ANOTHER_VERSION:
            magic, version, *lengths = wire.PREFIX.unpack_from(head)
            head = wire.PREFIX.pack(magic, version + 1, *lengths) + head[wire.PREFIX.size :]
        return head, payload

    monkeypatch.setattr(wire, "encode", encode_as_said)


def words_without_end(swarm: SimSwarm) -> None:
    of_an_insider(partial(talk_without_end, fingerprint=swarm.bundle.fingerprint))(swarm)


def forged_orders(swarm: SimSwarm) -> None:
    of_an_insider(partial(orders_of_its_own, swarm=swarm))(swarm)


# -- from outside ------------------------------------------------------------------------------------------------------


def every_call_by_a_stranger(swarm: SimSwarm) -> None:
    async def stranger(ports: Ports) -> None:
        while True:
            for peer in swarm.world.peers[: HONEST + 1]:
                await call_everything(ports, peer.peer_id)

    swarm.world.add_peer(stranger)


def more_devices_than_allowed(swarm: SimSwarm) -> None:
    for _ in range(8):
        swarm.add_trainer(is_welcome=False, samples_per_s=SPEED / 10, papers=swarm.papers("Bob", key=EVE, devices=1))


def expired_invites(swarm: SimSwarm) -> None:
    papers = swarm.papers("Bob", key=EVE, ends_s=BEGIN_S - 5.0)
    for _ in range(4):
        swarm.add_trainer(is_welcome=False, samples_per_s=SPEED, papers=papers)


def revoked_invites(swarm: SimSwarm) -> None:
    swarm.order(Ban(who=EVE.peer_id, reason="the invite was revoked"))
    for _ in range(4):
        swarm.add_trainer(is_welcome=False, samples_per_s=SPEED, papers=swarm.papers("Bob", key=EVE))


ATTACKS: dict[str, tuple[Attack, set[str]]] = {
    "streams that say nothing": (of_an_insider(keep_opening), {"too_many_streams"}),
    "words without end": (words_without_end, {"too_many_messages"}),
    "messages that are too large": (of_an_insider(send_what_is_too_large), {"too_large"}),
    "another version": (of_an_insider(speak_another_version), {"version_mismatch"}),
    "nonsense": (of_an_insider(talk_nonsense), {"bad_message"}),
    "forged orders": (forged_orders, {"bad_message"}),
    "every call by a stranger": (every_call_by_a_stranger, {"not_invited"}),
    "more devices than allowed": (more_devices_than_allowed, {"too_many_devices"}),
    "expired invites": (expired_invites, {"invite_expired"}),
    "revoked invites": (revoked_invites, {"banned"}),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Steps without anybody's attack."""
    return steps(swarm_under(tmp_path_factory.mktemp("clean"), None))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_changes_the_rate_of_steps_by_less_than_a_fifth(tmp_path: Path, name: str, clean: int) -> None:
    attack, reasons = ATTACKS[name]
    swarm = swarm_under(tmp_path, attack)
    assert clean >= 10
    assert 0.8 * clean <= steps(swarm) <= 1.2 * clean
    assert reasons <= {event.reason for event in refusals(swarm)}, "it was seen, and counted"
    assert len({swarm.replicas[peer.index].lineage for peer in honest(swarm)}) <= 2, "a step that some still take"


def test_who_was_invited_and_leases_everything_for_ever_slows_nobody_down(tmp_path: Path) -> None:
    """Slow trainers: where a pass takes seconds nobody leases anything."""
    forgers: list[Forger] = []

    def attack(swarm: SimSwarm) -> None:
        forgers.append(Forger(swarm, papers=swarm.papers("Eve", key=EVE)))
        forgers[0].add(says_at_s=(1.0, 6.0, 12.0, 20.0, 30.0))

    clean = steps(swarm_under(tmp_path / "clean", None, samples_per_s=SLOW, until_s=90.0))
    swarm = swarm_under(tmp_path / "forged", attack, samples_per_s=SLOW, until_s=90.0)
    views = [swarm.participants[peer.index].membership.view for peer in honest(swarm)]
    assert all(forgers[0].peer_id in {record.peer for record in view.records} for view in views), "it is one of them"
    assert forgers[0].number_said > 10
    assert clean >= 10
    assert 0.8 * clean <= steps(swarm) <= 1.2 * clean
