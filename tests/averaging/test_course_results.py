"""Members that hold different things, and records of earlier rounds, as a leader sees them."""

from dataclasses import replace

import pytest

from collab.averaging.ballots import Acceptor, Ballot, Vote
from collab.averaging.complaints import Case, Complaint
from collab.averaging.course import Course
from collab.averaging.messages import Member
from collab.averaging.steps import Commit, Halt, Prepare, Report, Stage
from collab.types import PeerId
from tests.averaging.course_lab import (
    FOUR,
    NUM_ELEMENTS,
    A,
    B,
    C,
    D,
    H,
    actions_of,
    crowd,
    halted_by_losing,
    make_group,
    promised,
    report_of,
)
from tests.averaging.records import make_record

EARLIER = make_record(round_id="earlier")


def test_who_holds_other_bytes_than_most_has_to_go() -> None:
    those = crowd()
    those.answer(A)
    those.answer(B, lies=(0,))
    those.answer(C)
    assert those.course.gone == {B: ("results_differ", "b holds other bytes than most")}
    assert those.done == [Halt(1, (B,), (), (1,))]
    those.answer_all()
    assert isinstance(those.done[-1], Commit)
    assert those.done[-1].record.members == (A, C)


def test_when_none_are_most_the_reducer_goes_and_nothing_of_its_job_stands() -> None:
    course = Course.of(make_group(FOUR))
    those = crowd(course, frozenset((A, B, C, D)))
    those.answer(A)
    those.answer(B)
    those.answer(C, lies=(3,))
    those.answer(D, lies=(3,))
    assert course.gone.keys() == {D}
    assert those.done == [Halt(1, (D,), (), (3,))]
    for peer in (A, B, C):
        those.answer(peer, held=3)
    assert course.division.jobs[3].valid == 0
    those.answer_all()
    assert isinstance(those.done[-1], Commit)
    assert D not in {piece[0] for piece in those.done[-1].record.pieces}


def test_what_a_dead_reducer_gave_to_two_in_two_ways_is_reduced_again() -> None:
    those = halted_by_losing(C)
    for peer in (A, B):
        those.answer(peer, held=9)
    assert those.course.division.jobs[2].valid == 4
    those.answer(A)
    those.answer(B, lies=(2,))
    assert those.done[-1:] == [Halt(2, (), (), (2,))]
    for peer in (A, B):
        those.answer(peer, held=4)
    assert those.course.division.jobs[2].valid == 0
    those.answer_all()
    assert isinstance(those.done[-1], Commit)


def test_digests_of_what_does_not_stand_are_nobodys_fault() -> None:
    those = halted_by_losing(C)
    for peer in (A, B):
        those.answer(peer, held=0)
    assert those.course.division.jobs[2].valid == 0
    those.answer(A)
    those.answer(B, lies=(2,))
    assert isinstance(those.done[-1], Prepare)


def test_a_helper_without_digests_of_what_it_does_not_reduce_agrees_with_all() -> None:
    members = (Member(A, 1.0), Member(B, 1.0), Member(H, 0.0, receives=False))
    course = Course.of(make_group(members))
    for peer in (A, B):
        course.take_report(peer, 0, report_of(course.division, gaps=((B, 0, 10),)), promised())
    course.take_report(H, 0, Report((None, None, "d2"), ()), promised())
    (prepare,) = actions_of(course)
    assert isinstance(prepare, Prepare)
    assert prepare.record.gaps == ((B, 0, 10),)
    assert prepare.record.members == (A, B, H)


def test_whoever_is_relieved_is_kept_with_the_reason_for_it() -> None:
    course = Course.of(make_group(FOUR))
    for accuser in (A, B):
        course.complain(Case(accuser, Complaint(C, "unknown_round", "no results", is_reducer=True)))
    course.judge()
    assert course.relieved == {C: ("unknown_round", "no results")}
    assert not course.gone


def test_who_names_other_gaps_than_most_has_to_go() -> None:
    course = Course.of(make_group())
    for peer in (A, B):
        course.take_report(peer, 0, report_of(course.division, gaps=((C, 0, 10),)), promised())
    course.take_report(C, 0, report_of(course.division), promised())
    assert actions_of(course) == [Halt(1, (C,), (), (2,))]
    assert course.gone[C] == ("bad_report", "c names other gaps than most")


