"""Those who decide are started again, as after a power cut: they have no seats, and the run goes on anyway."""

from itertools import pairwise
from pathlib import Path

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, Phase
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

KILLED_EPOCH, RESTART_S, LEFT_S = 7, 30.0, 40.5


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


def test_when_a_backbone_that_said_goodbye_is_back_before_the_next_step_nobody_waits_for_it(tmp_path: Path) -> None:
    """Its goodbye was void when it was back, and one of two who decide is no quorum: that took three minutes."""
    swarm = SimSwarm(tmp_path, until=30, every=5)
    backbone = swarm.add_backbone()
    trainer = swarm.add_trainer(samples_per_s=16.0)
    swarm.world.call_at(LEFT_S, lambda: swarm.ask_to_leave(backbone))
    swarm.world.call_at(LEFT_S + 2.0, lambda: (swarm.stops.pop(backbone.index), swarm.world.restart(backbone.index)))
    with swarm.world:
        swarm.world.run(until_s=LEFT_S + 60.0)
    steps_s = [event.at_s for event in swarm.events(trainer, EpochFinished)]
    steps_s.append(EPOCH_S + LEFT_S + 60.0)
    assert max(after - before for before, after in pairwise(steps_s)) < 10.0, "128 samples at 16 a second"


def test_when_a_backbone_was_started_again_beside_one_trainer_the_run_goes_on(tmp_path: Path) -> None:
    """Half of those who decide have forgotten their votes, and are here: it stood still for ever."""
    swarm = SimSwarm(tmp_path, until=30, every=5)
    backbone, trainer = swarm.add_backbone(), swarm.add_trainer(microbatch_size=32)
    swarm.churn.fail_at(peer=backbone.index, time_s=10.0, restart_after_s=1.0)
    with swarm.world:
        swarm.world.run(until_s=10.0 + FIRST.reform_s + 60.0)
    assert_equal_ends(swarm, [trainer], epoch=30)
