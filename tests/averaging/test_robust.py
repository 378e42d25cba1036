"""Robust reductions: by hand, against straightforward oracles, and under lies."""

import asyncio
import math

import numpy as np
import pytest

from collab.averaging.reduction import part_edges
from collab.averaging.robust import (
    RULES,
    CenteredClip,
    ClippedMean,
    CoordinateMedian,
    Mean,
    Rule,
    TrimmedMean,
    check_finite,
    rule_by_name,
)
from collab.averaging.weighted_order import BLOCK_ELEMENTS, ordered_blocks
from collab.config import Averaging
from collab.errors import BadPart
from collab.types import Vector
from tests.averaging.reductions import A, B, C, make_reduction, mean_of, vector

HUGE = np.float32(3e38)


def contributions(count: int, length: int, *, seed: int = 0, scale: float = 1.0) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [(scale * rng.normal(size=length) + 1.0).astype(np.float32) for _ in range(count)]


def everything(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, RULES.values(), ids=RULES.keys())


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_the_mean_weighs_by_samples() -> None:
    assert Mean().reduce([vector(1, 4), vector(5, 0)], [1.0, 3.0]).tolist() == [4.0, 1.0]


def test_the_mean_has_the_bytes_of_the_engine() -> None:
    values, weights = contributions(3, 5000), {A: 3.0, B: 7.5, C: 11.0}
    reduction = make_reduction(5000, weights)
    for peer, value in zip(weights, values, strict=True):
        reduction.add(peer, 0, value.tobytes())
    assert Mean().reduce(values, list(weights.values())).tobytes() == asyncio.run(mean_of(reduction)).tobytes()


def test_clipping_shortens_only_what_is_longer_than_the_median() -> None:
    values = [vector(3, 4), vector(0, 5), vector(30, 40)]  # norms 5, 5 and 50
    assert ClippedMean().reduce(values, [1.0, 1.0, 1.0]).tolist() == pytest.approx([2.0, 13 / 3])
    assert ClippedMean(multiple=2).reduce(values, [1.0, 1.0, 1.0]).tolist() == pytest.approx([3.0, 17 / 3])


def test_clipping_nobody_leaves_the_bytes_of_the_mean() -> None:
    values, weights = contributions(7, 1000), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert ClippedMean(multiple=3).reduce(values, weights).tobytes() == Mean().reduce(values, weights).tobytes()


def test_the_median_is_where_half_of_the_weight_is_reached() -> None:
    values = [vector(1, 9), vector(5, 1), vector(2, 5)]
    assert CoordinateMedian().reduce(values, [1.0, 1.0, 1.0]).tolist() == [2.0, 5.0]
    assert CoordinateMedian().reduce(values, [1.0, 5.0, 1.0]).tolist() == [5.0, 1.0]
    assert CoordinateMedian().reduce(values, [1.0, 2.0, 1.0]).tolist() == [3.5, 3.0]


def test_the_trimmed_mean_cuts_a_value_in_two_where_the_edge_falls_into_its_weight() -> None:
    values = [vector(0), vector(10), vector(20), vector(100)]
    assert TrimmedMean(beta=0.25).reduce(values, [1.0] * 4).tolist() == [15.0]
    assert TrimmedMean(beta=0.125).reduce(values, [1.0] * 4).tolist() == pytest.approx([(0.5 * 0 + 10 + 20 + 50) / 3])
    assert TrimmedMean(beta=0.25).reduce(values, [1.0, 1.0, 1.0, 5.0]).tolist() == pytest.approx([(20 + 300) / 4])


def test_one_step_of_centered_clip() -> None:
    values = [vector(0), vector(1), vector(2), vector(3), vector(1000)]
    # median 2, distances 2 1 0 1 998, tau 1: differences clipped to -1 -1 0 1 1
    assert CenteredClip(iterations=1).reduce(values, [1.0] * 5).tolist() == [2.0]
    assert CenteredClip(iterations=1).reduce(values, [1.0, 1.0, 2.0, 1.0, 1.0]).tolist() == [2.0]
    assert CenteredClip(iterations=1, multiple=2).reduce(values, [1.0] * 5).tolist() == pytest.approx([2.0])
    assert CenteredClip(iterations=1).reduce([vector(0), vector(3), vector(5)], [1.0] * 3).tolist() == [3.0]


# -- oracles ---------------------------------------------------------------------------------------------------------


