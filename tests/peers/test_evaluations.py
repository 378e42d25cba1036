"""What a backbone measures of checkpoints."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collab.config import parse_run
from collab.metrics.records import EvaluationDone
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.snapshots import Snapshot, pack
from collab.tasks.base import Evaluation
from collab.training.judging import evaluate_state
from collab.training.vitals import Vitals
from collab.types import PeerId, Role
from peers.evaluations import Evaluations, Measured
from peers.goal import Goal
from tests.fakes import FakeNetwork, FakeObserver, make_ports, run
from tests.swarm.test_snapshots import SNAPSHOT

UNITS = "run_id: measured\ntask: {name: image_classification}\nstrategy: {name: vc_asgd}\n"


def test_a_state_is_measured_once_and_after_a_rollback_the_same_epoch_is_another_state() -> None:
    async def work() -> tuple[list[float], list[float]]:
        ports = make_ports(FakeNetwork().join("a"))
        nobody: Any = None

        def evaluate(state: Snapshot) -> Evaluation:
            return Evaluation(loss=float(state.tensors["model.a"][0]), accuracy=0.5)

        evaluations = Evaluations(ports, parse_run(UNITS, origin="the test"), nobody, evaluate)
        given_up = pack(SNAPSHOT, fingerprint="f")
        tensors = {**SNAPSHOT.tensors, "model.a": np.array([0.25], np.float32)}
        again = pack(replace(SNAPSHOT, tensors=tensors, era="mark"), fingerprint="f")
        told = [await evaluations.of(packed) for packed in (given_up, given_up, again)]
        assert isinstance(ports.observer, FakeObserver)
        return told, [event.loss for event in ports.observer.events if isinstance(event, EvaluationDone)]

    told, measured = run(work())
    assert told == [1.5, 1.5, 0.25]
    assert measured == [1.5, 0.25]


def test_a_backbone_goes_on_where_the_tasks_own_code_fails(caplog: pytest.LogCaptureFixture) -> None:
    def evaluate(_model: torch.nn.Module) -> Evaluation:
        raise KeyError("labels")

    task: Any = SimpleNamespace(build_model=torch.nn.Module, evaluate=evaluate)
    nobody: Any = None
    ports, units = make_ports(FakeNetwork().join("a")), parse_run(UNITS, origin="the test")
    evaluations = Evaluations(ports, units, nobody, lambda state: evaluate_state(task, state))
    assert math.isnan(run(evaluations.of(pack(SNAPSHOT, fingerprint="f"))))
    assert "the task could not evaluate: KeyError: 'labels'" in caplog.text


def test_what_a_trainer_said_of_an_epoch_before_a_rollback_is_nothing_of_the_same_epoch_after_it() -> None:
    """The first by id has not heard of the rollback, the second one has evaluated nothing since."""
    before, behind, there = record("a", era=""), record("b", era="mark", eval_epoch=-1), record("c", era="mark")
    there = replace(there, eval_loss=0.25)
    losses = [now((before, behind)), now((before, behind, there))]
    assert math.isnan(losses[0])
    assert losses[1] == 0.25


def test_a_trainer_says_nothing_of_a_state_that_was_rolled_back() -> None:
    vitals = Vitals()
    vitals.note_evaluation(20, "", Evaluation(loss=1.5, accuracy=0.5))
    assert vitals.evaluation_in("") == (20, Evaluation(loss=1.5, accuracy=0.5))
    epoch, found = vitals.evaluation_in("mark")
    assert epoch == -1
    assert math.isnan(found.loss)


def test_what_was_measured_here_is_told_of_its_own_era_only() -> None:
    async def work() -> list[Any]:
        ports = make_ports(FakeNetwork().join("a"))
        nobody: Any = None
        evaluations = Evaluations(
            ports, parse_run(UNITS, origin="the test"), nobody, lambda _state: Evaluation(loss=1.5, accuracy=0.5)
        )
        await evaluations.of(pack(SNAPSHOT, fingerprint="f"))
        return [evaluations.newest(""), evaluations.newest("mark")]

    told = run(work())
    assert told == [(SNAPSHOT.epoch, Evaluation(loss=1.5, accuracy=0.5)), None]


@pytest.mark.parametrize(("era", "number"), [("", 0), ("mark", 1)])
def test_a_state_that_was_rolled_back_while_it_was_measured_reaches_no_goal(era: str, number: int) -> None:
    async def work() -> int:
        ports = make_ports(FakeNetwork().join("a"))
        mandate: Any = SimpleNamespace(era="mark", until_epoch=None)
        goal = Goal(ports, parse_run(UNITS + "until_loss: 1.0\n", origin="the test"), mandate, None)
        good = Evaluation(loss=0.5, accuracy=0.5)
        goal.note_measured(Measured(epoch=20, era=era, digest="d", found=good))
        assert isinstance(ports.observer, FakeObserver)
        return len(ports.observer.events)

    assert run(work()) == number


def record(peer: str, *, era: str, eval_epoch: int = 20) -> PeerRecord:
    return PeerRecord(
        peer=PeerId(peer), fingerprint="f", name=peer, role=Role.TRAINER, state=PeerState.TRAINING, said_at=0.0,
        can_be_dialled=True, epoch=20, era=era, eval_epoch=eval_epoch, eval_loss=1.5,
    )  # fmt: skip


def now(records: tuple[PeerRecord, ...]) -> float:
    """The loss of epoch 20 as a backbone hears of it after the rollback ``mark``."""
    membership: Any = SimpleNamespace(view=SwarmView(records, at_s=0.0), era="mark")
    ports = make_ports(FakeNetwork().join("backbone"))
    return Evaluations(ports, parse_run(UNITS, origin="the test"), membership, None).now(20)
