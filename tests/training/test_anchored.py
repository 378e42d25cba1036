"""A replica with steps of its own: anchor, displacements, and what of it is shared."""

import numpy as np
import pytest
import torch

from collab import config
from collab.errors import ShapeMismatch
from collab.strategies.base import Spans
from collab.swarm.snapshots import pack
from collab.training.anchored import AnchoredReplica
from collab.training.optimizers import build_optimizer
from collab.training.stepping import total_norm
from collab.types import Lineage, Vector
from tests.training.toy import CONSTANT, Plain, Toy, batch, loss, seeded

SGD = config.Optimizer(name="sgd", learning_rate=0.1)
ADAMW = config.Optimizer(name="adamw", learning_rate=0.01)


def anchored(kind: type[torch.nn.Module] = Plain, section: config.Optimizer = SGD) -> AnchoredReplica:
    model = seeded(kind)
    return AnchoredReplica(model, build_optimizer(section, model), CONSTANT, device=torch.device("cpu"))


def everything(ours: AnchoredReplica) -> Spans:
    return ((0, ours.layout.num_elements),)


def anchor(ours: AnchoredReplica) -> Vector:
    return np.concatenate(
        [ours.snapshot().tensors[f"model.{slot.name}"].reshape(-1) for slot in ours.layout.slots]
    )


@pytest.mark.parametrize("section", [SGD, ADAMW])
def test_microbatches_are_steps_of_the_optimiser_and_what_accumulates_is_how_far_they_went(
    section: config.Optimizer,
) -> None:
    ours, model = anchored(section=section), seeded(Plain)
    ours.max_gradient_norm = 0.3
    optimizer = build_optimizer(section, model)
    before = ours.layout.parameters_vector()
    for step in range(4):
        ours.accumulate(batch(6 * step, 6), loss)
        optimizer.zero_grad()
        loss(model, batch(6 * step, 6).tensors).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    np.testing.assert_array_equal(ours.layout.parameters_vector(), expected)
    window = ours.hand_over()
    assert window.samples == 24
    np.testing.assert_allclose(window.mean * 24, expected - before, atol=1e-6)
    np.testing.assert_array_equal(anchor(ours), before)


def test_the_mean_takes_the_place_of_our_own_window_and_later_steps_stay() -> None:
    ours = anchored()
    before = ours.layout.parameters_vector()
    ours.accumulate(batch(0, 6), loss)
    window = ours.hand_over()
    assert ours.microbatches_beside == 0
    at_window = ours.layout.parameters_vector()
    ours.accumulate(batch(6, 6), loss)
    later = ours.layout.parameters_vector() - at_window
    assert ours.microbatches_beside == 1
    mean = np.full_like(before, 0.01)
    ours.step(mean, Lineage("1"))
    ours.settle(everything(ours))
    np.testing.assert_allclose(ours.layout.parameters_vector(), before + mean + later, atol=1e-6)
    np.testing.assert_array_equal(anchor(ours), before + mean)
    assert (ours.samples, ours.epoch, ours.lineage) == (6, 1, "1")
    assert window.samples == 6


def test_how_long_a_window_was_and_how_late_its_mean_came_is_told_once_and_with_what_lost_rounds_left() -> None:
    ours = anchored()
    for step in range(5):
        ours.accumulate(batch(6 * step, 6), loss)
        if step == 1:
            ours.hand_over()
        if step == 2:
            ours.settle(())  # a lost round
            ours.hand_over()
    assert ours.take_paces() == []
    ours.settle(everything(ours))
    assert ours.take_paces() == [(3, 2)]
    assert ours.take_paces() == []


def test_a_lost_round_leaves_the_window_in_the_parameters_and_in_the_next_window() -> None:
    ours = anchored()
    before = ours.layout.parameters_vector()
    ours.accumulate(batch(0, 6), loss)
    ours.hand_over()
    ours.accumulate(batch(6, 6), loss)
    ours.doubt(frozenset())
    np.testing.assert_allclose(
        ours.hand_over().mean * 12, ours.layout.parameters_vector() - before, atol=1e-6
    )


def test_where_a_round_has_used_some_elements_only_these_are_replaced() -> None:
    ours = anchored()
    before = ours.layout.parameters_vector()
    ours.accumulate(batch(0, 6), loss)
    ours.hand_over()
    stepped = ours.layout.parameters_vector()
    mean = np.full_like(before, 0.01)
    ours.step(mean, Lineage("1"))
    ours.settle(((0, 10),))
    np.testing.assert_allclose(ours.layout.parameters_vector()[:10], before[:10] + 0.01, atol=1e-6)
    np.testing.assert_allclose(ours.layout.parameters_vector()[10:], stepped[10:] + 0.01, atol=1e-6)


