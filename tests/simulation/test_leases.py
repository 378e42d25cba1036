"""Whole runs in virtual time: who trained what, and how often, through random lives and deaths of peers."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collab.metrics.guest_records import Paused
from collab.metrics.records import BlockTrained, DataCovered, EpochFinished, Notice
from collab.net.memory_directory import MemoryDirectory
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.leasing import (
    BLOCKS,
    SAMPLES,
    SLOW,
    STREAMED_SHARDS,
    Forger,
    complete_passes,
    random_history,
    slow_swarm,
    swarm_of_sites,
    swarm_of_streams,
    trained_blocks,
    unexplained,
    used_samples,
)
from tests.simulation.swarm import SimSwarm

Stored = list[tuple[str, bytes]]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Everything that anybody stores in the directory: key and value."""
    seen: Stored = []
    store = MemoryDirectory.store

    async def spy(directory: MemoryDirectory, key: str, subkey: str, value: bytes, **options: Any) -> bool:
        seen.append((key, value))
        return await store(directory, key, subkey, value, **options)

    monkeypatch.setattr(MemoryDirectory, "store", spy)
    return seen


def test_peers_that_stay_train_each_sample_once_in_a_pass(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 5, until=30)
    swarm.world.run()
    blocks, counts = trained_blocks(swarm), used_samples(swarm)
    assert all(len(uses) == 1 for uses in blocks.values())
    assert len([block for pass_number, block in blocks if pass_number == 0]) == BLOCKS
    assert len(counts) == SAMPLES
    assert min(counts.values()) >= 1
    assert all(event.was_leased for peer in swarm.world.peers for event in swarm.events(peer, BlockTrained))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_histories_train_no_block_twice_but_those_of_whom_died(tmp_path: Path, seed: int) -> None:
    history = random_history(tmp_path, seed, peers=6, faults=4, span_s=120.0)
    history.run(until_s=260.0)
    swarm = history.swarm
    assert not swarm.churn.unfired()
    assert unexplained(history) == []
    per_pass = Counter(pass_number for pass_number, _ in trained_blocks(swarm))
    assert per_pass[0] == per_pass[1] == BLOCKS, "and what the dead had held was issued again"
    assert 0 in complete_passes(swarm), "which is reported"


def test_a_backbone_knows_what_was_trained_until_lately_and_tells_people_once_a_minute(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 4, until=10_000)
    with swarm.world as world:
        world.run(until_s=58.0)
        kept = json.loads(next(tmp_path.rglob("coverage.json")).read_text())
        before = {at: uses for at, uses in trained_blocks(swarm).items() if uses[0][0] < 1.7e9 + 58.0 - 2 * 11.0}
        world.run(until_s=200.0)
    known = sum(int(page, 16).bit_count() for page in kept["passes"]["0"]["trained"])
    assert 0 < len(before) <= known <= BLOCKS
    told = [event.at_s for event in swarm.events(swarm.world.peers[0], DataCovered) if event.pass_number == 0]
    assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(told[:-1]))
    assert len(told) >= 2, "when the pass began, and when it was complete"


def test_slow_and_fast_peers_share_a_pass_by_their_speeds(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 2, until=40)
    fast = swarm.add_trainer(samples_per_s=4 * SLOW)
    swarm.world.run()
    blocks = trained_blocks(swarm)
    assert all(len(uses) == 1 for uses in blocks.values())
    by_fast = [uses for (pass_number, _), uses in blocks.items() if pass_number == 0 and uses[0][1] is fast]
    assert 0.5 * BLOCKS < len(by_fast) < 0.75 * BLOCKS


def test_after_a_restart_of_everybody_the_pass_goes_on_where_it_was(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=10_000, target=64, every=2)
    swarm.add_backbone()
    for index in range(4):
        swarm.add_trainer(samples_per_s=SLOW, state_dir=tmp_path / f"trainer-{index}")
    world = swarm.world
    world.add_peer(lambda _: asyncio.sleep(1000.0))  # a world without anybody ends
    for index in range(5):
        swarm.churn.fail_at(peer=index, time_s=50.0)
        world.call_at(70.0 + index, lambda index=index: world.restart(index))
    with world:
        world.run(until_s=250.0)
    blocks = {block: uses for block, uses in trained_blocks(swarm).items() if block[0] == 0}
    assert len(blocks) == BLOCKS
    before = {block for block, uses in blocks.items() if uses[0][0] < 1.7e9 + 50.0}
    again = {block for block, uses in blocks.items() if len(uses) > 1}
    assert len(before) > 20
    assert len(again) < len(before) / 2, "only what was trained in the last moments, and not written down, is again"
    assert again <= before


