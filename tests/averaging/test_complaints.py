"""Whom to go on without when members complain of each other."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.complaints import MAX_TEXT, Case, Complaint, Judgement, judge, with_a_reducer
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import PeerId
from tests.fakes import through_the_wire

A, B, C, D, E = (PeerId(name) for name in "abcde")
PEERS = (A, B, C, D, E)


def late(accuser: PeerId, culprit: PeerId, *, is_hostile: bool = False) -> Case:
    """The culprit's results do not come."""
    return Case(accuser, Complaint(culprit, "timed_out", "no results", is_hostile=is_hostile, is_reducer=True))


def silent(accuser: PeerId, culprit: PeerId, *, is_hostile: bool = False) -> Case:
    """The culprit's parts do not come."""
    return Case(accuser, Complaint(culprit, "silent", "no parts", is_hostile=is_hostile))


def dropped(judgement: Judgement) -> list[PeerId]:
    return sorted(case.complaint.culprit for case in judgement.dropped)


def relieved(judgement: Judgement) -> list[PeerId]:
    return sorted(case.complaint.culprit for case in judgement.relieved)


def test_nobody_is_judged_without_a_complaint() -> None:
    assert judge([]) == Judgement()


def test_one_whose_parts_come_to_nobody_leaves() -> None:
    judgement = judge([silent(A, D), silent(B, D), silent(C, D)])
    assert judgement.dropped == (silent(A, D),)
    assert not judgement.relieved


def test_one_whose_results_come_to_nobody_loses_its_work_only() -> None:
    judgement = judge([late(A, D), late(B, D), late(C, D)])
    assert judgement.relieved == (late(A, D),)
    assert not judgement.dropped


def test_of_two_that_miss_each_other_the_one_whose_results_do_not_come_is_relieved() -> None:
    for cases in ([late(A, B), silent(B, A)], [silent(B, A), late(A, B)], [late(B, A), silent(A, B)]):
        judgement = judge(cases)
        (late_one,) = (case.complaint.culprit for case in cases if case.complaint.is_reducer)
        assert relieved(judgement) == [late_one]
        assert not judgement.dropped


def test_of_two_that_miss_everything_of_each_other_both_lose_their_work_and_stay() -> None:
    for cases in ([late(A, B), silent(A, B), late(B, A)], [late(A, B), silent(A, B), late(B, A), silent(B, A)]):
        judgement = judge(cases)
        assert (dropped(judgement), relieved(judgement)) == ([], [A, B])


def test_one_that_accuses_everybody_leaves_itself() -> None:
    for accuse in (late, silent):
        judgement = judge([accuse(A, B), accuse(A, C), accuse(A, D)])
        assert dropped(judgement) == [A]
        assert not judgement.relieved
        assert judgement.dropped[0].complaint.reason == "cut_off"
        assert "a complains of several" in judgement.dropped[0].complaint.text


def test_one_that_is_accused_by_all_and_accuses_all_leaves() -> None:
    cases = [silent(A, D), silent(B, D), silent(C, D), silent(D, A), silent(D, B), silent(D, C)]
    assert dropped(judge(cases)) == [D]


def test_who_sends_what_no_honest_peer_sends_leaves_also_when_it_is_late() -> None:
    for case in (silent(A, B, is_hostile=True), late(A, B, is_hostile=True)):
        assert dropped(judge([case])) == [B]
    assert dropped(judge([late(A, B), late(C, B, is_hostile=True)])) == [B]


def test_two_that_have_nothing_to_do_with_each_other_are_judged_apart() -> None:
    judgement = judge([silent(A, B), late(C, D)])
    assert (dropped(judgement), relieved(judgement)) == ([B], [D])


def test_who_is_relieved_is_still_heard_of_others() -> None:
    judgement = judge([late(A, B), silent(B, A, is_hostile=True)])
    assert (dropped(judgement), relieved(judgement)) == ([A], [])
    judgement = judge([late(A, B), late(C, B), silent(B, A, is_hostile=True)])
    assert (dropped(judgement), relieved(judgement)) == ([A], [B])
    judgement = judge([late(A, B), late(B, A)])
    assert (dropped(judgement), relieved(judgement)) == ([], [A, B])


def test_several_complaints_of_one_member_count_once() -> None:
    twice = [late(A, B), Case(A, Complaint(B, "closed", "of another job", is_reducer=True))]
    judgement = judge([*twice, silent(B, C, is_hostile=True)])
    assert (dropped(judgement), relieved(judgement)) == (dropped(judge([twice[0], silent(B, C, is_hostile=True)])), [])


def judged(cases: Sequence[Case], able: str, live: str = "abcd", leader: PeerId = D) -> Judgement:
    return with_a_reducer(judge(cases), cases, [PeerId(p) for p in able], [PeerId(p) for p in live], leader)


