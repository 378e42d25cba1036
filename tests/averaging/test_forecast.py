"""When a batch is due: against trainers that are followed microbatch by microbatch."""

import math

import pytest
from hypothesis import given, strategies as st

from collab.averaging.claims import believed
from collab.averaging.forecast import FAR_S, HORIZON, Pace, Together, batch_due_s
from collab.types import PeerId


def pace(samples: float, *, speed: float = 10.0, microbatch_s: float = 1.0, age_s: float = 0.0) -> Pace:
    return Pace(samples=samples, samples_per_s=speed, microbatch_s=microbatch_s, age_s=age_s)


def test_trainers_in_step_are_due_when_their_microbatches_end_and_not_half_a_one_later() -> None:
    others = [pace(20, age_s=0.99)] * 3  # each about to tell of 30
    assert batch_due_s(others, pace(30), target=160, max_share=1.0) == pytest.approx(1.01, abs=1e-3)
    assert batch_due_s(others, pace(30), target=120, max_share=1.0) == pytest.approx(0.01, abs=1e-3)


def test_the_asker_ends_its_microbatch_and_begins_no_other() -> None:
    assert batch_due_s([], pace(10), target=20, max_share=1.0) == pytest.approx(1.0, abs=1e-3)
    assert batch_due_s([], pace(10), target=21, max_share=1.0) == FAR_S
    slow = pace(0, microbatch_s=1.5)
    assert batch_due_s([slow], pace(10), target=35, max_share=1.0) == pytest.approx(1.5, abs=1e-3)
    assert batch_due_s([slow], pace(10), target=36, max_share=1.0) == FAR_S


def test_who_is_overdue_by_a_whole_microbatch_is_not_expected_any_more() -> None:
    assert batch_due_s([pace(10, age_s=1.9)], pace(0), target=20, max_share=1.0) == pytest.approx(0.0, abs=1e-3)
    assert batch_due_s([pace(10, age_s=2.1)], pace(0), target=21, max_share=1.0) == FAR_S
    assert batch_due_s([pace(10, age_s=2.1)], pace(0), target=20, max_share=1.0) == pytest.approx(1.0, abs=1e-3)


def test_before_anybody_knows_how_fast_it_is_nothing_is_due() -> None:
    unknown = pace(10, speed=0.0, microbatch_s=0.0)
    assert batch_due_s([unknown], unknown, target=30, max_share=1.0) == FAR_S
    assert batch_due_s([unknown], pace(10), target=30, max_share=1.0) == pytest.approx(1.0, abs=1e-3)


def test_who_says_that_it_computes_no_more_brings_what_it_has() -> None:
    paused = pace(10, speed=0.0)
    assert batch_due_s([paused], pace(10), target=30, max_share=1.0) == pytest.approx(1.0, abs=1e-3)
    assert batch_due_s([paused], pace(10), target=30, max_share=0.7) == pytest.approx(1.0, abs=1e-3)
    assert batch_due_s([paused], pace(10), target=31, max_share=1.0) == FAR_S


def test_a_peer_that_claims_a_billion_brings_no_more_than_its_share() -> None:
    liar, honest = pace(1e9, speed=1e9, microbatch_s=1e-3), pace(10, age_s=0.5)
    assert batch_due_s([liar, honest], pace(10), target=60, max_share=0.5) == pytest.approx(0.5, abs=1e-3)
    assert batch_due_s([liar, honest], pace(10), target=1000, max_share=0.5) == FAR_S


@given(
    others=st.lists(
        st.builds(
            Pace,
            samples=st.integers(0, 50).map(float),
            samples_per_s=st.sampled_from([1.0, 8.0, 50.0]),
            microbatch_s=st.sampled_from([0.25, 0.5, 2.0, 8.0]),
            age_s=st.integers(0, 8).map(lambda n: n / 16),
        ),
        max_size=6,
    ),
    ours=st.integers(0, 50),
    target=st.integers(1, 300),
    max_share=st.sampled_from([0.3, 0.5, 1.0]),
)
def test_it_is_when_what_is_believed_of_all_reports_reaches_the_target(
    others: list[Pace], ours: int, target: int, max_share: float
) -> None:
    asker = pace(float(ours), speed=8.0, microbatch_s=1.0)

    def reported(after_s: float) -> float:
        """Of few everybody is believed; the forecast counts those, too, who compute and have nothing to say yet."""
        claimed = dict[PeerId, float]()
        for index, p in enumerate(others):
            microbatches = 0 if p.has_stopped else math.floor((after_s + p.age_s) / p.microbatch_s)
            claimed[PeerId(str(index))] = p.samples + microbatches * p.samples_per_s * p.microbatch_s
        claimed[PeerId("asker")] = ours + (after_s >= 1.0) * 8.0
        are_few = sum(1 for samples in claimed.values() if samples) * max_share < 1
        return 0.0 if are_few else believed(claimed, max_share)

    due_s = batch_due_s(others, asker, target=float(target), max_share=max_share)
    num_trainers = sum(1 for p in (*others, asker) if p.samples or not p.has_stopped)
    if num_trainers * max_share < 1:
        return  # everybody is believed until they are enough
    if due_s == FAR_S:
        assert reported(1.99) < target
    else:
        assert reported(due_s) >= target or math.isclose(reported(due_s), target)
        assert due_s < 0.001 or reported(due_s - 0.001) < target


@given(
    paces=st.lists(
        st.builds(
            Pace,
            samples=st.floats(0, 2.0**53),
            samples_per_s=st.floats(0, 2.0**53),
            microbatch_s=st.floats(0, 100),
            age_s=st.floats(0, 300),
        ),
        min_size=1,
        max_size=6,
    ),
    target=st.floats(1, 1e6),
    now_s=st.floats(300, 1e7),
)
def test_what_is_added_up_says_that_a_batch_is_far_off_only_where_it_is(
    paces: list[Pace], target: float, now_s: float
) -> None:
    together = Together()
    for each in paces:
        together.add(each.samples, each.samples_per_s, now_s - each.age_s)
    asker = paces[-1]
    most = together.most(now_s + min(HORIZON * asker.microbatch_s, FAR_S))
    if most < target * (1 - 1e-9):  # by so much the sums of the one that looks at each may be off
        assert batch_due_s(paces[:-1], asker, target=target, max_share=1.0) == FAR_S
        assert sum(each.samples for each in paces) < target


def test_a_liar_that_has_gone_leaves_sums_as_they_were() -> None:
    together = Together()
    together.add(10.0, 2.0, 1000.0)
    for trainers in (1, -1):
        together.add(2.0**53, 2.0**53, 1003.25, trainers=trainers)
    assert together.trainers == 1
    assert together.most(1005.0) == pytest.approx(20.0, abs=1e-4)
