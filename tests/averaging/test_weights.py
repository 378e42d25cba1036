"""Samples behind each element, against one number for each."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.weights import MAX_RUNS, Weights, are_runs_of, dense
from collab.types import Vector

LENGTH = 30
SPANS = st.lists(
    st.tuples(st.integers(-5, LENGTH + 5), st.integers(0, 20)).map(lambda at: (at[0], at[0] + at[1])), max_size=5
)
SAMPLES = st.integers(0, 1000).map(float)
CHANGES = st.lists(SAMPLES | SPANS, max_size=6)


def changed(first: float, changes: list[Any]) -> tuple[Weights, Vector]:
    """The same changes made to both: samples are added everywhere, spans are cleared."""
    weights, oracle = Weights.uniform(LENGTH, first), np.full(LENGTH, first, np.float32)
    for change in changes:
        if isinstance(change, float):
            weights, oracle = weights.plus(change), oracle + np.float32(change)
            continue
        weights = weights.cleared(change)
        for start, stop in change:
            oracle[max(start, 0) : max(stop, 0)] = 0
    return weights, oracle


@given(first=SAMPLES, changes=CHANGES, start=st.integers(0, LENGTH), length=st.integers(0, LENGTH))
@settings(max_examples=300)
def test_weights_are_those_of_every_element_alone(first: float, changes: list[Any], start: int, length: int) -> None:
    weights, oracle = changed(first, changes)
    stop = min(start + length, LENGTH)
    assert np.array_equal(weights.dense(0, LENGTH), oracle)
    assert np.array_equal(weights.dense(start, stop), oracle[start:stop])
    assert [weights.at(element) for element in range(LENGTH)] == oracle.tolist()
    assert weights.largest == oracle.max()


@given(first=SAMPLES, changes=CHANGES, start=st.integers(0, LENGTH - 1), length=st.integers(1, LENGTH))
@settings(max_examples=200)
def test_runs_are_as_few_as_possible_and_are_what_a_reducer_accepts(
    first: float, changes: list[Any], start: int, length: int
) -> None:
    weights, oracle = changed(first, changes)
    stop = min(start + length, LENGTH)
    runs = weights.runs(start, stop)
    assert are_runs_of(runs, stop - start, weights.largest)
    assert np.array_equal(dense(runs), oracle[start:stop])
    assert list(weights.stops) == sorted(set(weights.stops))
    if any(not isinstance(change, float) for change in changes):
        assert len(runs) == 1 + np.count_nonzero(np.diff(oracle[start:stop]))
        assert weights.is_uniform == (len(set(oracle.tolist())) == 1)


def test_a_span_that_is_cleared_and_filled_again_has_less_than_the_rest() -> None:
    weights = Weights.uniform(10, 4).cleared([(2, 5)]).plus(3)
    assert weights == Weights((2, 5, 10), (7.0, 3.0, 7.0))
    assert not weights.is_uniform
    assert weights.runs(3, 6) == [(2, 3.0), (1, 7.0)]
    assert weights.runs(4, 4) == []
    assert weights.cleared([(0, 10)]) == Weights.uniform(10, 0)


def test_spans_that_touch_overlap_or_are_empty_clear_what_they_cover_together() -> None:
    weights = Weights.uniform(10, 1)
    assert weights.cleared([(5, 7), (0, 3), (3, 5), (6, 6)]) == Weights((7, 10), (0.0, 1.0))
    assert weights.cleared([(4, 4)]) == weights
    assert weights.cleared([]) == weights


def test_sound_runs_are_accepted_up_to_the_limit() -> None:
    assert are_runs_of([(10, 5.0)], 10, 5.0)
    assert are_runs_of([(3, 0.0), (7, 5.0)], 10, 5.0)
    assert are_runs_of([(1, 1.0)] * MAX_RUNS, MAX_RUNS, 5.0)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [(9, 1.0)],
        [(11, 1.0)],
        [(5, 1.0), (6, 1.0)],
        [(0, 1.0), (10, 1.0)],
        [(-1, 1.0), (11, 1.0)],
        [(10, -0.1)],
        [(10, 5.1)],
        [(10, math.nan)],
        [(10, math.inf)],
        [(10, -math.inf)],
        [(1 << 62, 1.0)],
    ],
)
def test_runs_that_make_no_sense_are_refused(runs: list[tuple[int, float]]) -> None:
    assert not are_runs_of(runs, 10, 5.0)


def test_more_runs_than_anybody_can_need_are_refused() -> None:
    assert not are_runs_of([(1, 1.0)] * (MAX_RUNS + 1), MAX_RUNS + 1, 5.0)
