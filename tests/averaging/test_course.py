"""A round as its leader sees it, walked by hand."""

from collab.averaging.ballots import Ballot
from collab.averaging.complaints import Case, Complaint
from collab.averaging.course import Course
from collab.averaging.messages import Member
from collab.averaging.steps import Abort, Commit, Halt, Mend, Prepare, Stage
from tests.averaging.course_lab import (
    ALL,
    FIRST,
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


def test_an_undisturbed_round_asks_for_votes_when_all_have_reported_and_commits_with_a_quorum() -> None:
    those = crowd()
    those.hear()
    assert those.done == []
    those.answer(A)
    those.answer(B)
    assert those.done == []
    assert those.course.awaited() == {C}
    those.answer(C)
    (prepare,) = those.done
    assert isinstance(prepare, Prepare)
    assert prepare.ballot == FIRST
    assert prepare.record.members == (A, B, C)
    assert prepare.record.contributors == ((A, 1.0), (B, 2.0), (C, 3.0))
    assert prepare.record.digests == ("d0", "d1", "d2")
    assert [piece[0] for piece in prepare.record.pieces] == [A, B, C]
    those.answer(B)
    assert len(those.done) == 1
    those.answer(C)
    assert those.done[1:] == [Commit(prepare.record)]
    assert those.course.stage is Stage.COMMITTED
    those.answer_all()
    assert len(those.done) == 2


def test_half_of_the_votes_are_a_quorum_only_with_the_first_elector() -> None:
    for voters, is_enough in (((A, B), True), ((C, D), False)):
        those = crowd(Course.of(make_group(FOUR)), frozenset((A, B, C, D)))
        for peer in (A, B, C, D):
            those.answer(peer)
        for peer in voters:
            those.answer(peer)
        assert (those.course.stage is Stage.COMMITTED) == is_enough


def test_a_lost_reducer_has_its_job_stopped_and_divided_among_the_others() -> None:
    those = halted_by_losing(C)
    assert those.done == [Halt(1, (C,), (), (2,))]
    those.answer(A, held=1)
    assert those.course.awaited() == {B}
    those.answer(B, held=2)
    mend = those.done[-1]
    assert isinstance(mend, Mend)
    assert mend.division.jobs[2].holder == B
    assert mend.division.jobs[2].valid == 2
    assert {job.span.reducer for job in mend.division.jobs[3:]} == {A, B}
    those.answer_all()
    assert isinstance(those.done[-1], Commit)
    assert those.done[-1].record.members == (A, B)


def test_one_that_is_lost_and_reduces_nothing_stops_nothing() -> None:
    course = Course.of(make_group(idle=(C,)))
    those = crowd(course)
    those.answer(A)
    course.lose(C, "dead", "c is dead")
    those.hear()
    assert those.done == [Halt(0, (C,), (), ())]
    assert course.stage is Stage.WORKING
    assert course.awaited() == {B}
    those.answer(B)
    assert isinstance(those.done[-1], Prepare)


def test_a_loss_while_work_is_stopped_asks_everybody_again() -> None:
    those = crowd(Course.of(make_group(FOUR)), frozenset((A, B, C, D)))
    those.course.lose(C, "dead", "c is dead")
    those.hear()
    those.answer(A, held=2)
    those.course.lose(D, "dead", "d is dead")
    those.hear()
    assert those.done == [Halt(1, (C,), (), (2,)), Halt(2, (D,), (), (2, 3))]
    assert those.course.awaited() == {A, B}
    those.course.take_held(A, 1, [2])
    assert those.course.awaited() == {A, B}
    those.answer_all()
    assert isinstance(those.done[-1], Commit)


def test_one_that_is_relieved_while_work_is_stopped_is_stopped_too() -> None:
    those = halted_by_losing(C)
    those.course.relieve(B, "slow", "")
    those.hear()
    assert those.done[-1:] == [Halt(2, (), (), (1, 2))]
    those.answer(B, held=2)
    those.answer(A)
    mend = those.done[-1]
    assert isinstance(mend, Mend)
    assert {job.source for job in mend.division.jobs if job.valid} == {A}
    assert those.course.live == {A, B}


def test_one_that_is_silenced_is_named_and_stays() -> None:
    those = crowd(Course.of(make_group(idle=(C,))))
    those.course.silence(C)
    those.hear()
    assert those.done == [Halt(0, (), (C,), ())]
    those.answer_all()
    assert isinstance(those.done[-1], Commit)
    assert C in those.done[-1].record.members


def test_who_dies_while_votes_are_taken_is_not_waited_for() -> None:
    those = crowd()
    for peer in (A, B, C):
        those.answer(peer)
    those.course.lose(C, "dead", "c is dead")
    those.hear()
    assert those.course.can_decide()
    those.answer_all()
    assert isinstance(those.done[-1], Commit)


def test_after_prepare_the_leader_never_aborts() -> None:
    those = crowd()
    for peer in (A, B, C):
        those.answer(peer)
    those.answer(A)
    for peer in (B, C):
        those.course.lose(peer, "dead", f"{peer} is dead")
        those.hear()
    those.course.lose(A, "dead", "a is dead")
    those.hear()
    assert those.course.stage is Stage.VOTING
    assert not those.course.can_decide()
    assert len(those.done) == 1


def test_votes_that_were_given_and_those_that_may_still_come_count_together() -> None:
    those = crowd(Course.of(make_group(FOUR)), frozenset((A, B, C, D)))
    for peer in (A, B, C, D, B, C):
        those.answer(peer)
    those.course.lose(A, "dead", "a is dead")
    assert those.course.can_decide()
    those.answer(D)
    assert those.course.stage is Stage.COMMITTED


def test_a_member_that_refuses_to_vote_leaves_the_round_undecided() -> None:
    those = crowd()
    for peer in (A, B, C):
        those.answer(peer)
    those.answer(A)
    for peer in (B, C):
        those.course.take_vote(peer, promised(Ballot(9, D)))
        those.hear()
    assert those.course.stage is Stage.VOTING
    assert not those.course.can_decide()


def test_without_a_quorum_of_members_the_round_is_aborted() -> None:
    those = crowd(Course.of(make_group(electors=(A, D, H))))
    those.hear()
    assert those.done == [Abort("no_quorum", "only 3 members are left, no quorum: ")]


def test_members_without_a_seat_do_not_count_and_the_round_is_aborted_before_anybody_votes() -> None:
    those = crowd(voters=frozenset((B,)))
    those.answer_all()
    (abort,) = those.done
    assert isinstance(abort, Abort)
    assert abort.reason == "no_quorum"


def test_without_a_contributor_the_round_is_aborted() -> None:
    members = (Member(H, 0.0, receives=False), Member(A, 1.0), Member(B, 0.0))
    course = Course.of(make_group(members))
    course.lose(A, "dead", "a is dead")
    (abort,) = actions_of(course)
    assert abort == Abort("dead", "no contributor is left: a is dead")
    assert actions_of(course) == []


def test_a_round_whose_mean_has_nothing_of_anybody_is_aborted() -> None:
    gaps = tuple((peer, 0, NUM_ELEMENTS) for peer in (A, B, C))
    course = Course.of(make_group())
    for peer in (A, B, C):
        course.take_report(peer, 0, report_of(course.division, gaps=gaps), promised())
    (abort,) = actions_of(course)
    assert isinstance(abort, Abort)
    assert abort.reason == "no_contributor"


def test_when_nobody_can_reduce_what_is_missing_the_round_is_aborted() -> None:
    members = (Member(A, 1.0, reduces=False), Member(B, 1.0, reduces=False), Member(H, 0.0, receives=False))
    course = Course.of(make_group(members))
    those = crowd(course, frozenset((A, B, H)))
    course.lose(H, "dead", "h is dead")
    those.answer_all()
    assert those.done[-1] == Abort("nobody_reduces", "nobody is left who can reduce what is missing")


def test_what_only_a_member_holds_whom_nobody_can_reach_is_reduced_again() -> None:
    course = Course.of(make_group((Member(A, 1.0), Member(B, 2.0, reduces=False), Member(C, 3.0))))
    those = crowd(course)
    course.lose(C, "dead", "c is dead")
    those.hear()
    those.answer(A, held=1)
    those.answer(B, held=2)
    assert course.division.jobs[1].valid == 1
    assert {job.source for job in course.division.jobs} == {A}


def test_complaints_are_kept_until_they_are_judged_and_only_those_of_the_living_count() -> None:
    those = crowd()
    those.course.complain(Case(A, Complaint(C, "gone", "c is gone")))
    those.course.complain(Case(D, Complaint(B, "gone", "d is no member")))
    before = those.course.has_cases
    those.course.judge()
    assert (before, those.course.has_cases) == (True, False)
    assert those.course.live == {A, B}
    those.course.complain(Case(A, Complaint(C, "gone", "c is gone")))
    assert not those.course.has_cases


def test_a_late_reducer_is_relieved_and_further_complaints_of_it_are_settled() -> None:
    those = crowd()
    late = Case(A, Complaint(C, "late", "c is late", is_reducer=True))
    those.course.complain(late)
    those.course.judge()
    those.hear()
    assert those.course.live == ALL
    assert those.done == [Halt(1, (), (), (2,))]
    those.course.complain(late)
    assert not those.course.has_cases
