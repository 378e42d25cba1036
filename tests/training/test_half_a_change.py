"""A step or a state that fails half-way, as where a device's memory ends: what is left belongs to nobody's history."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from collab.swarm.parameter_store.base import Stored
from collab.training.anchored import AnchoredReplica
from collab.training.outer import OuterReplica
from collab.training.replica import Replica
from collab.training.unit_replica import UnitReplica
from collab.types import Lineage
from tests.training.toy import CONSTANT, Plain, seeded

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


def on_a_history(kind: type[Replica]) -> Replica:
    model = seeded(Plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ours = kind(model, optimizer, CONSTANT, device=torch.device("cpu"))
    ours.lineage = Lineage("a history")
    return ours


def step(ours: Replica) -> None:
    ours.step(np.ones(ours.layout.num_elements, np.float32), Lineage("the next"))


def load(ours: Replica) -> None:
    ours.load(on_a_history(type(ours)).snapshot())


def restart(ours: Replica) -> None:
    assert isinstance(ours, UnitReplica)
    ours.restart(Stored(version=1, values=ours.copy_layout.vector()), num_samples=8)


@pytest.mark.parametrize(
    ("kind", "change", "fails"),
    [
        (Replica, step, "optimizer.step"),
        (Replica, load, "optimizer.load_state_dict"),
        (AnchoredReplica, step, "_moved"),
        (OuterReplica, step, "_moved"),
        (AnchoredReplica, load, "optimizer.load_state_dict"),
        (UnitReplica, restart, "optimizer.load_state_dict"),
    ],
)
def test_it_is_on_no_history_then(
    monkeypatch: pytest.MonkeyPatch, kind: type[Replica], change: Callable[[Replica], None], fails: str
) -> None:
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError(FULL)

    ours = on_a_history(kind)
    owner: Any = ours.optimizer if fails.startswith("optimizer.") else ours
    monkeypatch.setattr(owner, fails.removeprefix("optimizer."), full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        change(ours)
    assert ours.lineage == "", "nobody is given it"
    assert ours.epoch == 0
    monkeypatch.undo()
    change(ours)
    assert ours.lineage, "the next whole change is one again"
