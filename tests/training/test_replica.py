"""The replica: what it accumulates, how it steps, and what it hands on."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from collab import config
from collab.errors import CorruptState, ShapeMismatch
from collab.strategies.base import NOTHING
from collab.swarm.snapshots import Snapshot, pack, unpack
from collab.tasks.base import Batch
from collab.training.precision import Precision
from collab.training.replica import Replica
from collab.training.shared_state import unpack_for
from collab.types import Lineage, Vector
from tests.training.toy import Plain, Toy, batch, loss, replica, seeded

OPTIMIZERS = {
    "sgd": config.Optimizer(name="sgd", learning_rate=0.1, momentum=0.9),
    "adamw": config.Optimizer(name="adamw", learning_rate=0.01, weight_decay=0.1),
    "lamb": config.Optimizer(name="lamb", learning_rate=0.01, weight_decay=0.1),
    "adamw8bit": config.Optimizer(name="adamw8bit", learning_rate=0.01, weight_decay=0.1),
}


class Wide(Plain):
    """Large enough that 8-bit optimisers really keep 8-bit state."""

    def __init__(self) -> None:
        super().__init__(width=1024)


def parameters(ours: Replica) -> Vector:
    return ours.layout.parameters_vector()


def gradient_for(ours: Replica, seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=ours.layout.num_elements).astype(np.float32)


def travelled(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a newcomer receives it."""
    return unpack(pack(snapshot, fingerprint="f"))


# -- accumulation ------------------------------------------------------------------------------------------------------


def mean_gradient(ours: Replica) -> Vector:
    """Of what is accumulated, which stays."""
    mean = ours.hand_over().mean
    ours.settle(NOTHING)
    return mean


def test_two_microbatches_equal_one_batch_of_both() -> None:
    apart, together = replica(seeded(Plain)), replica(seeded(Plain))
    assert apart.accumulate(batch(0, 5), loss).skipped == ""
    assert apart.accumulate(batch(5, 11), loss).skipped == ""
    report = together.accumulate(batch(0, 16), loss)
    assert (apart.samples, apart.sample_ids) == (16, tuple(range(16)))
    assert np.allclose(mean_gradient(apart), mean_gradient(together), rtol=1e-5, atol=1e-7)
    for each in (apart, together):
        each.hand_over()
        each.settle(((0, each.layout.num_elements),))
    used = together.take_used()
    assert apart.take_used().loss == pytest.approx(used.loss)
    assert report.loss == pytest.approx(used.loss)


def test_the_mean_gradient_is_torch_s_own() -> None:
    ours, model = replica(seeded(Plain)), seeded(Plain)
    ours.accumulate(batch(0, 8), loss)
    loss(model, batch(0, 8).tensors).backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    assert np.allclose(mean_gradient(ours), expected.numpy(), rtol=1e-6, atol=1e-8)


def test_the_mean_gradient_is_a_copy_and_needs_samples() -> None:
    ours = replica()
    with pytest.raises(ValueError, match="first microbatch"):
        mean_gradient(ours)
    ours.accumulate(batch(0, 4), loss)
    before = mean_gradient(ours).copy()
    mean_gradient(ours)[:] = 5
    assert np.array_equal(mean_gradient(ours), before)


