"""Whole runs in virtual time in which something goes wrong, each fault at a named moment."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, Event, MicrobatchSkipped, Notice, Phase, RoundEnded, StateFetched
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.state_transfer import STATE_PROTOCOL
from collab.tasks.base import Batch, Evaluation, Task
from tests.simulation.swarm import SimSwarm

ROUND = [Phase.JOIN_GROUP, Phase.SEND_PARTS, Phase.BEFORE_COMMIT, Phase.COMMIT]


def assert_equal_ends(swarm: SimSwarm, peers: list[SimPeer], epoch: int) -> None:
    """All finished, with one history and the same bytes."""
    assert {peer.result["epoch"] for peer in peers} == {epoch}
    assert len({peer.result["lineage"] for peer in peers}) == 1
    first, *others = (swarm.replicas[peer.index].layout.parameters_vector() for peer in peers)
    assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("phase", [Phase.ACCUMULATE, *ROUND])
def test_a_trainer_killed_at_any_moment_costs_the_others_seconds_and_no_history(tmp_path: Path, phase: Phase) -> None:
    swarm = SimSwarm(tmp_path, until=8)
    swarm.add_backbone()
    victim, *others = [swarm.add_trainer() for _ in range(4)]
    swarm.churn.fail_at(peer=victim.index, phase=phase, epoch=3)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, others, epoch=8)
    for peer in others:
        steps = swarm.events(peer, EpochFinished)
        assert [step.epoch for step in steps] == list(range(1, 9))
        assert max(step.seconds for step in steps[1:]) < 10.0


@pytest.mark.parametrize("phase", ROUND)
def test_the_leader_killed_at_any_moment_leaves_the_trainers_with_one_history(tmp_path: Path, phase: Phase) -> None:
    swarm = SimSwarm(tmp_path, until=8)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.churn.fail_at(peer=backbone.index, phase=phase, epoch=3)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, trainers, epoch=8)


def test_samples_of_a_round_that_somebody_died_in_are_in_a_step_or_still_with_their_peer(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=8)
    swarm.add_backbone()
    victim, *others = [swarm.add_trainer() for _ in range(4)]
    swarm.churn.fail_at(peer=victim.index, phase=Phase.SEND_PARTS, epoch=3)
    swarm.world.run()
    assert not swarm.churn.unfired()
    for peer in others:
        lost = [event for event in swarm.events(peer, RoundEnded) if not event.committed]
        assert not lost, "the round that the victim died in went on"
        used = sum(step.own_samples for step in swarm.events(peer, EpochFinished))
        computed = swarm.replicas[peer.index].samples + used
        assert used > 0
        assert computed == 8 * len(accumulated(peer)), "every sample is used, or still with its peer"


def accumulated(peer: SimPeer) -> list[Event]:
    """Its microbatches that were not skipped."""
    return [event for event in peer.events if type(event).__name__ == "MicrobatchDone"]


def test_a_frozen_trainer_delays_the_others_by_bounded_time_and_comes_back(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=60)
    swarm.add_backbone()
    victim, *others = [swarm.add_trainer(samples_per_s=25.0) for _ in range(4)]
    swarm.churn.freeze_at(peer=victim.index, phase=Phase.SEND_PARTS, epoch=3, for_s=60.0)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, [victim, *others], epoch=60)
    longest = max(step.seconds for peer in others for step in swarm.events(peer, EpochFinished)[1:])
    assert longest < 45.0
    assert victim.result["epoch"] == 60
    assert swarm.events(victim, EpochFinished)[-1].contributors == 4, "it contributes again after its thaw"


class SickTask:
    """A task whose loss is NaN on some microbatches of one peer."""

    def __init__(self, task: Task, sick: range) -> None:
        self._task, self._sick, self._count = task, sick, 0

    def build_model(self) -> torch.nn.Module:
        return self._task.build_model()

    @property
    def num_samples(self) -> int:
        return self._task.num_samples

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        return self._task.batch(sample_ids)

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self._count += 1
        return self._task.loss(model, tensors) * (math.nan if self._count in self._sick else 1.0)

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        return self._task.evaluate(model)

    def checkpoint_files(self) -> Mapping[str, bytes]:
        return self._task.checkpoint_files()


def test_a_peer_whose_loss_is_nan_sits_out_says_so_recovers_and_the_swarm_never_sees_it(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=20)
    swarm.add_backbone()
    sick = swarm.add_trainer(task=SickTask(swarm.task, range(10, 30)))
    well = [swarm.add_trainer() for _ in range(2)]
    swarm.world.run()
    assert len(swarm.events(sick, MicrobatchSkipped)) == 20
    assert any("not finite" in notice.text for notice in swarm.events(sick, Notice))
    assert_equal_ends(swarm, [sick, *well], epoch=20)
    assert np.isfinite(swarm.replicas[sick.index].layout.parameters_vector()).all()
    counts = [step.contributors for step in swarm.events(well[0], EpochFinished)]
    assert 2 in counts, "the others went on without it"
    assert counts[-1] == 3, "it contributes again"
    lost = [event for peer in well for event in swarm.events(peer, RoundEnded) if not event.committed]
    assert lost == []


def test_a_latecomer_takes_over_the_state_and_contributes(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30)
    swarm.add_backbone()
    early = [swarm.add_trainer() for _ in range(2)]
    late: list[SimPeer] = []
    swarm.world.call_at(8.0, lambda: late.append(swarm.add_trainer()))
    swarm.world.run()
    assert_equal_ends(swarm, [*early, *late], epoch=30)
    assert sum(step.own_samples for step in swarm.events(late[0], EpochFinished)) > 0
    assert swarm.events(early[0], EpochFinished)[-1].contributors == 3


def test_a_trainer_that_leaves_says_goodbye_and_nobody_waits_for_it(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30)
    swarm.add_backbone()
    leaver, *others = [swarm.add_trainer() for _ in range(3)]
    swarm.world.call_at(8.0, lambda: swarm.ask_to_leave(leaver))
    swarm.world.run()
    assert 0 < leaver.result["epoch"] < 30
    assert_equal_ends(swarm, others, epoch=30)
    lost = [event for peer in others for event in swarm.events(peer, RoundEnded) if not event.committed]
    assert lost == []


def test_a_volunteer_that_offered_three_steps_leaves_after_them(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12)
    swarm.add_backbone()
    brief, other = swarm.add_trainer(max_epochs=3), swarm.add_trainer()
    swarm.world.run()
    assert len([step for step in swarm.events(brief, EpochFinished) if step.own_samples]) == 3
    assert brief.result["epoch"] < 12
    assert other.result["epoch"] == 12


def test_the_last_trainers_state_is_safe_with_the_backbone_when_it_leaves(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=1000, every=100)
    swarm.add_backbone()
    trainer = swarm.add_trainer()
    swarm.world.call_at(30.0, lambda: swarm.ask_to_leave(trainer))
    swarm.world.run()
    kept = swarm.backbones[0].record()
    assert trainer.result["epoch"] % 100 != 0, "no regular checkpoint"
    assert (kept.checkpoint_epoch, kept.lineage) == (trainer.result["epoch"], trainer.result["lineage"])


def test_after_everybody_died_the_run_resumes_from_the_backbones_checkpoint(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=20, every=5)
    swarm.add_backbone()
    first = [swarm.add_trainer() for _ in range(2)]
    for peer in first:
        swarm.churn.fail_at(peer=peer.index, phase=Phase.ACCUMULATE, epoch=7)
    second: list[SimPeer] = []
    swarm.world.call_at(60.0, lambda: second.extend([swarm.add_trainer(), swarm.add_trainer()]))
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, second, epoch=20)
    first_steps = [swarm.events(peer, EpochFinished)[0] for peer in second]
    first = min(first_steps, key=lambda step: step.at_s)
    assert first.epoch == 6, "after the checkpoint of epoch 5"
    assert first.at_s - EPOCH_S < 60.0 + FIRST.reform_s, "newcomers miss those who decided from their first moment on"


def test_peers_that_cannot_be_dialled_train_with_those_that_can(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12, compression="half")
    swarm.add_backbone()
    trainers = [swarm.add_trainer(), swarm.add_trainer(client_mode=True), swarm.add_trainer(client_mode=True)]
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    assert all(step.contributors == 3 for step in swarm.events(trainers[0], EpochFinished)[2:])


def test_an_auxiliary_peer_reduces_in_every_round_and_contributes_to_none(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12)
    swarm.add_backbone()
    auxiliary = swarm.add_auxiliary()
    trainers = [swarm.add_trainer() for _ in range(2)]
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    assert auxiliary.result >= 10
    assert max(step.contributors for step in swarm.events(trainers[0], EpochFinished)) == 2


def test_the_same_seed_gives_the_same_run_to_the_last_delivery(tmp_path: Path) -> None:
    digests = []
    for seed in (3, 3, 4):
        shutil.rmtree(tmp_path)  # a checkpoint's path is part of its event
        swarm = SimSwarm(tmp_path, until=5, seed=seed)
        swarm.add_backbone()
        swarm.add_trainer(samples_per_s=70)
        swarm.add_trainer(samples_per_s=130)
        swarm.world.run()
        digests.append(swarm.world.digest())
    assert digests[0] == digests[1] != digests[2]


def test_solo_peers_train_alone_and_send_nothing_to_each_other(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=6, strategy="solo", target=64)
    swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(2)]
    swarm.world.run()
    assert {peer.result["epoch"] for peer in trainers} == {6}
    assert len({peer.result["lineage"] for peer in trainers}) == 2
    assert all(swarm.contributors(peer) == [] for peer in trainers)


def test_a_corrupted_chunk_of_state_is_refused_and_the_newcomer_gets_it_whole(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=6)
    swarm.add_backbone()
    swarm.churn.corrupt_at(peer=0, protocol=STATE_PROTOCOL, time_s=0.0)
    trainer = swarm.add_trainer()
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert trainer.result["epoch"] == 6
    fetched = swarm.events(trainer, StateFetched)
    assert len(fetched) == 1
    assert fetched[0].at_s - 1_700_000_000 > 0.9, "the first attempt was refused, and the next one came a pause later"
