"""What of a model a client's copy is, and what each unit begins with."""

import numpy as np
import pytest
import torch

from collab import config
from collab.errors import ConfigError, ShapeMismatch
from collab.swarm.parameter_store.base import Stored
from collab.training.copy_layout import CopyLayout
from collab.training.optimizers import build_optimizer
from collab.training.unit_replica import UnitReplica
from tests.training.toy import CONSTANT, Plain, Toy, batch, loss, seeded

SGD = config.Optimizer(name="sgd", learning_rate=0.1, momentum=0.9)
SAMPLES = 12


class Moving(Plain):
    """A buffer of its own that every batch changes, and a constant one that nobody could mix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        out: torch.Tensor = super().forward(x)
        return out


def replica(kind: type[torch.nn.Module] = Toy) -> UnitReplica:
    model = seeded(kind)
    return UnitReplica(model, build_optimizer(SGD, model), CONSTANT, device=torch.device("cpu"))


def begun(ours: UnitReplica, version: int, values: "np.ndarray | None" = None) -> Stored:  # type: ignore[type-arg]
    stored = Stored(version, ours.copy_layout.vector() if values is None else values)
    ours.restart(stored, SAMPLES)
    return stored


def compute(ours: UnitReplica, first: int = 0) -> None:
    for start in range(first, first + SAMPLES, 6):
        assert not ours.accumulate(batch(start, 6), loss).skipped


def test_a_copy_has_the_statistics_of_norms_behind_the_parameters() -> None:
    ours = replica()
    assert ours.copy_layout.names[-2:] == ("norm.running_mean", "norm.running_var")
    assert ours.copy_layout.num_elements == ours.layout.num_elements + 32
    stored = begun(ours, 3)
    compute(ours)
    copy = ours.hand_over().mean
    assert copy.shape == stored.values.shape
    norm = ours.model.norm
    np.testing.assert_array_equal(copy[-32:-16], norm.running_mean.numpy())
    np.testing.assert_array_equal(copy[-16:], norm.running_var.numpy())
    assert not np.isclose(copy[-32:], stored.values[-32:]).any(), "they have moved"


def test_a_unit_begins_with_the_servers_statistics_and_counts_its_batches_anew() -> None:
    ours = replica()
    values = np.random.default_rng(1).random(ours.copy_layout.num_elements).astype(np.float32)
    for version in (4, 5):
        begun(ours, version, values)
        np.testing.assert_array_equal(ours.copy_layout.vector(), values)
        assert int(ours.model.norm.num_batches_tracked) == 0
        compute(ours)
        assert int(ours.model.norm.num_batches_tracked) == 2
        ours.hand_over()
        ours.settle(((0, 1),))


def test_what_others_get_is_what_the_unit_began_with() -> None:
    ours, theirs = replica(), replica()
    stored = begun(ours, 7)
    compute(ours)
    state = ours.snapshot()
    theirs.load(state)
    np.testing.assert_array_equal(theirs.copy_layout.vector(), stored.values)
    assert int(theirs.model.norm.num_batches_tracked) == 0
    assert theirs.epoch == 7


def test_a_microbatch_for_whose_step_there_was_no_room_is_still_to_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    ours = replica()
    begun(ours, 1)
    with monkeypatch.context() as others_have_it:
        others_have_it.setattr(ours.optimizer, "step", full)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            ours.accumulate(batch(0, 6), loss)
    ours.abandon()
    ours.accumulate(batch(0, 6), loss)
    assert not ours.is_unit_over
    ours.accumulate(batch(6, 6), loss)
    assert ours.is_unit_over


def test_a_statistic_that_is_no_number_any_more_stays_what_the_unit_began_with() -> None:
    ours = replica()
    stored = begun(ours, 0)
    compute(ours)
    bad = batch(50, 6)
    bad.tensors["x"][:, 0] = torch.inf
    assert ours.accumulate(bad, loss).skipped
    copy = ours.hand_over().mean
    assert np.isfinite(copy).all()
    np.testing.assert_array_equal(copy[-32:], stored.values[-32:])


def test_a_model_whose_other_buffers_change_is_refused_and_the_buffer_is_named() -> None:
    ours = replica(Moving)
    assert ours.copy_layout.num_elements == ours.layout.num_elements
    begun(ours, 0)
    compute(ours)
    with pytest.raises(ConfigError, match="the model's buffer seen") as caught:
        ours.hand_over()
    assert "dedloc" in str(caught.value.hint)


def test_parameters_of_another_model_are_refused() -> None:
    ours = replica()
    with pytest.raises(ShapeMismatch, match="the servers have"):
        ours.restart(Stored(1, ours.layout.parameters_vector()), SAMPLES)


def test_a_layout_sees_buffers_that_were_replaced() -> None:
    model = seeded(Toy)
    layout = CopyLayout(model)
    model.norm.running_mean = torch.full((16,), 5.0)
    assert set(layout.vector()[-32:-16]) == {5.0}
