"""Robust reductions under lies, and the weights that liars may claim."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.robust import RULES, CoordinateMedian, Mean, Rule, TrimmedMean, capped
from collab.types import PeerId, Vector
from tests.averaging.test_robust import HUGE, contributions

ROBUST = {name: rule for name, rule in RULES.items() if name != "mean"}
OF_RANGE = {name: RULES[name] for name in ("median", "trimmed_mean")}

# -- lies ------------------------------------------------------------------------------------------------------------


LIES = [np.full(500, value, np.float32) for value in (1e30, -1e30, HUGE, -HUGE)]
LIES.append(np.where(np.arange(500) % 2, HUGE, -HUGE).astype(np.float32))


@pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST.keys())
@pytest.mark.parametrize("lie", LIES, ids=["1e30", "-1e30", "3e38", "-3e38", "both"])
@pytest.mark.parametrize("at", [0, 5, 8])
def test_a_fifth_of_liars_moves_nothing_further_than_honest_peers_do(rule: Rule, lie: Vector, at: int) -> None:
    honest, weights = contributions(8, 500), [5.0, 9.0, 7.0, 6.0, 8.0, 7.0, 5.0, 9.0]
    values, claims = [*honest[:at], lie, lie, *honest[at:]], [*weights[:at], 7.0, 7.0, *weights[at:]]
    found = rule.reduce(values, claims)
    honest_mean = Mean().reduce(honest, weights)
    spread = max(float(np.linalg.norm(value - honest_mean)) for value in honest)
    assert np.isfinite(found).all()
    assert float(np.linalg.norm(found - honest_mean)) < spread
    if rule in OF_RANGE.values():
        stacked = np.stack(honest)
        assert ((stacked.min(axis=0) <= found) & (found <= stacked.max(axis=0))).all()


@pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST.keys())
@pytest.mark.parametrize("liars", [4, 5])
def test_the_breakdown_point_is_where_the_docstring_says(rule: Rule, liars: int) -> None:
    honest = contributions(11 - liars, 50)
    found = rule.reduce(honest + [np.full(50, HUGE)] * liars, [1.0] * 11)
    if isinstance(rule, TrimmedMean):
        assert np.abs(found).max() > 1e30
    else:
        assert np.abs(found).max() < 20


def test_one_liar_owns_the_mean_and_half_of_the_weight_owns_every_rule() -> None:
    honest = contributions(9, 50)
    assert np.abs(Mean().reduce([*honest, np.full(50, HUGE)], [1.0] * 10)).max() > 1e37
    for rule in RULES.values():
        owned = rule.reduce([*honest, np.full(50, HUGE)], [*[1.0] * 9, 10.0])
        assert np.abs(owned).max() > 1e30
    safe = list(capped({PeerId(str(i)): 1.0 if i < 9 else 10.0 for i in range(10)}, 0.1).values())
    assert np.abs(CoordinateMedian().reduce([*honest, np.full(50, HUGE)], safe)).max() < 10


def test_a_lie_at_the_edge_of_the_trim_does_not_come_in_by_rounding() -> None:
    for count in range(5, 60, 5):
        honest, liars = contributions(count * 4 // 5, 20), count // 5
        values = honest + [np.full(20, HUGE)] * liars
        assert np.abs(TrimmedMean(beta=0.2).reduce(values, [0.7] * count)).max() < 10


floats = st.floats(-float(HUGE), float(HUGE), width=32)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[Vector], list[float]]:
    count, length = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    values = [np.array(draw(st.lists(floats, min_size=length, max_size=length)), np.float32) for _ in range(count)]
    return values, draw(st.lists(st.floats(0.01, 1000), min_size=count, max_size=count))


@pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST.keys())
@given(found=rounds())
@settings(max_examples=60)
def test_whatever_is_finite_stays_finite_and_within_the_range(
    rule: Rule, found: tuple[list[Vector], list[float]]
) -> None:
    values, weights = found
    result = rule.reduce(values, weights)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert result.tobytes() == rule.reduce(values, weights).tobytes()
    if rule in OF_RANGE.values():
        low, high = np.min(values, axis=0), np.max(values, axis=0)
        slack = 1e-6 * np.maximum(np.abs(low), np.abs(high)).astype(np.float64) + 1e-44
        assert ((low - slack <= result) & (result <= high + slack)).all()


# -- caps ------------------------------------------------------------------------------------------------------------


def caps(max_share: float, *weights: float) -> list[float]:
    return list(capped({PeerId(str(i)): weight for i, weight in enumerate(weights)}, max_share).values())


def test_caps_by_hand() -> None:
    assert caps(0.5, 1, 2, 97) == [1, 2, 3]
    assert caps(0.4, 1, 2, 97) == pytest.approx([1, 2, 2])
    assert caps(0.25, 10, 10, 1, 1, 1, 1) == pytest.approx([2, 2, 1, 1, 1, 1])
    assert caps(0.3, 1, 2, 97) == [1, 1, 1]
    assert caps(1.0, 5) == caps(0.1, 5) == [5]
    assert caps(1.0, 1, 1e12) == [1, 1e12]
    assert caps(0.5) == []


@given(weights=st.lists(st.floats(0.01, 1e9), min_size=1, max_size=40), max_share=st.floats(0.02, 1))
@settings(max_examples=200)
def test_caps_hold_raise_nobody_and_cut_no_more_than_they_must(weights: list[float], max_share: float) -> None:
    found = caps(max_share, *weights)
    total = math.fsum(found)
    level = max(found)
    assert all(0 < after <= before for after, before in zip(found, weights, strict=True))
    assert all(after == level for after, before in zip(found, weights, strict=True) if after < before)
    if max_share * len(weights) >= 1 + 1e-9:
        assert level <= max_share * total * (1 + 1e-9)
        assert found == weights or level >= max_share * total * (1 - 1e-6)
    elif max_share * len(weights) < 1 - 1e-9:
        assert found == [min(weights)] * len(weights)
    assert caps(max_share, *reversed(weights)) == found[::-1]


@pytest.mark.parametrize(
    ("max_share", "weight"), [(0, 1), (1.1, 1), (math.nan, 1), (0.5, 0), (0.5, -1), (0.5, math.inf)]
)
def test_caps_refuse_what_cannot_be(max_share: float, weight: float) -> None:
    with pytest.raises(ValueError):
        caps(max_share, weight, 1.0)
