"""A GPU that computes in float16, and a model that needs larger numbers."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from collab.metrics.records import MicrobatchSkipped, Notice
from collab.training import precision
from collab.training.precision import Precision
from collab.training.trainer import FLOAT32_FROM_NOW_ON
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_evaluating import Another
from tests.simulation.test_faults import assert_equal_ends


def test_it_is_trained_in_float32_and_its_owner_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda _: Precision.FLOAT16)
    swarm = SimSwarm(tmp_path, until=4)
    swarm.add_backbone()

    def loss(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return swarm.task.loss(lambda pixels: model(pixels) * 1e6 / 1e6, tensors)  # type: ignore[arg-type]

    wide = swarm.add_trainer(task=Another(swarm.task, loss=loss))  # type: ignore[arg-type]
    usual = swarm.add_trainer()
    swarm.world.run()
    assert_equal_ends(swarm, [wide, usual], epoch=4)
    assert not swarm.events(wide, MicrobatchSkipped), "nothing is lost, from the first one on"
    (told,) = (event for event in swarm.events(wide, Notice) if FLOAT32_FROM_NOW_ON in event.text)
    assert not told.is_problem
    assert not [event for event in swarm.events(usual, Notice) if FLOAT32_FROM_NOW_ON in event.text]
    assert [swarm.replicas[peer.index].precision for peer in (wide, usual)] == [Precision.FLOAT32, Precision.FLOAT16]
