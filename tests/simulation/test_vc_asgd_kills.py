"""VC-ASGD under random kills: whoever dies when, every unit is in the parameters once."""

import random
from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished
from tests.simulation.swarm import SimSwarm

SHARDS, PASSES = 8, 8
SERVERS, CLIENTS = (0, 1), (2, 3, 4, 5)
FIRST_S, LAST_S = 8.0, 40.0
"""Kills fall between these; without any a run takes some 40 s."""


@pytest.mark.parametrize("seed", range(20))
def test_no_unit_is_lost_or_counted_twice(tmp_path: Path, seed: int) -> None:
    """Each client but the last is killed, for good or for a while; each server is, one after the other."""
    swarm = SimSwarm(
        tmp_path,
        seed=seed,
        strategy="vc_asgd",
        until=PASSES * SHARDS,
        every=SHARDS,
        units=f"shards: {SHARDS}, first_lease_s: 20.0, units_at_once: {1 + seed % 2}",
    )
    swarm.backbones_stay_s = 60.0
    swarm.add_backbone()
    swarm.add_backbone(has_joined=True)
    for _ in CLIENTS:
        swarm.add_trainer()
    dice = random.Random(seed)
    for client in CLIENTS[:-1]:
        comes_back = dice.choice([None, dice.uniform(1.0, 15.0)])
        swarm.churn.fail_at(peer=client, time_s=dice.uniform(FIRST_S, LAST_S), restart_after_s=comes_back)
    moment_s = dice.uniform(FIRST_S, LAST_S / 2)
    for server in dice.sample(SERVERS, 2):
        down_s = dice.uniform(2.0, 8.0)
        swarm.churn.fail_at(peer=server, time_s=moment_s, restart_after_s=down_s)
        moment_s += down_s + dice.uniform(3.0, 8.0)
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert [set(swarm.store.done(number)) for number in range(1, PASSES + 1)] == [set(range(SHARDS))] * PASSES
    assert swarm.store.version() == PASSES * SHARDS
    survivor = swarm.world.peers[CLIENTS[-1]]
    assert survivor.result["epoch"] == PASSES * SHARDS
    stored = swarm.store.read()
    assert stored is not None
    assert (swarm.replicas[survivor.index].layout.parameters_vector() == stored.values).all()
    assert swarm.events(survivor, EpochFinished)