def nan_loss(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return loss(model, tensors) * math.nan


def infinite_gradient(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    # sqrt has an infinite slope at 0 and a finite value
    return loss(model, tensors) + torch.sqrt(next(model.parameters()).reshape(-1)[0] * 0.0)


def overflowing_gradient(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    # finite as a mean; times its four samples it is not
    first = next(model.parameters()).reshape(-1)[0]
    return loss(model, tensors) + (first - first.detach()) * 2e38


@pytest.mark.parametrize("bad", [nan_loss, infinite_gradient, overflowing_gradient])
def test_a_microbatch_that_is_not_finite_leaves_the_gradient_untouched_and_says_why(bad: Any) -> None:
    ours = replica(seeded(Plain))
    ours.accumulate(batch(0, 4), loss)
    before = mean_gradient(ours)
    report = ours.accumulate(batch(4, 4), bad)
    assert "not finite" in report.skipped
    assert report.samples == 4
    assert (ours.samples, ours.sample_ids) == (4, (0, 1, 2, 3))
    assert np.array_equal(mean_gradient(ours), before)
    assert ours.accumulate(batch(8, 4), loss).skipped == ""
    assert ours.samples == 8


def test_a_loss_that_its_caller_does_not_know_does_not_stop_the_gradient() -> None:
    ours = replica(seeded(Plain))
    loss(ours.model, batch(0, 4).tensors).backward()  # type: ignore[no-untyped-call]
    assert ours.take_gradients((0, 1, 2, 3), None).skipped == ""
    assert ours.samples == 4
    assert all(p.grad is None for p in ours.model.parameters())


def test_gradients_from_before_do_not_leak_into_a_microbatch() -> None:
    ours, clean = replica(seeded(Plain)), replica(seeded(Plain))
    loss(ours.model, batch(50, 4).tensors).backward()  # type: ignore[no-untyped-call]
    ours.accumulate(batch(0, 4), loss)
    clean.accumulate(batch(0, 4), loss)
    assert np.array_equal(mean_gradient(ours), mean_gradient(clean))


def test_clearing_forgets_the_gradient_and_remembers_what_was_used() -> None:
    ours = replica(seeded(Plain))
    first = ours.accumulate(batch(0, 3), loss)
    ours.step(gradient_for(ours, 1), Lineage("x"))
    second = ours.accumulate(batch(3, 2), loss)
    ours.hand_over()
    ours.settle(((0, ours.layout.num_elements),))
    assert (ours.samples, ours.sample_ids) == (0, ())
    used = ours.take_used()
    assert used.sample_ids == (0, 1, 2, 3, 4)
    assert used.sample_epochs == (0, 0, 0, 1, 1)
    assert used.loss == pytest.approx((3 * first.loss + 2 * second.loss) / 5)
    ours.accumulate(batch(9, 4), loss)
    fresh = replica(seeded(Plain))
    fresh.step(gradient_for(ours, 1), Lineage("x"))
    fresh.accumulate(batch(9, 4), loss)
    assert np.array_equal(mean_gradient(ours), mean_gradient(fresh))


def test_a_half_precision_overflow_halves_the_scale_and_the_scale_divides_out() -> None:
    model = seeded(Plain)
    ours = Replica(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        config.Schedule(),
        device=torch.device("cpu"),
        precision=Precision.FLOAT16,
    )
    exact = replica(seeded(Plain))
    assert ours.accumulate(batch(0, 4), nan_loss).skipped
    assert ours.samples == 0
    assert ours.accumulate(batch(0, 4), loss).skipped == ""
    exact.accumulate(batch(0, 4), loss)
    assert np.allclose(mean_gradient(ours), mean_gradient(exact), atol=2e-3)


# -- the global step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_replicas_stay_equal_to_the_bit(name: str) -> None:
    one, two = (replica(seeded(Toy), OPTIMIZERS[name]) for _ in range(2))
    for epoch in range(3):
        gradient = gradient_for(one, epoch)
        for ours in (one, two):
            ours.step(gradient, Lineage(f"{epoch}"))
    assert parameters(one).tobytes() == parameters(two).tobytes()
    assert (one.epoch, one.lineage) == (two.epoch, two.lineage) == (3, "2")
    assert all(p.grad is None for p in one.model.parameters())


def test_a_step_does_what_plain_sgd_does() -> None:
    ours = replica(seeded(Plain))
    before, gradient = parameters(ours), gradient_for(ours, 1)
    ours.step(gradient, Lineage("x"))
    assert np.allclose(parameters(ours), before - 0.1 * gradient, atol=1e-7)


def test_the_step_uses_the_schedule_s_rate_of_its_epoch() -> None:
    schedule = config.Schedule(name="linear", warmup_epochs=2, total_epochs=4)
    ours = replica(seeded(Plain), schedule=schedule)
    rates = []
    for _ in range(5):
        rate, before = ours.learning_rate, parameters(ours)
        ours.step(np.ones(ours.layout.num_elements, np.float32), Lineage("x"))
        rates.append(rate)
        assert np.allclose(before - parameters(ours), rate, atol=1e-6)
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05, 0.0])


def test_a_step_with_a_vector_of_another_length_changes_nothing() -> None:
    ours = replica(seeded(Plain))
    before = parameters(ours)
    with pytest.raises(ShapeMismatch):
        ours.step(np.ones(3, np.float32), Lineage("x"))
    assert np.array_equal(parameters(ours), before)
    assert (ours.epoch, ours.lineage) == (0, "")


def test_a_step_leaves_the_accumulated_gradient_alone() -> None:
    ours = replica(seeded(Plain))
    ours.accumulate(batch(0, 4), loss)
    before = mean_gradient(ours)
    ours.step(gradient_for(ours, 1), Lineage("x"))
    assert np.array_equal(mean_gradient(ours), before)


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Toy, Wide])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("was_used_before", [False, True])
def test_training_goes_on_bit_equal_after_a_snapshot_was_loaded(
    name: str, model: type[torch.nn.Module], was_used_before: bool
) -> None:
    ours = replica(seeded(model), OPTIMIZERS[name])
    newcomer = replica(seeded(model, seed=99), OPTIMIZERS[name])
    for step in range(2):
        ours.step(gradient_for(ours, step), Lineage("past"))
    if was_used_before:
        newcomer.step(gradient_for(ours, 77), Lineage("elsewhere"))
    newcomer.load(travelled(ours.snapshot()))
    assert (newcomer.epoch, newcomer.lineage) == (2, "past")
    assert parameters(newcomer).tobytes() == parameters(ours).tobytes()
    for step in range(3):
        for either in (ours, newcomer):
            either.step(gradient_for(ours, 10 + step), Lineage("next"))
    assert parameters(newcomer).tobytes() == parameters(ours).tobytes()
    assert pack(newcomer.snapshot(), fingerprint="f").manifest.digest == pack(ours.snapshot(), fingerprint="f").manifest.digest  # fmt: skip # noqa: E501


