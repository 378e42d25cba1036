"""Half precision on its way into a replica: a scale that is too large for float16 costs time, and no samples."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from collab import config
from collab.swarm.parameter_store.base import Stored
from collab.training.anchored import AnchoredReplica
from collab.training.backward import TRIES, LossFunction
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


@pytest.mark.parametrize("function", [nan_gradient, Counted(1e9)])
def test_what_no_smaller_scale_helps_is_left_out_and_lowers_it_once_as_ever(function: LossFunction) -> None:
    ours = narrow()
    assert ours.accumulate(batch(0, 4), function).skipped
    assert scale_of(ours) == FIRST / 2
    assert ours.samples == 0
    assert all(parameter.grad is None for parameter in ours.layout.parameters)


@pytest.mark.parametrize("kind", [Replica, AnchoredReplica])
def test_a_loss_that_is_not_finite_is_computed_once_and_says_nothing_of_the_scale(kind: type[Replica]) -> None:
    ours, broken = narrow(kind), Counted(math.nan)
    assert ours.accumulate(batch(0, 4), broken).skipped
    assert broken.calls == 1
    assert scale_of(ours) == FIRST


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