def test_only_the_anchor_is_shared_and_who_takes_it_over_keeps_its_own_steps_and_optimiser() -> None:
    donor, ours = anchored(section=ADAMW), anchored(section=ADAMW)
    for number in range(3):
        donor.accumulate(batch(6 * number, 6), loss)
    donor.step(np.full(donor.layout.num_elements, 0.5, np.float32), Lineage("1"))
    shared = donor.snapshot()
    assert not [name for name in shared.tensors if name.startswith("optimizer.")]
    assert not shared.scalars
    ours.accumulate(batch(60, 6), loss)
    before, state = anchor(ours), ours.optimizer.state_dict()["state"]
    displacement = ours.layout.parameters_vector() - before
    moments = {index: each["exp_avg"].clone() for index, each in state.items()}
    ours.load(shared)
    np.testing.assert_array_equal(anchor(ours), anchor(donor))
    np.testing.assert_allclose(ours.layout.parameters_vector(), anchor(donor) + displacement, atol=1e-6)
    for index, each in ours.optimizer.state_dict()["state"].items():
        assert torch.equal(each["exp_avg"], moments[index])
    assert (ours.epoch, ours.lineage, ours.samples) == (1, "1", 6)


def test_donors_with_steps_of_their_own_give_the_same_bytes() -> None:
    one, other = anchored(), anchored()
    one.accumulate(batch(0, 6), loss)
    other.accumulate(batch(100, 6), loss)
    for each in (one, other):
        each.step(np.full(each.layout.num_elements, 0.25, np.float32), Lineage("1"))
    assert one.packed("f").data == other.packed("f").data == pack(one.snapshot(), fingerprint="f").data


def test_tied_frozen_and_unused_parameters_are_where_they_belong() -> None:
    ours = anchored(Toy)
    ours.accumulate(batch(0, 6), loss)
    ours.step(np.ones(ours.layout.num_elements, np.float32), Lineage("1"))
    state = ours.snapshot().tensors
    np.testing.assert_array_equal(state["model.frozen"], np.ones(4, np.float32))
    assert "model.tied.weight" not in state
    fresh = anchored(Toy)
    fresh.load(ours.snapshot())
    np.testing.assert_array_equal(anchor(fresh), anchor(ours))


@pytest.mark.parametrize("spoiled", ["loss", "gradient"])
def test_a_microbatch_that_is_not_finite_moves_nothing(spoiled: str) -> None:
    ours = anchored()
    before = ours.layout.parameters_vector()
    report = ours.accumulate(
        batch(0, 6), lambda model, tensors: loss(model, tensors) * (float("nan") if spoiled == "loss" else 1e39)
    )
    assert report.skipped
    np.testing.assert_array_equal(ours.layout.parameters_vector(), before)
    assert ours.samples == 0


def test_a_step_beyond_all_numbers_is_taken_back() -> None:
    ours = anchored(section=config.Optimizer(name="sgd", learning_rate=1e38))
    before = ours.layout.parameters_vector()
    assert ours.accumulate(batch(0, 6), lambda model, tensors: 1e30 * loss(model, tensors)).skipped
    np.testing.assert_array_equal(ours.layout.parameters_vector(), before)


def test_a_history_that_does_not_count_takes_its_steps_with_it() -> None:
    ours = anchored()
    before = ours.layout.parameters_vector()
    ours.accumulate(batch(0, 6), loss)
    ours.forget()
    np.testing.assert_array_equal(ours.layout.parameters_vector(), before)
    assert (ours.samples, ours.lineage) == (0, "")


def test_a_mean_of_another_length_is_refused() -> None:
    with pytest.raises(ShapeMismatch):
        anchored().step(np.ones(3, np.float32), Lineage("1"))


@pytest.mark.parametrize("shapes", [[(1000,)], [(64, 32), (64,), (10, 64), (10,)]])
def test_the_norm_of_all_gradients_is_torch_s_to_the_bit(shapes: list[tuple[int, ...]]) -> None:
    for seed in range(20):
        drawn = torch.Generator().manual_seed(seed)
        gradients = [torch.randn(*shape, generator=drawn) * 10.0 ** (seed - 10) for shape in shapes]
        assert torch.equal(total_norm(gradients), torch.nn.utils.get_total_norm(gradients))
    assert total_norm([torch.tensor([float("nan")])]).isnan()
