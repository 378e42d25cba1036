"""What the matrix and the search of faults have found, each reduced to its cause."""

from tests.simulation.fault_checks import check_means, check_one_history, check_survivors
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


def test_members_that_were_stopped_go_on_when_their_leader_dies_before_it_divides_anew() -> None:
    """The leader reduced nothing, so its successor found nothing broken, and waited for members that stood still."""
    halted = Fault(1, 1, "slow", "round"), Fault(1, 2, "kill", "held", nth=3, is_to=True)
    rounds = FaultyRounds(halted, leaders=(2, 4, 0))
    rounds.run()
    assert rounds.fired == set(halted)
    check_one_history(rounds)
    check_means(rounds)
    assert max(rounds.seconds[index, 1] for index in (0, 3)) < 12.0
