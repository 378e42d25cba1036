"""A round as a successor sees it that takes it over."""

from collab.averaging.ballots import Acceptor, Ballot, Vote
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import Group
from collab.averaging.steps import Abort, Commit, Halt, Lead, Mend, Prepare, Stage
from collab.types import PeerId
from tests.averaging.course_lab import (
    FOUR,
    PART,
    A,
    B,
    C,
    Crowd,
    D,
    actions_of,
    make_group,
    promised,
    report_of,
)
from tests.averaging.records import make_record

SECOND = Ballot(2, B)
EARLIER = make_record(round_id="r")
VOTED = Acceptor(promised=SECOND, vote=Vote(Ballot(1, A), EARLIER))


def resumed(
    group: Group | None = None,
    known: dict[PeerId, tuple[int, Division]] | None = None,
    missing: tuple[PeerId, ...] = (),
) -> Course:
    """Four members, whose leader, the first of them, is lost."""
    group = group or make_group(FOUR)
    division = Division.of(group.spans, PART)
    peers = [peer for peer in (B, C, D) if peer not in missing]
    return Course.resumed(group, SECOND, known or dict.fromkeys(peers, (0, division)))


def crowd(course: Course, voters: str = "bcd") -> Crowd:
    return Crowd(course, SECOND, frozenset(PeerId(name) for name in voters), generation=course.generation)


def one_given_away(division: Division) -> Division:
    """What comes when somebody who brought the second job's results is lost."""
    mended = division.mended([1], {C: (1,)}, {C: 1.0, D: 1.0})
    assert mended is not None
    return mended


def test_a_successor_first_asks_everybody_to_follow_it() -> None:
    course = resumed()
    assert actions_of(course) == [Lead(SECOND)]
    assert course.awaited() == {B, C, D}
    assert actions_of(course) == []


def test_when_all_follow_the_work_of_the_lost_leader_is_divided_and_the_round_goes_on() -> None:
    those = crowd(resumed())
    those.answer(B)
    those.answer(C)
    assert those.done == [Lead(SECOND)]
    those.answer(D)
    assert those.done[1:] == [Halt(1, (A,), (), (0,))]
    assert those.course.gone[A][0] == "lost_with_leader"
    those.answer_all()
    assert isinstance(those.done[-1], Commit)
    assert those.prepared[0].ballot == SECOND
    assert those.done[-1].record.members == (B, C, D)


def test_an_earlier_vote_found_in_a_promise_is_proposed_before_any_work() -> None:
    course = resumed()
    actions_of(course)
    course.take_promise(B, promised(SECOND))
    course.take_promise(C, VOTED)
    assert actions_of(course) == []
    course.take_promise(D, promised(SECOND))
    assert actions_of(course) == [Prepare(SECOND, EARLIER)]
    assert course.stage is Stage.VOTING


def test_a_decision_found_in_a_promise_is_announced_at_once() -> None:
    course = resumed()
    actions_of(course)
    course.take_promise(C, promised(SECOND).learn(EARLIER))
    assert actions_of(course) == [Commit(EARLIER)]


def test_one_without_a_seat_follows_and_does_not_count() -> None:
    those = crowd(resumed(), voters="bc")
    those.answer_all()
    assert those.done[-1] == Abort("no_quorum", "no quorum of those who decide has promised to follow this leader")
    assert those.prepared == []


def test_one_that_has_promised_a_higher_ballot_does_not_follow() -> None:
    those = crowd(resumed())
    those.hear()
    those.seats[D] = promised(Ballot(7, C))
    those.answer_all()
    assert isinstance(those.done[-1], Abort)


def test_too_few_that_go_on_abort_at_once() -> None:
    (abort,) = actions_of(resumed(missing=(C, D)))
    assert isinstance(abort, Abort)
    assert abort.reason == "lost_with_leader"


def test_who_is_lost_while_the_others_promise_is_not_waited_for() -> None:
    those = crowd(resumed(group=make_group(FOUR, electors=(B, C, D))))
    those.hear()
    those.course.lose(D, "dead", "d is dead")
    those.answer(B)
    those.answer(C)
    assert those.done[1:] == [Halt(1, (A, D), (), (0, 3))]
    those.answer_all()
    assert isinstance(those.done[-1], Commit)


def test_a_report_that_comes_before_the_last_promise_counts() -> None:
    course = resumed(group=make_group(FOUR, idle=(A,)))
    actions_of(course)
    for peer in (B, C, D):
        course.take_promise(peer, promised(SECOND))
        course.take_report(peer, 0, report_of(course.division), promised(SECOND))
    assert [type(action) for action in actions_of(course)] == [Halt, Prepare]


def test_members_that_were_told_different_things_are_all_stopped_and_told_the_newest() -> None:
    group = make_group(FOUR, idle=(A,))
    old = Division.of(group.spans, PART)
    new = one_given_away(old)
    for known in ({B: (0, old), C: (1, new), D: (1, new)}, {B: (1, old), C: (1, new), D: (1, old)}):
        those = crowd(resumed(group, known))
        assert those.course.division == new
        those.hear()
        for peer in (B, C, D):
            those.answer(peer)
        assert those.done[1:] == [Halt(2, (A,), (), tuple(range(len(new.jobs))))]
        for peer in (B, C, D):
            those.answer(peer, held=9)
        assert those.mended == 1
        assert those.course.generation == 2
        those.answer_all()
        assert isinstance(those.done[-1], Commit)


def test_members_that_may_have_been_stopped_by_the_lost_leader_are_told_to_go_on() -> None:
    group = make_group(FOUR, idle=(A,))
    old = Division.of(group.spans, PART)
    those = crowd(resumed(group, dict.fromkeys((B, C, D), (1, old))))
    those.hear()
    for peer in (B, C, D):
        those.answer(peer)
    assert those.done[1:] == [Halt(2, (A,), (), (0, 1, 2))]
    for peer in (B, C, D):
        those.answer(peer, held=9)
    assert isinstance(those.done[-1], Mend)


def test_what_members_report_of_different_divisions_is_not_heard() -> None:
    group = make_group(FOUR, idle=(A,))
    old = Division.of(group.spans, PART)
    course = resumed(group, {B: (1, old), C: (1, one_given_away(old)), D: (1, old)})
    course.take_report(B, 1, report_of(old), promised(SECOND))
    assert course.live == {B, C, D}
