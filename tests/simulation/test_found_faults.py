"""What the matrix and the search of faults have found, each reduced to its cause."""

from collab.averaging.ballots import Acceptor, Ballot
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import Group, Member
from collab.averaging.plan import Span
from collab.averaging.steps import Halt, Lead
from collab.types import Lineage, PeerId
from tests.simulation.fault_checks import check_survivors
from tests.simulation.faulty_rounds import Fault, FaultyRounds


def test_bytes_under_way_to_a_frozen_member_do_not_hold_up_the_next_round() -> None:
    """They filled its reducers' window of bytes under way; next round everybody seemed silent to everybody."""
    rounds = FaultyRounds([Fault(1, 3, "freeze", "part", nth=3)])
    rounds.run()
    check_survivors(rounds, 3, bound_s=8.0)
    assert len(rounds.commits(2)) == 3


def test_bytes_under_way_to_a_frozen_leader_do_not_hold_up_the_round_of_its_successor() -> None:
    rounds = FaultyRounds([Fault(1, 0, "freeze", "part", nth=3)])
    rounds.run()
    check_survivors(rounds, 0, bound_s=10.0)


def test_a_helper_that_has_nothing_to_redo_is_not_lost_when_work_is_divided_anew() -> None:
    """It reported between the leader's stop and the new division, and so of fewer jobs than there are."""
    rounds = FaultyRounds([Fault(1, 1, "freeze", "part", nth=3)])
    rounds.run()
    record = next(iter(rounds.commits(1).values())).record
    assert rounds.peer_id(4) in record.members


def test_a_successor_stops_and_restarts_members_that_their_leader_had_stopped() -> None:
    """It cannot know what they were stopped for; when that was no death, it found nothing broken and waited."""
    group = Group(
        round_id="r",
        epoch=0,
        lineage=Lineage("sim"),
        num_elements=8,
        leader=PeerId("a"),
        members=tuple(Member(PeerId(name), 1.0, reduces=name != "a") for name in "abc"),
        spans=(Span(PeerId("b"), 0, 4), Span(PeerId("c"), 4, 8)),
    )
    division = Division.of(group.spans, group.part_elements)
    stopped = {PeerId(name): (1, division) for name in "bc"}  # told to stop the work of a slow reducer
    course = Course.resumed(group, Ballot(2, PeerId("b")), stopped)
    assert isinstance(course.next_action(), Lead)
    for name in "bc":
        course.take_promise(PeerId(name), Acceptor(promised=Ballot(2, PeerId("b"))))
    halt = course.next_action()
    assert isinstance(halt, Halt)
    assert halt.broken == (0, 1)
