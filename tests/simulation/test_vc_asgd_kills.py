"""VC-ASGD under random kills: whoever dies when, every unit is in the parameters once."""

import random
from collections import Counter
from pathlib import Path

import pytest

from collab.data.work_units import Unit
from collab.metrics.records import EpochFinished
from collab.swarm.parameter_store.eras import EraStores
from tests.simulation.mortal_store import MortalStore, units_done
from tests.simulation.swarm import SimSwarm

SHARDS, PASSES = 8, 8
SERVERS, CLIENTS = (0, 1), (2, 3, 4, 5)
FIRST_S, LAST_S = 8.0, 40.0
"""Kills fall between these; without any a run takes some 40 s."""


def swarm_of(directory: Path, *, seed: int, at_once: int = 1) -> tuple[SimSwarm, MortalStore]:
    """Two servers and four clients over a store that can die."""
    swarm = SimSwarm(
        directory,
        seed=seed,
        strategy="vc_asgd",
        until=PASSES * SHARDS,
        every=SHARDS,
        units=f"shards: {SHARDS}, first_lease_s: 20.0, units_at_once: {at_once}",
    )
    store = MortalStore(swarm.world)
    swarm.roles.stores = EraStores(lambda _era: store)
    swarm.backbones_stay_s = 60.0
    swarm.add_backbone()
    swarm.add_backbone(has_joined=True)
    for _ in CLIENTS:
        swarm.add_trainer()
    return swarm, store


def assert_each_unit_counts_once(swarm: SimSwarm, store: MortalStore) -> None:
    """In what is kept of the units, in the parameters themselves, and in what clients end with."""
    everything = [Unit(number, shard) for number in range(1, PASSES + 1) for shard in range(SHARDS)]
    assert Counter(push.unit for push in store.pushes) == Counter(everything)
    assert units_done(store, SHARDS) == everything
    stored, replayed = store.read(), store.replayed()
    assert stored is not None
    assert stored.version == replayed.version == PASSES * SHARDS
    assert stored.values.tobytes() == replayed.values.tobytes()
    survivor = swarm.world.peers[CLIENTS[-1]]
    assert survivor.result["epoch"] == PASSES * SHARDS
    assert (swarm.replicas[survivor.index].layout.parameters_vector() == stored.values).all()
    assert swarm.events(survivor, EpochFinished)


@pytest.mark.parametrize("seed", range(20))
def test_no_unit_is_lost_or_counted_twice(tmp_path: Path, seed: int) -> None:
    """Each client but the last is killed, for good or for a while; each server is, one after the other; and the store
    is, once between two pushes and once in the middle of one.
    """
    swarm, store = swarm_of(tmp_path, seed=seed, at_once=1 + seed % 2)
    dice = random.Random(seed)
    for client in CLIENTS[:-1]:
        comes_back = dice.choice([None, dice.uniform(1.0, 15.0)])
        swarm.churn.fail_at(peer=client, time_s=dice.uniform(FIRST_S, LAST_S), restart_after_s=comes_back)
    moment_s = dice.uniform(FIRST_S, LAST_S / 2)
    for server in dice.sample(SERVERS, 2):
        down_s = dice.uniform(2.0, 8.0)
        swarm.churn.fail_at(peer=server, time_s=moment_s, restart_after_s=down_s)
        moment_s += down_s + dice.uniform(3.0, 8.0)
    store.fail_at(dice.uniform(FIRST_S, LAST_S / 2), for_s=dice.uniform(0.5, 6.0))
    moment_s = dice.uniform(LAST_S / 2 + 6.0, LAST_S)
    store.fail_in_a_push_after(moment_s, for_s=dice.uniform(0.5, 6.0), is_applied=seed % 4 < 2)
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert store.deaths == 2
    assert_each_unit_counts_once(swarm, store)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_push_in_whose_middle_the_store_dies_counts_once(tmp_path: Path, is_applied: bool) -> None:
    swarm, store = swarm_of(tmp_path, seed=1)
    for moment_s in (12.0, 20.0, 28.0):
        store.fail_in_a_push_after(moment_s, for_s=3.0, is_applied=is_applied)
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert store.deaths == 3
    assert_each_unit_counts_once(swarm, store)
    clients = [swarm.world.peers[index] for index in CLIENTS]
    counted = sum(event.own_samples for client in clients for event in swarm.events(client, EpochFinished))
    assert counted == PASSES * swarm.task.num_samples, "each client knows what of its work counts"


@pytest.mark.parametrize("forgets", [1, 3, 12])
def test_pushes_that_were_not_on_the_disk_when_the_power_failed_are_done_again(tmp_path: Path, forgets: int) -> None:
    """Redis with ``appendfsync everysec`` loses the last second, whole and with its units."""
    swarm, store = swarm_of(tmp_path, seed=2)
    store.fail_at(18.0, for_s=2.0, forgets=forgets)
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert_each_unit_counts_once(swarm, store)