def test_the_8_bit_optimiser_really_keeps_8_bit_state() -> None:
    ours = replica(seeded(Wide), OPTIMIZERS["adamw8bit"])
    ours.step(gradient_for(ours, 1), Lineage("x"))
    kinds = {str(tensor.dtype) for name, tensor in ours.snapshot().tensors.items() if name.endswith("state1")}
    assert "uint8" in kinds


def test_a_first_state_without_optimiser_state_clears_what_there_was() -> None:
    first = travelled(replica(seeded(Plain), OPTIMIZERS["adamw"]).snapshot())
    used, fresh = (replica(seeded(Plain), OPTIMIZERS["adamw"]) for _ in range(2))
    used.step(gradient_for(used, 3), Lineage("x"))
    for ours in (used, fresh):
        ours.load(first)
        ours.step(gradient_for(ours, 4), Lineage("y"))
    assert parameters(used).tobytes() == parameters(fresh).tobytes()


def test_the_newcomer_s_own_accumulated_gradient_survives_loading() -> None:
    donor, ours = replica(seeded(Plain)), replica(seeded(Plain, 5))
    ours.accumulate(batch(0, 4), loss)
    before = mean_gradient(ours)
    ours.load(travelled(donor.snapshot()))
    assert ours.samples == 4
    assert np.array_equal(mean_gradient(ours), before)


def test_buffers_travel_with_the_parameters() -> None:
    donor, ours = replica(seeded(Toy)), replica(seeded(Toy, 5))
    for start in range(0, 40, 8):
        donor.accumulate(batch(start, 8), loss)
    ours.load(travelled(donor.snapshot()))
    for name, value in donor.model.named_buffers():
        assert torch.equal(dict(ours.model.named_buffers())[name], value), name
    assert int(dict(ours.model.named_buffers())["norm.num_batches_tracked"]) == 5
    donor.model.eval()
    ours.model.eval()
    assert torch.equal(donor.model(batch(0, 4).tensors["x"]), ours.model(batch(0, 4).tensors["x"]))


def test_tied_weights_are_in_the_snapshot_once_and_stay_tied() -> None:
    donor, ours = replica(seeded(Toy)), replica(seeded(Toy, 5))
    names = [name for name in donor.snapshot().tensors if "second" in name or "tied" in name]
    assert names == ["model.second.weight"]
    ours.load(travelled(donor.snapshot()))
    assert isinstance(ours.model, Toy)
    assert ours.model.tied.weight is ours.model.second.weight


def test_a_snapshot_does_not_change_with_the_replica() -> None:
    ours = replica(seeded(Toy), OPTIMIZERS["adamw"])
    ours.step(gradient_for(ours, 1), Lineage("x"))
    snapshot = ours.snapshot()
    before = pack(snapshot, fingerprint="f").manifest.digest
    ours.accumulate(batch(0, 8), loss)
    ours.step(gradient_for(ours, 2), Lineage("y"))
    assert pack(snapshot, fingerprint="f").manifest.digest == before


def test_a_loaded_replica_does_not_share_memory_with_the_snapshot() -> None:
    donor, ours = replica(seeded(Plain), OPTIMIZERS["sgd"]), replica(seeded(Plain, 5), OPTIMIZERS["sgd"])
    donor.step(gradient_for(donor, 1), Lineage("x"))
    snapshot = donor.snapshot()
    ours.load(snapshot)
    before = pack(snapshot, fingerprint="f").manifest.digest
    ours.step(gradient_for(ours, 2), Lineage("y"))
    assert pack(snapshot, fingerprint="f").manifest.digest == before


