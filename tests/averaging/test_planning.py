"""The leader's plan: what it assumes of links that nobody knows yet, and how long it keeps what it has decided."""

import math
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.contribution_plan import Policy
from collab.averaging.messages import Join
from collab.averaging.plan import (
    LARGEST_PART_ELEMENTS,
    PART_ELEMENTS,
    SMALLEST_PART_ELEMENTS,
    is_tiling,
    part_elements,
    shortest_span,
)
from collab.averaging.planning import ROUNDING, UP_HEADROOM, Plan, Planner, assumed_rates
from collab.types import Lineage, PeerId

MBIT = 125_000.0
NUM_ELEMENTS = 64 * PART_ELEMENTS
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
Joins = dict[PeerId, Join]


def join(up: float, down: float | None = None, **changes: Any) -> Join:
    """A contributor whose links were full at these rates, in Mbit/s."""
    whole = Join(
        fingerprint="f",
        epoch=0,
        lineage=Lineage("l"),
        num_elements=NUM_ELEMENTS,
        weight=10.0,
        can_reduce=True,
        up_bytes_per_s=up * MBIT,
        up_is_limit=True,
        down_bytes_per_s=(up if down is None else down) * MBIT,
        down_is_limit=True,
    )
    return replace(whole, **changes)


def unknown() -> Join:
    """A contributor whose link was never used."""
    return join(0.0, up_is_limit=False, down_is_limit=False)


def helper(up: float) -> Join:
    """A peer that only reduces."""
    return join(up, num_elements=0, weight=0.0)


def planned(joins: Joins, planner: Planner | None = None) -> Plan:
    return (planner or Planner("exact")).plan(joins, NUM_ELEMENTS, math.inf)


def shares(plan: Plan) -> dict[PeerId, float]:
    return {span.reducer: span.num_elements / NUM_ELEMENTS for span in plan.spans}


# -- rates that nobody knows -------------------------------------------------------------------------------------------


def test_a_link_of_which_nothing_is_known_is_taken_to_be_as_the_others_are() -> None:
    measured = {A: (10.0, True), B: (30.0, True), C: (0.0, False), PeerId("d"): (20.0, True)}
    assert assumed_rates(measured, 1.0) == {A: 10.0, B: 30.0, C: 20.0, PeerId("d"): 20.0}


def test_when_nothing_is_known_of_anybody_all_links_are_the_same() -> None:
    assert len(set(assumed_rates({A: (0.0, False), B: (0.0, False)}, 1.25).values())) == 1
    plan = planned({A: unknown(), B: unknown(), C: unknown(), PeerId("d"): unknown()})
    assert shares(plan) == pytest.approx(dict.fromkeys((A, B, C, PeerId("d")), 0.25), abs=0.02)


def test_a_newcomer_among_equals_gets_an_equal_share() -> None:
    known = {A: join(50), B: join(50), C: join(50)}
    assert shares(planned({**known, PeerId("d"): unknown()})) == shares(planned({**known, PeerId("d"): join(50)}))


def test_a_rate_at_which_a_link_was_not_full_has_headroom_and_a_limit_has_none() -> None:
    measured = {A: (40.0, False), B: (30.0, True)}
    assert assumed_rates(measured, UP_HEADROOM) == {A: 40.0 * UP_HEADROOM, B: 30.0}
    unlimited = assumed_rates({A: (10.0, False), B: (30.0, False)}, UP_HEADROOM)
    assert unlimited == {A: 10.0 * UP_HEADROOM, B: 30.0 * UP_HEADROOM}


def test_links_that_differ_by_less_than_measuring_can_tell_are_the_same() -> None:
    d, e = PeerId("d"), PeerId("e")
    most = {A: (18.0, True), B: (20.0, True), C: (22.0, True), d: (40.0, True), e: (5.0, True)}
    assert assumed_rates(most, UP_HEADROOM) == {A: 20.0, B: 20.0, C: 20.0, d: 40.0, e: 5.0}
    few = {A: (10.0, True), B: (19.0, True), C: (21.0, True), d: (40.0, True)}
    assert assumed_rates(few, UP_HEADROOM) == {peer: rate for peer, (rate, _) in few.items()}