def slow_median(column: np.ndarray, weights: np.ndarray) -> float:
    values = np.repeat(column, weights.astype(int))
    return float(np.median(values))


def slow_trimmed(column: np.ndarray, weights: np.ndarray, beta: float) -> float:
    """Each unit of weight as 1000 copies; beta cuts whole copies."""
    values = np.sort(np.repeat(column.astype(np.float64), 1000 * weights.astype(int)))
    cut = round(beta * len(values))
    return float(values[cut : len(values) - cut].mean())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 16, 33])
def test_median_and_trimmed_mean_agree_with_copies_of_each_value(count: int) -> None:
    values = contributions(count, 40, seed=count)
    weights = np.random.default_rng(count).integers(1, 9, count).astype(float)
    columns = np.stack(values).T
    median = [slow_median(column, weights) for column in columns]
    trimmed = [slow_trimmed(column, weights, 0.2) for column in columns]
    assert CoordinateMedian().reduce(values, weights.tolist()) == pytest.approx(median, rel=1e-6)
    assert TrimmedMean(beta=0.2).reduce(values, weights.tolist()) == pytest.approx(trimmed, rel=1e-5)


def test_centered_clip_goes_to_the_minimum_of_its_huber_loss() -> None:
    from scipy.optimize import minimize

    values, weights = contributions(7, 4), np.array([3.0, 1.0, 2.0, 2.0, 5.0, 1.0, 4.0])
    values[1] += np.float32(20)
    start = CoordinateMedian().reduce(values, weights.tolist())
    distances = [math.sqrt(float(np.mean((value - start) ** 2))) for value in values]
    order = np.argsort(distances)
    tau = distances[order[np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]]

    def loss(center: np.ndarray) -> float:
        away = [math.sqrt(float(np.mean((value - center) ** 2))) for value in values]
        return sum(w * (d * d / 2 if d <= tau else tau * (d - tau / 2)) for w, d in zip(weights, away, strict=True))

    best = minimize(loss, start.astype(np.float64), method="BFGS").x
    found = CenteredClip(iterations=500, tolerance=1e-9).reduce(values, weights.tolist())
    assert loss(found) <= loss(best) + 1e-6
    assert found == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 31, 64])
def test_blocks_are_in_order_with_the_weight_that_belongs_to_each_value(count: int) -> None:
    length = BLOCK_ELEMENTS // 4 + 5
    rng = np.random.default_rng(count)
    special = np.array([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, 1.0, 2.0], np.float32)
    stacked = rng.choice(special, (count, length))
    weights = np.arange(1.0, count + 1)
    for block in ordered_blocks(list(stacked), weights.tolist()):
        columns = stacked[:, block.start : block.stop]
        order = np.argsort(columns, axis=0, kind="stable")
        assert np.array_equal(block.values, np.take_along_axis(columns, order, axis=0))
        assert np.allclose(block.weight, weights.sum())
        for value in special:  # whatever the order of equal values is, the weight up to the last of them is this
            upto = (weights[:, None] * (columns <= value)).sum(axis=0)
            last = (block.values <= value).sum(axis=0) - 1
            found = np.where(last >= 0, block.weight_until[last, np.arange(columns.shape[1])], 0)
            assert np.array_equal(found, upto)


# -- what holds for all ----------------------------------------------------------------------------------------------


@everything("rule")
def test_one_contributor_is_the_result(rule: Rule) -> None:
    value = contributions(1, 300)[0]
    assert rule.reduce([value], [17.0]).tobytes() == value.tobytes()


@everything("rule")
def test_two_of_equal_weight_and_length_meet_in_the_middle(rule: Rule) -> None:
    assert rule.reduce([vector(1, 3), vector(3, -1)], [2.0, 2.0]).tolist() == pytest.approx([2.0, 1.0])


