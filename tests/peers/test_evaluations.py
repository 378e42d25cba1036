"""What a backbone measures of checkpoints."""

from dataclasses import replace
from typing import Any

import numpy as np

from collab.config import parse_run
from collab.metrics.records import EvaluationDone
from collab.swarm.snapshots import Snapshot, pack
from collab.tasks.base import Evaluation
from peers.evaluations import Evaluations
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
