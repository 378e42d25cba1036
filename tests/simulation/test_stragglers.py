"""Trainers that are slower than the others, for a while or always: nobody waits, and what they compute counts."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.averaging.deadlines import FLOOR_S
from collab.metrics.records import EpochFinished, MicrobatchDone
from collab.simulation.peer import SimPeer
from collab.tasks.base import Task
from tests.simulation.swarm import SimSwarm


def beside_a_straggler(directory: Path, *, target: int, until: int = 20) -> tuple[SimSwarm, list[SimPeer], SimPeer]:
    """Three trainers and one with 20 times longer microbatches, after a run."""
    swarm = SimSwarm(directory, until=until, target=target)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=100.0) for _ in range(3)]
    slow = swarm.add_trainer(samples_per_s=5.0)
    swarm.world.run()
    return swarm, trainers, slow


StepsS = Callable[[int, bool], list[float]]


@pytest.fixture(scope="module")
def steps_s(tmp_path_factory: pytest.TempPathFactory) -> StepsS:
    """Seconds of each step from the tenth on, of three trainers and perhaps one with 20 times longer microbatches; by
    the target, and whether that one is there. Played once, whoever looks at it.
    """

    @cache
    def played(target: int, straggles: bool) -> list[float]:
        swarm = SimSwarm(tmp_path_factory.mktemp("straggler"), until=30, target=target)
        swarm.add_backbone()
        trainers = [swarm.add_trainer(samples_per_s=100.0) for _ in range(3)]
        if straggles:
            swarm.add_trainer(samples_per_s=5.0)
        swarm.world.run()
        return [event.seconds for event in swarm.events(trainers[0], EpochFinished)][10:]

    return played


@pytest.mark.parametrize("target", [150, 600])
def test_a_straggler_makes_no_step_longer_than_the_learned_deadline(steps_s: StepsS, target: int) -> None:
    alone, beside = steps_s(target, False), steps_s(target, True)
    assert max(beside) <= max(alone) + FLOOR_S + 0.05


def test_what_a_trainer_computes_while_it_is_too_slow_is_in_a_step_once_it_is_not(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30, target=600)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=100.0) for _ in range(4)]
    wavering = trainers[-1]
    swarm.churn.slow_at(wavering.index, 20, epoch=4)
    swarm.churn.slow_at(wavering.index, 1 / 20, time_s=30.0)
    swarm.world.run()
    assert not swarm.churn.unfired()
    steps = [event for event in swarm.events(wavering, EpochFinished) if event.own_samples]
    stale = [epoch for step in steps for epoch in step.sample_epochs if epoch < step.epoch - 1]
    assert len(set(stale)) > 2  # several steps went by without it
    computed = sum(done.samples for done in swarm.events(wavering, MicrobatchDone))
    assert sum(step.own_samples for step in steps) + swarm.replicas[wavering.index].samples == computed
    assert steps[-1].epoch == 30
    assert len({peer.result["lineage"] for peer in trainers}) == 1


@pytest.mark.parametrize("target", [150, 600, 870])
def test_a_straggler_contributes_to_the_end_while_it_computes(tmp_path: Path, target: int) -> None:
    swarm, trainers, slow = beside_a_straggler(tmp_path, target=target, until=30)
    steps = [step for step in swarm.events(slow, EpochFinished) if step.own_samples and step.contributors > 1]
    assert len([step for step in steps if step.epoch > 10]) >= 2
    computed = sum(done.samples for done in swarm.events(slow, MicrobatchDone))
    assert sum(step.own_samples for step in steps) + swarm.replicas[slow.index].samples == computed
    assert len({peer.result["lineage"] for peer in [*trainers, slow]}) == 1


def test_a_straggler_costs_the_others_nothing(steps_s: StepsS) -> None:
    alone, beside = steps_s(600, False), steps_s(600, True)
    assert sum(beside) <= 1.02 * sum(alone)


def test_what_a_straggler_brings_while_it_computes_was_computed_before_and_is_brought_once(tmp_path: Path) -> None:
    swarm, _, slow = beside_a_straggler(tmp_path, target=600)
    done = swarm.events(slow, MicrobatchDone)
    steps = [step for step in swarm.events(slow, EpochFinished) if step.own_samples]
    ids = [sample_id for step in steps for sample_id in step.sample_ids]
    computed = sum(each.samples for each in done)  # passes follow each other, so that a sample comes again by itself
    assert len(ids) + swarm.replicas[slow.index].samples == computed
    for step in steps:
        assert sum(each.samples for each in done if each.at_s <= step.at_s) >= step.own_samples
    stale = [step for step in steps if min(step.sample_epochs) < step.epoch - 1]
    assert stale  # the microbatch that was under way when the step was decided


@pytest.mark.parametrize("speed", [16.0, 8.0, 2.0])
def test_equal_trainers_with_long_microbatches_all_take_part(tmp_path: Path, speed: float) -> None:
    swarm = SimSwarm(tmp_path, until=12, target=int(speed * 70))  # 0.25, 0.5 and 2 s a microbatch
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=speed, microbatch_size=4) for _ in range(7)]
    swarm.world.run()
    steps = swarm.events(trainers[0], EpochFinished)[2:]
    assert sum(step.contributors == 7 for step in steps) >= 0.9 * len(steps)


class Overflowing:
    """A task whose every third microbatch is not finite."""

    def __init__(self, task: Task) -> None:
        self._task, self._number = task, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        self._number += 1
        return self._task.loss(model, batch) * (float("nan") if self._number % 3 == 0 else 1.0)


def test_two_trainers_go_on_when_one_declines_a_call_for_a_broken_microbatch(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30, target=64)
    swarm.add_backbone()
    sound = swarm.add_trainer(samples_per_s=10)
    swarm.add_trainer(samples_per_s=10, task=Overflowing(swarm.task))  # type: ignore[arg-type]
    swarm.world.run(until_s=400)
    assert swarm.replicas[sound.index].epoch == 30
