"""Those who decide are started again, as after a power cut: they have no seats, and the run goes on anyway."""

from pathlib import Path

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, Phase
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

KILLED_EPOCH, RESTART_S = 7, 30.0


def test_when_all_trainers_were_started_again_the_run_goes_on_after_three_minutes(tmp_path: Path) -> None:
    """The backbone knows who made the history, and these know nothing of their votes: it stood still for ever."""
    swarm = SimSwarm(tmp_path, until=12, every=5)
    swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    for peer in trainers:
        swarm.churn.fail_at(peer=peer.index, phase=Phase.ACCUMULATE, epoch=KILLED_EPOCH)
        swarm.world.call_at(RESTART_S, lambda peer=peer: swarm.world.restart(peer.index))
    with swarm.world:
        swarm.world.run(until_s=RESTART_S + FIRST.reform_s + 60.0)
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, trainers, epoch=12)
    again = [step for peer in trainers for step in swarm.events(peer, EpochFinished) if step.epoch > KILLED_EPOCH + 1]
    assert {step.contributors for step in again} == {3}


def test_when_a_backbone_was_started_again_beside_one_trainer_the_run_goes_on(tmp_path: Path) -> None:
    """Half of those who decide have forgotten their votes, and are here: it stood still for ever."""
    swarm = SimSwarm(tmp_path, until=30, every=5)
    backbone, trainer = swarm.add_backbone(), swarm.add_trainer(microbatch_size=32)
    swarm.churn.fail_at(peer=backbone.index, time_s=10.0, restart_after_s=1.0)
    with swarm.world:
        swarm.world.run(until_s=10.0 + FIRST.reform_s + 60.0)
    assert_equal_ends(swarm, [trainer], epoch=30)