def test_a_directory_that_is_gone_for_a_while_stops_nobody(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 4, until=10_000)
    world = swarm.world
    lonely = 1
    swarm.churn.partition_at([[lonely]], time_s=40.0, for_s=40.0)
    with world:
        world.run(until_s=140.0)
    computed = [event for event in world.peers[lonely].events if type(event).__name__ == "MicrobatchDone"]
    during = [event for event in computed if 45.0 < event.at_s - 1.7e9 < 78.0]
    assert len(during) >= 0.8 * 33.0 * SLOW / 8, "it computes on"
    assert not swarm.churn.unfired()


def test_a_forger_of_leases_and_marks_costs_the_others_no_more_than_its_share(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 5, until=10_000)
    forger = Forger(swarm)
    forger.add(says_at_s=(5.0, 15.0, 30.0, 60.0, 90.0, 120.0, 150.0))
    with swarm.world as world:
        world.run(until_s=300.0)
    assert forger.number_said > 10
    blocks = trained_blocks(swarm)
    assert all(len(uses) == 1 for uses in blocks.values()), "nobody trains twice because of it"
    trained = [block for pass_number, block in blocks if pass_number == 0]
    assert len(trained) >= BLOCKS - 3, "what it holds lapses, and its marks are believed of a block or so"
    assert sum(len(uses) for uses in blocks.values()) * 8 >= 0.9 * 290.0 * 5 * SLOW * 0.85, "nobody is slowed down"


def test_a_run_with_local_data_tells_nobody_anything_about_it(tmp_path: Path, stored: Stored) -> None:
    swarm = swarm_of_sites(tmp_path, 3, placement="local")
    swarm.world.run()
    trainers = swarm.world.peers[1:]
    assert all(swarm.events(peer, EpochFinished)[-1].epoch == 6 for peer in trainers)
    assert stored
    assert not [key for key, _ in stored if ".data." in key], "no pages of blocks"
    assert not [value for _, value in stored if b"samples." in value or b"shards." in value], "no name of any data"
    assert not [event for peer in swarm.world.peers for event in peer.events if isinstance(event, DataCovered)]
    assert not [event for peer in swarm.world.peers for event in swarm.events(peer, BlockTrained)]


def test_sites_whose_data_differ_do_not_share_blocks_and_those_with_the_same_do(tmp_path: Path, stored: Stored) -> None:
    swarm = swarm_of_sites(tmp_path, 3, placement="shared")
    swarm.world.run()
    assert all(swarm.events(peer, EpochFinished)[-1].epoch == 6 for peer in swarm.world.peers[1:])
    assert len({key.split(".data.")[1].split(".")[0] for key, _ in stored if ".data." in key}) == 3


def test_peers_that_train_alone_lease_nothing(tmp_path: Path, stored: Stored) -> None:
    swarm = SimSwarm(tmp_path, until=3, strategy="solo", target=64)
    swarm.add_backbone()
    peers: list[SimPeer] = [swarm.add_trainer() for _ in range(2)]
    swarm.world.run()
    assert stored
    assert not [key for key, _ in stored if ".data." in key]
    assert all(not swarm.events(peer, BlockTrained) for peer in peers)


@pytest.mark.parametrize("name", ["texts-1", "texts-2"])
def test_a_streamed_dataset_is_read_by_one_peer_a_shard(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until most of the first pass is trained; what is read ahead by then is of the next one already."""
    monkeypatch.chdir(tmp_path)
    swarm = swarm_of_streams(Path(name), 4, until=20)
    swarm.world.run()
    blocks = trained_blocks(swarm)
    assert {pass_number for pass_number, _ in blocks} == {0}
    assert len(blocks) >= STREAMED_SHARDS / 2
    assert all(len(uses) == 1 for uses in blocks.values())
    assert len({uses[0][1].index for uses in blocks.values()}) == 4
    assert max(used_samples(swarm).values()) == 1
    for trainer in swarm.world.peers[1:]:
        told = [event for event in swarm.events(trainer, Notice) if "looking for the shards" in event.text]
        assert [event.is_problem for event in told] == [False], "a volunteer knows what is waited for"


def test_a_pause_does_not_wait_for_a_server_that_is_asked_for_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swarm = swarm_of_streams(Path("texts-1"), 2, until=8)
    guest, asked = swarm.world.peers[1], list[tuple[float, str]]()

    async def apart(_work: object) -> None:
        await asyncio.sleep(1.0)
        asked.append((swarm.world.time_s, swarm.participants[guest.index].teller.data()[0]))
        swarm.ask_to_pause(guest)
        await asyncio.sleep(600.0)

    monkeypatch.setattr(guest.compute, "apart", apart)
    swarm.world.run()
    ((asked_s, data),) = asked
    assert data == "", "it is not known yet which data this is"
    (paused,) = swarm.events(guest, Paused)
    assert paused.at_s - EPOCH_S - asked_s < 1.0
