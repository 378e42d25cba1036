"""Peers that come back with the state they had: nothing is downloaded twice, and nothing that anybody holds is lost."""

from collections import Counter
from pathlib import Path

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, Phase, StateFetched
from collab.simulation.peer import SimPeer
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends


def with_copies(
    directory: Path,
    number: int,
    *,
    until: int,
    target: int = 128,
    microbatch_size: int = 8,
    samples_per_s: float = 100.0,
) -> tuple[SimSwarm, list[SimPeer]]:
    """A backbone, and trainers that keep copies."""
    swarm = SimSwarm(directory, until=until, every=10, target=target)
    swarm.add_backbone()
    places = [directory / f"trainer-{index}" for index in range(number)]
    trainers = [
        swarm.add_trainer(samples_per_s=samples_per_s, microbatch_size=microbatch_size, state_dir=place)
        for place in places
    ]
    return swarm, trainers


def test_a_killed_trainer_contributes_again_within_two_epochs_and_downloads_no_state(tmp_path: Path) -> None:
    # a step takes five seconds
    swarm, (victim, *others) = with_copies(tmp_path, 4, until=20, target=2048, microbatch_size=32)
    swarm.churn.fail_at(peer=victim.index, phase=Phase.SEND_PARTS, epoch=13, restart_after_s=2.0)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, [victim, *others], epoch=20)
    assert len(swarm.events(victim, StateFetched)) == 1, "when it came for the first time"
    back_s = next(e.at_s for e in swarm.events(victim, EpochFinished) if e.epoch > 13 and e.own_samples)
    killed_s = max(e.at_s for e in swarm.events(victim, EpochFinished) if e.epoch <= 13)
    passed = [e for e in swarm.events(others[0], EpochFinished) if killed_s + 2.0 < e.at_s <= back_s]
    assert len(passed) <= 2


def test_after_everybody_died_the_run_goes_on_from_the_newest_copy_of_a_trainer(tmp_path: Path) -> None:
    swarm, trainers = with_copies(tmp_path, 3, until=20, samples_per_s=25.0)
    for peer in trainers:
        swarm.churn.fail_at(peer=peer.index, phase=Phase.ACCUMULATE, epoch=17)
    for peer in trainers:
        swarm.world.call_at(60.0 + peer.index, lambda peer=peer: swarm.world.restart(peer.index))
    with swarm.world:
        swarm.world.run(until_s=60.0 + FIRST.reform_s + 60.0)  # they have forgotten what they voted: see test_restarts
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, trainers, epoch=20)
    for peer in trainers:
        steps = Counter(step.epoch for step in swarm.events(peer, EpochFinished))
        again = [epoch for epoch, times in steps.items() if times > 1]
        assert min(again, default=20) >= 16, "the backbone's checkpoint is of epoch 10"
