"""Half precision on its way into a replica: a scale that is too large for float16 costs time, and no samples."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from collab import config
from collab.swarm.parameter_store.base import Stored
from collab.training.anchored import AnchoredReplica
from collab.training.backward import BEYOND, TRIES
from collab.training.precision import LossScale, Precision
from collab.training.replica import Replica
from collab.training.unit_replica import UnitReplica
from tests.training.toy import CONSTANT, Plain, batch, loss, replica, seeded

CPU = torch.device("cpu")
FIRST = LossScale().value


def narrow(kind: type[Replica] = Replica) -> Replica:
    """A replica that computes in float16, on the processor: it overflows there as it does on a GPU."""
    model = seeded(Plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return kind(model, optimizer, CONSTANT, device=CPU, precision=Precision.FLOAT16)


def scale_of(ours: Replica) -> float:
    scale = ours._backward.scale
    assert scale is not None
    return scale.value


class Counted:
    """Some multiple of the usual loss; how often it was computed."""

    def __init__(self, factor: float) -> None:
        self._factor, self.calls = factor, 0

    def __call__(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        return self._factor * loss(model, tensors)


def test_a_scale_that_is_too_large_is_tried_smaller_with_the_same_samples() -> None:
    ours, exact, steep = narrow(), replica(seeded(Plain)), Counted(50.0)
    assert ours.accumulate(batch(0, 4), steep).skipped == ""
    assert 1 < steep.calls <= TRIES
    assert scale_of(ours) == FIRST / 2 ** (steep.calls - 1)
    calls = steep.calls
    assert ours.accumulate(batch(4, 4), steep).skipped == "", "the smaller scale is kept"
    assert steep.calls == calls + 1
    for first in (0, 4):
        exact.accumulate(batch(first, 4), Counted(50.0))
    assert ours.samples == 8
    assert np.allclose(ours.hand_over().mean, exact.hand_over().mean, atol=0.1)


def nan_gradient(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A finite loss whose gradient is not: the root of zero."""
    return loss(model, tensors) + sum((0.0 * p).abs().sum().sqrt() for p in model.parameters())


def test_what_neither_a_smaller_scale_nor_float32_helps_is_left_out_and_lowers_it_once_as_ever() -> None:
    ours = narrow()
    assert ours.accumulate(batch(0, 4), nan_gradient).skipped
    assert scale_of(ours) == FIRST / 2
    assert ours.samples == 0
    assert all(parameter.grad is None for parameter in ours.layout.parameters)


@pytest.mark.parametrize("kind", [Replica, AnchoredReplica])
def test_a_loss_that_is_not_finite_in_float32_either_says_nothing_of_the_scale(kind: type[Replica]) -> None:
    ours, broken = narrow(kind), Counted(math.nan)
    for _ in range(BEYOND + 1):
        assert ours.accumulate(batch(0, 4), broken).skipped
    assert broken.calls == 2 * (BEYOND + 1)
    assert scale_of(ours) == FIRST
    assert ours.precision is Precision.FLOAT16


class Wide(Counted):
    """The usual loss, on the way to which there are numbers that only float32 has."""

    def __call__(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        def far(x: torch.Tensor) -> torch.Tensor:
            return model(x) * 1e6 / 1e6  # type: ignore[no-any-return]

        return super().__call__(far, tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [Wide(1.0), Counted(1e9)])
def test_what_float16_has_no_numbers_for_is_computed_in_float32_and_after_some_in_a_row_all_is(
    function: Counted,
) -> None:
    ours, exact = narrow(), replica(seeded(Plain))
    for number in range(BEYOND + 2):
        assert ours.precision is (Precision.FLOAT16 if number < BEYOND else Precision.FLOAT32)
        assert ours.accumulate(batch(4 * number, 4), function).skipped == ""
    calls = function.calls
    ours.accumulate(batch(0, 4), function)
    assert function.calls == calls + 1
    for number in (*range(BEYOND + 2), 0):
        exact.accumulate(batch(4 * number, 4), function)
    assert ours.samples == exact.samples
    assert ours.hand_over().mean.tobytes() == exact.hand_over().mean.tobytes()


def test_float16_is_kept_where_only_some_microbatches_are_beyond_it() -> None:
    ours = narrow()
    for number in range(3 * BEYOND):
        kind = Wide if number % BEYOND else Counted
        assert ours.accumulate(batch(4 * number, 4), kind(1.0)).skipped == ""
    assert ours.precision is Precision.FLOAT16


def test_an_own_step_is_clipped_by_the_norm_without_the_scale() -> None:
    steps = []
    for precision in (Precision.FLOAT32, Precision.FLOAT16):
        model = seeded(Plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ours = AnchoredReplica(model, optimizer, CONSTANT, device=CPU, precision=precision)
        ours.max_gradient_norm = 0.01
        assert ours.accumulate(batch(0, 4), Counted(50.0)).skipped == ""
        steps.append(ours.hand_over().mean * 4)
    exact, half = steps
    assert np.linalg.norm(exact) == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert np.linalg.norm(half) == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert np.allclose(half, exact, atol=1e-5)


def test_samples_that_are_computed_again_count_once_in_a_unit() -> None:
    ours, steep = narrow(UnitReplica), Counted(50.0)
    assert isinstance(ours, UnitReplica)
    ours.restart(Stored(version=1, values=ours.copy_layout.vector()), num_samples=8)
    assert ours.accumulate(batch(0, 4), steep).skipped == ""
    assert steep.calls > 1
    assert not ours.is_unit_over
    ours.accumulate(batch(4, 4), steep)
    assert ours.is_unit_over


def test_other_precisions_compute_each_microbatch_once() -> None:
    ours, steep = replica(seeded(Plain), config.Optimizer(name="sgd", learning_rate=0.1)), Counted(1e9)
    ours.accumulate(batch(0, 4), steep)
    assert steep.calls == 1