@pytest.mark.parametrize("truth", [(), ((B, 0, 10),)], ids=["nothing", "something"])
def test_of_two_that_name_different_gaps_the_one_is_believed_whom_the_reducer_confirms(
    truth: tuple[tuple[PeerId, int, int], ...],
) -> None:
    members = (Member(A, 1.0, reduces=False), Member(B, 1.0, reduces=False), Member(H, 0.0, receives=False))
    course = Course.of(make_group(members))
    lie = () if truth else ((B, 0, 10),)
    course.take_report(A, 0, report_of(course.division, gaps=truth), promised())
    course.take_report(B, 0, report_of(course.division, gaps=lie), promised())
    course.take_report(H, 0, report_of(course.division, gaps=truth), promised())
    actions_of(course)
    assert course.gone.keys() == {B}


def test_of_two_that_name_different_gaps_without_a_witness_the_larger_count() -> None:
    course = Course.of(make_group((Member(A, 1.0), Member(B, 1.0))))
    course.take_report(A, 0, report_of(course.division), promised())
    course.take_report(B, 0, report_of(course.division, gaps=((A, 0, 10),)), promised())
    actions_of(course)
    assert course.gone.keys() == {A}


def test_one_of_whom_everything_is_missing_is_no_contributor() -> None:
    course = Course.of(make_group())
    gaps = ((B, 0, 50), (B, 50, NUM_ELEMENTS), (C, 3, 4))
    for peer in (A, B, C):
        course.take_report(peer, 0, report_of(course.division, gaps=gaps), promised())
    (prepare,) = actions_of(course)
    assert isinstance(prepare, Prepare)
    assert prepare.record.contributors == ((A, 1.0), (C, 3.0))
    assert prepare.record.gaps == ((C, 3, 4),)


@pytest.mark.parametrize("gap", [(D, 0, 1), (B, -1, 1), (B, 4, 4), (B, 0, NUM_ELEMENTS + 1)])
def test_a_gap_of_nobody_or_beyond_the_vector_speaks_against_its_sender(gap: tuple[PeerId, int, int]) -> None:
    course = Course.of(make_group())
    course.take_report(C, 0, report_of(course.division, gaps=(gap,)), promised())
    assert course.gone.keys() == {C}


def test_a_gap_that_is_named_twice_speaks_against_its_sender() -> None:
    course = Course.of(make_group())
    course.take_report(C, 0, report_of(course.division, gaps=((B, 0, 4), (B, 3, 5))), promised())
    assert course.gone.keys() == {C}


def test_a_report_or_an_answer_of_the_wrong_length_speaks_against_its_sender() -> None:
    course = Course.of(make_group())
    course.take_report(C, 0, Report(("d0",), ()), promised())
    assert course.gone[C][0] == "bad_report"
    for counts in ((1, 2), (), (-1,)):
        those = halted_by_losing(C)
        those.course.take_held(B, 1, counts)
        assert those.course.gone[B][0] == "bad_report"


def test_a_report_of_an_older_division_and_one_of_somebody_gone_are_not_heard() -> None:
    those = halted_by_losing(C)
    those.answer(A)
    those.answer(B)
    those.course.take_report(A, 0, report_of(those.course.division), promised())
    those.course.take_report(C, 1, report_of(those.course.division), promised())
    assert those.course.awaited() == {A, B}


def test_an_earlier_vote_found_in_a_report_is_proposed_instead_of_the_own_record() -> None:
    course = Course.of(replace(make_group(), ballot_number=2))
    ballot = Ballot(2, A)
    voted = Acceptor(promised=ballot, vote=Vote(Ballot(1, D), EARLIER))
    for peer in (A, B, C):
        seat = voted if peer == B else promised(ballot)
        course.take_report(peer, 0, report_of(course.division), seat)
    assert actions_of(course) == [Prepare(ballot, EARLIER)]


def test_a_decision_found_in_a_report_is_announced_at_once() -> None:
    course = Course.of(make_group())
    course.take_report(B, 0, report_of(course.division), promised().learn(EARLIER))
    assert actions_of(course) == [Commit(EARLIER)]
    assert course.stage is Stage.COMMITTED


def test_a_decision_found_in_a_refused_vote_is_announced_at_once() -> None:
    those = crowd()
    for peer in (A, B, C):
        those.answer(peer)
    record = those.prepared[0].record
    those.course.take_vote(B, promised(Ballot(9, D)).learn(record))
    assert actions_of(those.course) == [Commit(record)]