def test_a_link_that_was_not_full_says_less_about_a_difference() -> None:
    d, e = PeerId("d"), PeerId("e")
    measured = {A: (19.0, True), B: (21.0, True), e: (20.0, True), C: (28.0, False), d: (15.0, False)}
    assert assumed_rates(measured, UP_HEADROOM) == dict.fromkeys(measured, 20.0)
    full = {peer: (rate, True) for peer, (rate, _) in measured.items()}
    assert assumed_rates(full, UP_HEADROOM)[C] == 28.0
    assert assumed_rates({A: (10.0, False), B: (12.0, False)}, 2.0) == {A: 22.0, B: 22.0}


def test_a_plan_asks_for_more_of_an_uplink_that_was_never_full() -> None:
    full = {A: join(100), B: join(20), C: join(20)}
    lax = {**full, A: join(100, up_is_limit=False)}
    assert shares(planned(lax)) == shares(planned({**full, A: join(100 * UP_HEADROOM, 100)}))


def test_a_downlink_that_was_never_full_is_taken_to_carry_what_the_uplink_does() -> None:
    barely_used = join(100, 1, down_is_limit=False)
    assert shares(planned({A: barely_used, B: join(20), C: join(20)})) == shares(
        planned({A: join(100, 100), B: join(20), C: join(20)})
    )


# -- how long a plan is kept -------------------------------------------------------------------------------------------


def changed_up(joins: Joins, peer: PeerId, factor: float) -> Joins:
    return {**joins, peer: replace(joins[peer], up_bytes_per_s=joins[peer].up_bytes_per_s * factor)}


SWARM = {A: join(40, 100), B: join(25, 100), C: join(30, 60)}


@pytest.mark.parametrize("peer", [A, B, C])
@pytest.mark.parametrize("direction", ["up_bytes_per_s", "down_bytes_per_s"])
@pytest.mark.parametrize(("factor", "is_kept"), [(1.09, True), (1 / 1.09, True), (1.2, False), (1 / 1.2, False)])
def test_a_plan_is_kept_while_rates_move_by_less_than_a_tenth(
    peer: PeerId, direction: str, factor: float, is_kept: bool
) -> None:
    planner = Planner("exact")
    before = planned(SWARM, planner)
    rate = getattr(SWARM[peer], direction) * factor
    moved: Joins = {**SWARM, peer: replace(SWARM[peer], **{direction: rate})}
    after = planned(moved, planner)
    assert after.spans == (before.spans if is_kept else planned(moved).spans)
    if is_kept and peer == A and direction == "up_bytes_per_s":
        assert planned(moved).spans != before.spans  # so that keeping it says something


def test_rates_that_drift_are_compared_with_those_that_the_plan_was_made_of() -> None:
    planner, drifting = Planner("exact"), SWARM
    first = planned(drifting, planner)
    drifting = changed_up(drifting, A, 1.08)
    assert planned(drifting, planner).spans == first.spans
    drifting = changed_up(drifting, A, 1.08)
    assert 1.08 < ROUNDING < 1.08**2
    assert planned(drifting, planner).spans == planned(drifting).spans != first.spans


@pytest.mark.parametrize(
    "other",
    [
        {A: SWARM[A], B: SWARM[B]},
        {**SWARM, PeerId("d"): join(80)},
        {**SWARM, PeerId("d"): helper(80)},
        {A: SWARM[A], B: SWARM[B], PeerId("d"): SWARM[C]},
        {B: SWARM[B], A: SWARM[A], C: SWARM[C]},
        {**SWARM, A: replace(SWARM[A], can_reduce=False)},
        {**SWARM, A: replace(SWARM[A], up_is_limit=False)},
        {**SWARM, C: replace(SWARM[C], num_elements=0, weight=0.0)},
    ],
    ids=["goes", "comes", "helper comes", "is another", "order", "reduces no more", "was not full", "follows"],
)
def test_a_plan_is_renewed_when_members_or_their_parts_change(other: Joins) -> None:
    planner = Planner("exact")
    before = planned(SWARM, planner)
    after = planned(other, planner)
    assert after == planned(other)
    assert [member.peer for member in after.members] == list(other)
    assert is_tiling(after.spans, NUM_ELEMENTS)
    assert planned(SWARM, planner) == before


