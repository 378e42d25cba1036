"""Peers that lie about how far they are, and strangers that fill the directory: the others go on as fast as without."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.averaging.standing import STANDING_PROTOCOL, Word
from collab.metrics.records import EpochFinished
from collab.net.memory_directory import MemoryDirectory
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.board import ProgressBoard
from collab.swarm.identity import Identity
from collab.swarm.records import PeerRecord, PeerState, pack_record
from collab.types import Role
from tests.simulation.swarm import SimSwarm

HONEST, SPEED, TARGET = 9, 20.0, 900
"""Trainers, samples per second of each, and samples of a step: one in five seconds."""
BEGIN_S, END_S = 30.0, 90.0
"""The attack, and what is counted."""
Attack = Callable[[SimSwarm, Ports, Identity], Coroutine[Any, Any, None]]


def swarm_with(directory: Path, attack: Attack | None) -> SimSwarm:
    swarm = SimSwarm(directory, until=1000, target=TARGET, max_share=0.15)
    swarm.add_backbone()
    for _ in range(HONEST):
        swarm.add_trainer(samples_per_s=SPEED)
    if attack is not None:
        index = len(swarm.world.peers)

        async def main(ports: Ports) -> None:
            await asyncio.sleep(BEGIN_S - 5.0)
            await attack(swarm, ports, swarm.world.peers[index].identity)
            await asyncio.Event().wait()

        swarm.world.add_peer(main, name="liar")
    with swarm.world as world:
        world.run(until_s=END_S)
    return swarm


def steps(swarm: SimSwarm) -> int:
    """Of the slowest honest trainer, in the time that counts."""

    def of(peer: SimPeer) -> int:
        return sum(event.at_s - EPOCH_S >= BEGIN_S for event in swarm.events(peer, EpochFinished))

    return min(of(peer) for peer in swarm.world.peers[1 : HONEST + 1])


def a_trainer(swarm: SimSwarm, view_of: ProgressBoard, me: Identity, ports: Ports, **lies: Any) -> PeerRecord:
    """The word of a trainer where most are, but for its lies."""
    consensus = view_of.view.consensus()
    assert consensus is not None
    plain = PeerRecord(
        peer=me.peer_id, fingerprint=swarm.bundle.fingerprint, name="liar", role=Role.TRAINER, state=PeerState.TRAINING,
        said_at=ports.clock.now(), can_be_dialled=True, epoch=consensus[0], lineage=consensus[1], samples_per_s=SPEED,
    )  # fmt: skip
    return replace(plain, **lies)


async def says_of_itself(swarm: SimSwarm, ports: Ports, me: Identity, **lies: Any) -> None:
    board = ProgressBoard(ports, me, swarm.bundle.fingerprint)
    while True:
        await board.refresh()
        await board.publish(a_trainer(swarm, board, me, ports, **lies))
        await asyncio.sleep(1.0)


async def a_million_epochs(swarm: SimSwarm, ports: Ports, me: Identity) -> None:
    await says_of_itself(swarm, ports, me, epoch=10**6)


async def a_billion_samples(swarm: SimSwarm, ports: Ports, me: Identity) -> None:
    await says_of_itself(swarm, ports, me, samples=10**9, samples_per_s=1e9)


async def a_billion_samples_to_the_leader(swarm: SimSwarm, ports: Ports, me: Identity) -> None:
    board = ProgressBoard(ports, me, swarm.bundle.fingerprint)
    leader = swarm.world.peers[0].peer_id
    stream = await ports.transport.open(leader, STANDING_PROTOCOL, timeout_s=5.0)
    await stream.send(Message("stand", {"fingerprint": swarm.bundle.fingerprint}), timeout_s=5.0)
    while True:
        await board.refresh()
        epoch, lineage = board.view.consensus() or (0, "")
        word = Word(epoch, lineage, 1e9, 1e9)  # type: ignore[arg-type]
        await stream.send(word.to_message(), timeout_s=5.0)
        await asyncio.sleep(0.2)


async def thousands_of_records(swarm: SimSwarm, ports: Ports, me: Identity) -> None:
    board = ProgressBoard(ports, me, swarm.bundle.fingerprint)
    await board.refresh()
    key, now = f"{swarm.bundle.fingerprint[:32]}.peers", ports.clock.now()
    endpoint = swarm.world.peers[HONEST + 1].transport
    for number in range(3000):
        forged = Identity.from_seed(number.to_bytes(32, "big"))
        record = a_trainer(swarm, board, forged, ports, state=PeerState.SYNCING, life_s=120.0)
        data = pack_record(record, forged)
        directory = MemoryDirectory(swarm.world.network, endpoint, forged.peer_id)
        assert await directory.store(key, forged.peer_id, data, expires_at=now + 3600.0, timeout_s=5.0)


async def old_words_of_others(swarm: SimSwarm, ports: Ports, me: Identity) -> None:
    """Stored under their names, with a later end, which no keeper takes, and under its own."""
    key = f"{swarm.bundle.fingerprint[:32]}.peers"
    old = await ports.directory.get(key, timeout_s=5.0)
    while True:
        now = ports.clock.now()
        for number, (peer, entry) in enumerate(sorted(old.items())):
            for subkey in (peer, f"{number}:{me.peer_id}", me.peer_id):
                await ports.directory.store(key, subkey, entry.value, expires_at=now + 60.0, timeout_s=5.0)
        await asyncio.sleep(2.0)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Steps without anybody's lies."""
    return steps(swarm_with(tmp_path_factory.mktemp("clean"), None))


@pytest.mark.parametrize(
    "attack",
    [a_million_epochs, a_billion_samples, a_billion_samples_to_the_leader, thousands_of_records, old_words_of_others],
)
def test_lies_change_the_rate_of_steps_by_less_than_a_fifth(tmp_path: Path, attack: Attack, clean: int) -> None:
    swarm = swarm_with(tmp_path, attack)
    assert 0.8 * clean <= steps(swarm) <= 1.2 * clean
    assert clean >= 10
    honest = swarm.world.peers[1 : HONEST + 1]
    lineages = {swarm.replicas[peer.index].lineage for peer in honest}
    assert len(lineages) <= 2, "one history, and perhaps a step that some have not taken yet"
    newest = [swarm.events(peer, EpochFinished)[-1] for peer in honest]
    assert max(event.epoch for event in newest) - min(event.epoch for event in newest) <= 1