@everything("rule")
def test_equal_contributions_are_the_result(rule: Rule) -> None:
    value = contributions(1, 300)[0]
    assert rule.reduce([value] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(value, rel=1e-6)


@everything("rule")
def test_the_same_inputs_give_the_same_bytes_however_they_lie_in_memory(rule: Rule) -> None:
    values, weights = contributions(9, 3001), [float(weight) for weight in range(3, 12)]
    expected = rule.reduce(values, weights).tobytes()
    odd = [np.frombuffer(b"x" + value.tobytes(), np.uint8)[1:].view(np.float32) for value in values]
    assert rule.reduce(odd, weights).tobytes() == expected
    assert [value.tobytes() for value in odd] == [value.tobytes() for value in values]


@everything("rule")
def test_another_order_of_the_group_changes_nothing_but_rounding(rule: Rule) -> None:
    values, weights = contributions(9, 500), [float(weight) for weight in range(3, 12)]
    turned = rule.reduce(values[::-1], weights[::-1])
    assert turned == pytest.approx(rule.reduce(values, weights), rel=1e-5, abs=1e-6)


def test_the_median_does_not_depend_on_the_order_at_all() -> None:
    values, weights = contributions(9, 500), [float(weight) for weight in range(3, 12)]
    order = np.random.default_rng(1).permutation(9)
    turned = CoordinateMedian().reduce([values[i] for i in order], [weights[i] for i in order])
    assert turned.tobytes() == CoordinateMedian().reduce(values, weights).tobytes()


@everything("rule")
def test_weights_by_element_that_are_the_same_everywhere_change_nothing(rule: Rule) -> None:
    values, weights = contributions(6, 700), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    dense = [np.full(700, weight, np.float32) if weight > 2 else weight for weight in weights]
    assert rule.reduce(values, dense).tobytes() == rule.reduce(values, weights).tobytes()


@everything("rule")
def test_elements_that_somebody_did_not_bring_are_reduced_without_it(rule: Rule) -> None:
    values, absent = contributions(5, 100), contributions(1, 100, seed=9)[0]
    absent[:50] = HUGE
    weight = np.full(100, 2.0, np.float32)
    weight[:50] = 0
    found = rule.reduce([*values, absent], [*[1.0] * 5, weight])
    if not isinstance(rule, ClippedMean | CenteredClip):  # these look at the part as a whole
        assert found[:50] == pytest.approx(rule.reduce([v[:50] for v in values], [1.0] * 5), rel=1e-6)
        later = [value[50:] for value in (*values, absent)]
        assert found[50:] == pytest.approx(rule.reduce(later, [*[1.0] * 5, 2.0]), rel=1e-6)
    assert np.abs(found).max() < 10
    assert rule.reduce([*values[:1]], [np.zeros(100, np.float32)]).tolist() == [0.0] * 100


@everything("rule")
@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ([], []),
        ([vector(1)], []),
        ([vector(1), vector(1, 2)], [1.0, 1.0]),
        ([np.zeros(2)], [1.0]),
        ([vector(1)], [0.0]),
        ([vector(1)], [-1.0]),
        ([vector(1)], [math.nan]),
        ([vector(1)], [math.inf]),
        ([vector(1)], [vector(1, 1)]),
        ([vector(1)], [vector(-1)]),
        ([vector(1)], [vector(math.nan)]),
    ],
)
def test_what_cannot_be_reduced_is_refused(rule: Rule, values: list[Vector], weights: list[float]) -> None:
    with pytest.raises(ValueError):
        rule.reduce(values, weights)


def test_names_are_those_of_the_run_file() -> None:
    for name, rule in RULES.items():
        assert rule_by_name(name) is rule
        assert Averaging(reduction=name).reduction == name  # type: ignore[arg-type]
    assert rule_by_name(Averaging().reduction) == ClippedMean()
    with pytest.raises(ValueError, match="choose one of mean, clipped_mean"):
        rule_by_name("krum")


@pytest.mark.parametrize("beta", [-0.1, 0.5, math.nan])
def test_a_trim_that_leaves_nothing_is_refused(beta: float) -> None:
    with pytest.raises(ValueError):
        TrimmedMean(beta=beta)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_as_the_engine_does(bad: float) -> None:
    part = vector(1, bad, 2)
    with pytest.raises(BadPart) as ours:
        check_finite(part)
    with pytest.raises(BadPart) as of_engine:
        make_reduction(3, {A: 1.0, B: 1.0}).add(A, 0, part.tobytes())
    assert ours.value.reason == of_engine.value.reason


def test_parts_of_a_vector_are_reduced_as_the_vector_where_the_rule_looks_at_elements() -> None:
    values, weights = contributions(6, 1000), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for name in ("mean", "median", "trimmed_mean"):
        parts = [RULES[name].reduce([v[a:b] for v in values], weights) for a, b in part_edges(1000, 333)]
        assert np.concatenate(parts).tobytes() == RULES[name].reduce(values, weights).tobytes()
