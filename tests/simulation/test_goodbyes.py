"""Peers that say goodbye cost those who stay nothing, and take nothing with them."""

from itertools import pairwise
from pathlib import Path

import pytest

from collab.metrics.records import CheckpointSaved, EpochFinished, StateFetched
from tests.simulation.swarm import SimSwarm

LEFT_S = 20.0


@pytest.mark.parametrize("leaving", [3, 4])
def test_when_most_leave_at_once_the_others_go_on_at_once(tmp_path: Path, leaving: int) -> None:
    swarm = SimSwarm(tmp_path, until=60)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=50) for _ in range(5)]
    for peer in trainers[:leaving]:
        swarm.world.call_at(LEFT_S, lambda peer=peer: swarm.ask_to_leave(peer))
    swarm.world.run()
    for peer in trainers[leaving:]:
        steps_s = [event.at_s for event in swarm.events(peer, EpochFinished)]
        assert peer.result["epoch"] == 60
        assert max(after - before for before, after in pairwise(steps_s)) < 10.0, "128 samples at 50 a second"


@pytest.mark.parametrize("apart_s", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("left_s", [20.4, 20.8])
def test_of_trainers_that_leave_together_one_hands_the_newest_state_over(
    tmp_path: Path, left_s: float, apart_s: float
) -> None:
    swarm = SimSwarm(tmp_path, until=10_000, every=1_000)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=50) for _ in range(3)]
    for number, peer in enumerate(trainers):
        swarm.world.call_at(left_s + number * apart_s, lambda peer=peer: swarm.ask_to_leave(peer))
    swarm.world.run()
    newest = max(peer.result["epoch"] for peer in trainers)
    assert newest > 5
    assert swarm.events(backbone, CheckpointSaved)[-1].epoch == newest
    assert swarm.events(backbone, StateFetched)[-1].epoch == newest
