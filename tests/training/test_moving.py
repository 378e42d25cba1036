"""A replica that leaves its device takes everything with it. Without a GPU: what moves is copied here."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from collab import config
from collab.training.genesis import replica_of
from collab.training.optimizers import build_optimizer
from collab.training.pausing import Pause, can_hand_in
from collab.training.replica import Replica
from tests.training.toy import Plain, Toy, batch, loss, seeded

CPU = torch.device("cpu")
STRATEGIES = {
    "dedloc": config.Dedloc(name="dedloc"),
    "dts": config.Dts(name="dts"),
    "diloco": config.Diloco(name="diloco"),
    "vc_asgd": config.VcAsgd(name="vc_asgd"),
}


def replica(strategy: config.Strategy, kind: type[torch.nn.Module] = Plain) -> Replica:
    """Over an optimiser that has a state."""
    model = seeded(kind)
    run = config.parse_run("{run_id: toy, task: {name: image_classification}}", origin="the test")
    run = run.model_copy(update={"strategy": strategy})
    return replica_of(run, model, build_optimizer(run.optimizer, model), CPU)


def tensors(value: object, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """All that can be reached from an object of this package."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors(inner, seen)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from tensors(inner, seen)
    elif isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, torch.optim.Optimizer):
        yield from tensors(dict(value.state), seen)
    elif type(value).__module__.startswith("collab."):
        names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
        for name in names:
            yield from tensors(getattr(value, name, None), seen)


def place(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Where its values are."""
    return tensor.detach().untyped_storage()


@pytest.fixture
def other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between two devices, moving a tensor gives another one."""
    ordinary = torch.Tensor.to

    def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return ordinary(tensor, *args, **kwargs).clone()

    monkeypatch.setattr(torch.Tensor, "to", moved)


@pytest.mark.usefixtures("other_memory")
@pytest.mark.parametrize("kind", [Plain, Toy])
@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_stays_where_it_was(name: str, kind: type[torch.nn.Module]) -> None:
    ours = replica(STRATEGIES[name], kind)
    for number in range(3):
        ours.accumulate(batch(number, 4), loss)
    if name != "vc_asgd":
        ours.hand_over()
        ours.accumulate(batch(3, 4), loss)
    before = list(tensors(ours))
    assert len(before) > len(ours.layout.slots)
    kept = [place(tensor) for tensor in before if tensor.numel()]  # so that no place is used again
    there = {storage.data_ptr() for storage in kept}
    ours.move_to(CPU)
    assert not [tuple(tensor.shape) for tensor in tensors(ours) if place(tensor).data_ptr() in there]
    ours.accumulate(batch(4, 4), loss)  # all of it fits together still
    trained = [parameter for parameter in ours.model.parameters() if parameter.requires_grad]
    assert all(ours is theirs for ours, theirs in zip(ours.layout.parameters, trained, strict=True))


@pytest.mark.parametrize("name", STRATEGIES)
def test_moving_to_where_it_is_changes_nothing(name: str) -> None:
    moved, stayed = replica(STRATEGIES[name]), replica(STRATEGIES[name])
    for ours in (moved, stayed):
        ours.accumulate(batch(1, 4), loss)
    moved.move_to(CPU)
    for ours in (moved, stayed):
        ours.accumulate(batch(2, 4), loss)
    assert moved.sample_ids == stayed.sample_ids
    assert moved.hand_over().mean.tobytes() == stayed.hand_over().mean.tobytes()
    assert moved.snapshot().tensors.keys() == stayed.snapshot().tensors.keys()


def test_a_pause_keeps_its_first_reason() -> None:
    pause = Pause()
    pause.ask("the machine runs on battery")
    pause.ask("it is not the time from 22:00 to 07:00")
    assert pause.wanted.is_set()
    assert pause.reason == "the machine runs on battery"


def test_half_a_unit_of_work_is_nothing_that_can_be_handed_in() -> None:
    can = {name: can_hand_in(strategy) for name, strategy in STRATEGIES.items()}
    assert can == {"dedloc": True, "dts": True, "diloco": True, "vc_asgd": False}
