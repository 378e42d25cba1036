"""Runs that end when their model is good enough, in virtual time."""

from pathlib import Path

import pytest

from collab.metrics.records import EvaluationDone, Notice
from collab.simulation.peer import SimPeer
from collab.swarm.identity import Identity
from collab.tasks.base import Evaluation, Task
from tests.simulation.swarm import SimSwarm


def said(swarm: SimSwarm, peer: SimPeer) -> list[str]:
    return [event.text for event in swarm.events(peer, Notice) if "has reached its goal" in event.text]


@pytest.mark.parametrize("goal", ["until_accuracy: 0.85", "until_loss: 0.6"])
def test_everybody_ends_with_one_model_soon_after_a_checkpoint_is_good_enough(tmp_path: Path, goal: str) -> None:
    learns_fast = "{name: adamw, learning_rate: 0.02}"
    owner = Identity.from_seed(b"o" * 32)
    swarm = SimSwarm(tmp_path, until=400, every=10, owner=owner, goal=goal, optimizer=learns_fast)
    backbone = swarm.add_backbone()
    for _ in range(3):
        swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=900.0)
    results = [swarm.world.peers[index].result for index in swarm.participants]
    assert len({(result["epoch"], result["lineage"]) for result in results}) == 1
    measured = swarm.events(backbone, EvaluationDone)
    good = next(event for event in measured if (event.loss <= 0.6 if "loss" in goal else event.accuracy >= 0.85))
    assert good.epoch < results[0]["epoch"] <= good.epoch + 40
    assert len(said(swarm, backbone)) == 1
    assert swarm.backbones[0].keeper.shelf.saved_epoch == results[0]["epoch"]


class Boaster:
    """A task that says it has learnt everything."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)

    def evaluate(self, _model: object) -> Evaluation:
        return Evaluation(0.0, 1.0)


def test_a_trainer_that_boasts_ends_nothing(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30, owner=Identity.from_seed(b"o" * 32), goal="until_accuracy: 0.999")
    backbone = swarm.add_backbone()
    for _ in range(2):
        swarm.add_trainer(task=Boaster(swarm.task))  # type: ignore[arg-type]  # what it lacks is the real task's
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert {swarm.world.peers[index].result["epoch"] for index in swarm.participants} == {30}
    assert not said(swarm, backbone)


def test_only_the_owners_backbone_ends_the_run_whoever_publishes(tmp_path: Path) -> None:
    """The one that has joined comes first, and holds the lease."""
    owner = Identity.from_seed(b"o" * 32)
    swarm = SimSwarm(tmp_path, until=100, every=5, owner=owner, goal="until_loss: 1.75")
    backbone = swarm.add_backbone()
    joined = swarm.add_backbone(has_joined=True)
    for _ in range(2):
        swarm.add_trainer()
    swarm.churn.fail_at(peer=0, time_s=6.0, restart_after_s=25.0)
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert len(said(swarm, joined)) == 1
    assert len(said(swarm, backbone)) == 1
    ended = {swarm.world.peers[index].result["epoch"] for index in swarm.participants}
    assert len(ended) == 1
    assert ended.pop() < 100


def test_a_goal_that_is_reached_late_does_not_make_the_run_longer(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12, every=5, owner=Identity.from_seed(b"o" * 32), goal="until_loss: 2.3")
    backbone = swarm.add_backbone()
    swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert {swarm.world.peers[index].result["epoch"] for index in swarm.participants} == {12}
    assert len(said(swarm, backbone)) == 1