def test_of_two_reducers_that_miss_each_others_results_one_leaves_and_the_other_reduces() -> None:
    judgement = judged([late(A, B), late(B, A)], able="ab")
    assert (dropped(judgement), relieved(judgement)) == ([B], [])
    assert judgement.dropped[0].complaint.reason == "cut_off"
    assert dropped(judged([late(A, B), late(B, A)], able="ab", live="abc")) == [B]


def test_of_two_such_reducers_the_one_stays_whom_more_members_confirm_and_of_equals_the_leader() -> None:
    assert dropped(judged([late(A, B), late(B, A)], able="ab", leader=B)) == [A]
    cases = [late(A, B), late(B, A), late(C, A)]
    assert dropped(judged(cases, able="ab", live="abcde")) == [A]


def test_the_only_reducer_stays_while_most_get_its_results() -> None:
    judgement = judged([late(A, B)], able="b")
    assert (dropped(judgement), relieved(judgement)) == ([A], [])
    assert relieved(judged([late(A, B), late(C, B)], able="b")) == [B]


def test_of_two_members_without_a_witness_neither_is_believed() -> None:
    judgement = judged([late(A, B), late(B, A)], able="ab", live="ab")
    assert (dropped(judgement), relieved(judgement)) == ([], [A, B])


def test_while_another_one_can_reduce_whoever_is_missed_is_relieved() -> None:
    judgement = judged([late(A, B), late(B, A)], able="abc")
    assert (dropped(judgement), relieved(judgement)) == ([], [A, B])
    assert judged([], able="") == Judgement()


def is_settled(case: Case, judgement: Judgement) -> bool:
    """Whether the complaint can come no more: a side is gone, or a relieved one's work concerns nobody."""
    gone, idle, complaint = dropped(judgement), relieved(judgement), case.complaint
    if {case.accuser, complaint.culprit} & set(gone):
        return True
    if complaint.is_hostile:
        return False
    return complaint.culprit in idle if complaint.is_reducer else case.accuser in idle


@st.composite
def all_cases(draw: st.DrawFn) -> list[Case]:
    one = st.builds(
        lambda pair, reason, hostile, reducer: Case(pair[0], Complaint(pair[1], reason, "", hostile, reducer)),
        st.tuples(st.sampled_from(PEERS), st.sampled_from(PEERS)).filter(lambda pair: pair[0] != pair[1]),
        st.sampled_from(["gone", "late"]),
        st.booleans(),
        st.booleans(),
    )
    return draw(st.lists(one, max_size=12))


@given(cases=all_cases())
@settings(max_examples=250)
def test_after_a_judgement_no_complaint_is_left(cases: list[Case]) -> None:
    judgement = judge(cases)
    assert [case for case in cases if not is_settled(case, judgement)] == []
    named = {peer for case in cases for peer in case.pair}
    assert {*dropped(judgement), *relieved(judgement)} <= named
    assert len(dropped(judgement)) == len(set(dropped(judgement)))
    assert not set(dropped(judgement)) & set(relieved(judgement))


@given(cases=all_cases(), seed=st.integers(0, 1000))
@settings(max_examples=150)
def test_the_order_in_which_complaints_come_decides_nothing(cases: list[Case], seed: int) -> None:
    shuffled = list(cases)
    Random(seed).shuffle(shuffled)
    one, other = judge(cases), judge(shuffled)
    assert (dropped(one), relieved(one)) == (dropped(other), relieved(other))


@given(num_peers=st.integers(4, 20), flaw=st.sampled_from([late, silent]))
def test_one_broken_machine_costs_only_itself(num_peers: int, flaw: Any) -> None:
    peers = [PeerId(f"p{index:02}") for index in range(num_peers)]
    for broken in (peers[0], peers[-1]):
        cases: Sequence[Case] = [
            case for peer in peers if peer != broken for case in (flaw(peer, broken), silent(broken, peer))
        ]
        judgement = judge(cases)
        assert {*dropped(judgement), *relieved(judgement)} == {broken}


def test_a_complaint_travels_and_long_words_are_cut() -> None:
    complaint = Complaint(B, "late", "x" * 1000, is_hostile=True, is_reducer=True)
    received = Complaint.from_message(through_the_wire(complaint.to_message()))
    assert received == Complaint(B, "late", "x" * MAX_TEXT, is_hostile=True, is_reducer=True)
    fields = complaint.to_message().fields | {"reason": "y" * 1000, "text": "y" * 1000}
    hostile = Complaint.from_message(Message("complaint", fields))
    assert (hostile.reason, len(hostile.text)) == ("other", MAX_TEXT), "one word, to be counted and shown"


@pytest.mark.parametrize("name", ["culprit", "reason", "text", "hostile", "reducer"])
@pytest.mark.parametrize("value", [..., None, 5, [], {}])
def test_a_malformed_complaint_is_a_bad_message(name: str, value: Any) -> None:
    fields = Complaint(B, "late", "").to_message().fields | {name: value}
    with pytest.raises(BadMessage):
        Complaint.from_message(Message("complaint", {key: each for key, each in fields.items() if each is not ...}))