def test_weights_are_always_the_present_ones() -> None:
    planner = Planner("exact")
    before = planned(SWARM, planner)
    heavier = {peer: replace(its_join, weight=10.0 + place) for place, (peer, its_join) in enumerate(SWARM.items())}
    after = planned(heavier, planner)
    assert [member.weight for member in before.members] == [10.0, 10.0, 10.0]
    assert [member.weight for member in after.members] == [10.0, 11.0, 12.0]
    assert after.spans == before.spans


def test_who_only_helps_has_no_weight_and_gets_no_mean() -> None:
    plan = planned({**SWARM, PeerId("d"): helper(200)})
    weights = {member.peer: (member.weight, member.receives) for member in plan.members}
    assert weights[PeerId("d")] == (0.0, False)
    assert weights[A] == (10.0, True)
    assert shares(plan)[PeerId("d")] == max(shares(plan).values())


# -- who is left out, and for how long ---------------------------------------------------------------------------------


def test_a_peer_that_would_hold_everybody_up_follows_without_weight_until_its_samples_are_worth_it() -> None:
    planner = Planner("exact")
    fast = {PeerId(f"p{number}"): join(100, weight=140.0) for number in range(7)}
    weights = []
    for samples in (10.0, 3000.0, 10.0):
        joins = {**fast, C: join(4, 100, weight=samples)}
        plan = planner.plan(joins, NUM_ELEMENTS, 5.0)
        weights.append(plan.members[-1].weight)
        assert plan.members[-1].receives
        assert [member.weight for member in plan.members[:-1]] == [140.0] * 7
    assert weights == [0.0, 3000.0, 0.0]


def test_nobody_is_left_out_while_the_speed_of_the_swarm_is_not_known() -> None:
    joins = {**{PeerId(f"p{number}"): join(100, weight=140.0) for number in range(7)}, C: join(0.5, 100, weight=1.0)}
    assert [member.weight for member in planned(joins).members] == [140.0] * 7 + [1.0]


# -- slow downlinks ----------------------------------------------------------------------------------------------------

SEVEN = {PeerId(f"p{number}"): join(20, 100, weight=100.0) for number in range(7)}
RATES = (8e-6, 8e-2, 0.24, 0.48, 1.0, 2.4, 8.0)
"""Mbit/s; the first ones are of links that do not exist."""


@pytest.mark.parametrize("policy", ["exact", "half", "int4", "auto", "sparse", "sparse_both"])
@pytest.mark.parametrize("batch_s", [math.inf, 30.0])
@pytest.mark.parametrize("down", RATES)
def test_one_slow_downlink_neither_holds_the_group_up_nor_leaves_anybody_out(
    down: float, batch_s: float, policy: Policy
) -> None:
    accumulate_s = batch_s if batch_s < math.inf else 0.0
    beside = {**SEVEN, PeerId("q"): join(20, 100, weight=100.0)}
    slow = {**SEVEN, PeerId("q"): join(20, down, weight=100.0)}
    usual_s = Planner(policy).plan(beside, NUM_ELEMENTS, batch_s).seconds
    plan = Planner(policy).plan(slow, NUM_ELEMENTS, batch_s)
    assert [member.weight for member in plan.members] == [100.0] * 8
    assert accumulate_s + plan.seconds <= 1.35 * (accumulate_s + usual_s)
    assert PeerId("q") not in shares(plan) or down >= 1.0


def test_a_link_that_is_slow_both_ways_holds_nobody_up_either() -> None:
    joins = {**SEVEN, PeerId("q"): join(0.008, 0.008, weight=100.0)}
    plan = Planner("auto").plan(joins, NUM_ELEMENTS, 30.0)
    assert [member.weight for member in plan.members] == [100.0] * 7 + [0.0]
    assert plan.seconds < 2.0