def altered(snapshot: Snapshot, **tensors: Any) -> Snapshot:
    merged = {**snapshot.tensors, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    return replace(snapshot, tensors={name: tensor for name, tensor in merged.items() if tensor is not None})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model__first__weight": np.zeros((6, 16), np.float32)}, "first.weight"),
        ({"model__last__bias": np.zeros(4, np.float32)}, "last.bias"),
        ({"model__last__bias": np.zeros((), np.float32)}, "last.bias"),
        ({"model__norm__running_mean": np.zeros(1, np.float32)}, "norm.running_mean"),
        ({"model__first__weight": None}, "first.weight"),
        ({"model__extra": np.zeros(1, np.float32)}, "extra"),
        ({"optimizer__extra__step": np.zeros(1, np.float32)}, "extra"),
        ({"optimizer__first__weight__exp_avg": np.zeros((6, 16), np.float32)}, "first.weight"),
        ({"optimizer__last__bias__exp_avg_sq": np.zeros(7, np.float32)}, "last.bias"),
    ],
)
def test_a_snapshot_of_another_shape_names_the_tensor_and_changes_nothing(changes: dict[str, Any], named: str) -> None:
    donor, ours = (replica(seeded(Toy, seed), OPTIMIZERS["adamw"]) for seed in (1, 2))
    donor.step(gradient_for(donor, 1), Lineage("x"))
    ours.step(gradient_for(donor, 2), Lineage("y"))
    before = pack(ours.snapshot(), fingerprint="f")
    with pytest.raises(ShapeMismatch, match=named):
        ours.load(travelled(altered(donor.snapshot(), **changes)))
    assert pack(ours.snapshot(), fingerprint="f") == before


@pytest.mark.parametrize("name", ["model.{}", "optimizer.{}.step", "optimizer.last.bias.{}"])
def test_a_name_that_a_state_has_made_up_is_told_in_part(name: str) -> None:
    ours = replica(seeded(Toy), OPTIMIZERS["adamw"])
    with pytest.raises(ShapeMismatch, match="xxx") as told:
        ours.load(altered(ours.snapshot(), **{name.format(100_000 * "x"): np.zeros(7, np.float32)}))
    assert len(told.value.message) < 400


def test_a_list_that_has_no_shape_is_refused_in_words() -> None:
    ours = replica(seeded(Toy), OPTIMIZERS["adamw"])
    odd = replace(ours.snapshot(), scalars={"optimizer.last.bias.step": [[1], [2, 3]]})
    with pytest.raises(CorruptState, match="rows of several lengths"):
        unpack_for(ours.model, pack(odd, fingerprint="f"))


def test_a_branch_that_no_sample_uses_has_a_gradient_of_zero() -> None:
    ours = replica(seeded(Toy))
    ours.accumulate(batch(0, 8), loss)
    slots = {slot.name: slot for slot in ours.layout.slots}
    gradient = mean_gradient(ours)
    unused = slots["unused.weight"]
    assert not gradient[unused.start : unused.stop].any()
    assert gradient[slots["second.weight"].start : slots["second.weight"].stop].all()
    assert len(gradient) == ours.layout.num_elements


def test_frozen_parameters_travel_and_never_change() -> None:
    ours = replica(seeded(Toy), OPTIMIZERS["adamw"])
    ours.step(gradient_for(ours, 1), Lineage("x"))
    assert np.array_equal(ours.snapshot().tensors["model.frozen"], np.ones(4, np.float32))
    newcomer = replica(seeded(Toy, 5), OPTIMIZERS["adamw"])
    with torch.no_grad():
        dict(newcomer.model.named_parameters())["frozen"].fill_(3)
    newcomer.load(travelled(ours.snapshot()))
    assert np.array_equal(newcomer.snapshot().tensors["model.frozen"], np.ones(4, np.float32))


def test_a_batch_is_reported_with_its_own_samples() -> None:
    ours = replica(seeded(Plain))
    single = Batch(sample_ids=(41,), tensors=batch(41, 1).tensors)
    report = ours.accumulate(single, loss)
    assert report.samples == 1
    assert ours.sample_ids == (41,)


def test_a_round_takes_what_it_has_used_once() -> None:
    ours = replica(seeded(Plain))
    everything = ((0, ours.layout.num_elements),)
    ours.accumulate(batch(0, 5), loss)
    ours.hand_over()
    ours.settle(everything, "r1")
    ours.accumulate(batch(5, 3), loss)
    ours.disown(everything, "r1")
    assert ours.sample_ids == (5, 6, 7)
    ours.disown(everything, "r2")  # which it gave up without knowing its name
    assert ours.sample_ids == ()