def test_slow_downlinks_of_more_than_a_third_are_planned_with() -> None:
    """Those behind most others are gone on without; these would be as many as there are others."""
    joins = {A: join(20, 100), B: join(20, 1), C: join(20, 1)}
    assert planned(joins).seconds >= 4 * NUM_ELEMENTS * 0.9 / MBIT / 2
    two = {A: join(20, 100), B: join(20, 1)}
    assert planned(two).seconds > planned({A: two[A], B: join(20, 20)}).seconds


def test_a_slow_downlink_reduces_where_nobody_else_can() -> None:
    joins = {A: join(20, 1), B: join(20, 100, can_reduce=False), C: join(20, 100, can_reduce=False)}
    assert shares(planned(joins)) == {A: 1.0}


# -- parts -------------------------------------------------------------------------------------------------------------


def test_parts_are_longer_where_links_are_fast_and_half_as_long_where_they_are_slow() -> None:
    rates = (0.1, 1, 4, 10, 20, 50, 100, 500, 1000, 5000)
    lengths = [part_elements(mbit_per_s * MBIT, 4.0) for mbit_per_s in rates]
    assert lengths == sorted(lengths)
    assert lengths[:5] == [SMALLEST_PART_ELEMENTS] * 3 + [PART_ELEMENTS] * 2
    assert lengths[-1] == LARGEST_PART_ELEMENTS
    for mbit_per_s, length in zip(rates[2:-1], lengths[2:-1], strict=True):
        assert 0.004 < 4 * length / (mbit_per_s * MBIT) <= 0.1
    assert part_elements(0.0, 4.0) == PART_ELEMENTS


def test_a_part_of_the_leanest_encoding_has_as_many_bytes_as_others_of_float32() -> None:
    assert part_elements(30 * MBIT, 2.0) == 2 * PART_ELEMENTS
    assert part_elements(30 * MBIT, 0.5625) == 7 * PART_ELEMENTS
    assert part_elements(5000 * MBIT, 0.5625) == LARGEST_PART_ELEMENTS
    slow = {A: join(300), B: join(300), C: join(30)}
    assert planned(slow, Planner("half")).part_elements == 2 * PART_ELEMENTS
    lean = planned(slow, Planner("auto"))
    assert {member.codec for member in lean.members} == {"float16", "int8"}
    assert lean.part_elements == 4 * PART_ELEMENTS


def test_the_slowest_contributor_of_a_group_decides_how_long_its_parts_are() -> None:
    fast = {A: join(1000), B: join(1000)}
    assert planned(fast).part_elements == part_elements(1000 * MBIT, 4.0) > PART_ELEMENTS
    assert planned({**fast, C: helper(1)}).part_elements == part_elements(1000 * MBIT, 4.0)
    assert planned({**fast, C: join(20)}).part_elements == PART_ELEMENTS
    assert planned({A: join(20), B: join(20), C: join(5)}).part_elements == SMALLEST_PART_ELEMENTS
    assert planned({**fast, C: unknown()}).part_elements == PART_ELEMENTS


# -- short vectors -----------------------------------------------------------------------------------------------------


def test_a_short_vector_is_divided_on_slow_links_and_not_on_fast_ones() -> None:
    """At 1 Mbit/s a single reducer of 32 would take five seconds for the parts of all, and five to return them."""
    names = [PeerId(f"peer{index:02d}") for index in range(32)]
    for mbit, num_reducers in ((1.0, 18), (1000.0, 1)):
        joins = {name: join(mbit, num_elements=4810) for name in names}
        plan = Planner("exact").plan(joins, 4810, math.inf)
        assert is_tiling(plan.spans, 4810)
        assert len(plan.spans) == num_reducers


def test_a_vector_of_more_than_a_part_for_each_is_divided_as_ever() -> None:
    """A share of half a part that a slow peer could just as well do without costs everybody a stream."""
    assert shortest_span(PART_ELEMENTS, 9 * PART_ELEMENTS, 9, 250_000.0) == PART_ELEMENTS // 2
    assert shortest_span(PART_ELEMENTS, 9 * PART_ELEMENTS - 1, 9, 250_000.0) < PART_ELEMENTS // 2
