"""Deadlines learned from arrivals."""

import pytest

from collab.averaging.deadlines import ENOUGH, FLOOR_S, REMEMBERED, SPREADS, Arrivals, outlier

FIRST_S = 7.0


def learned(*seconds: float) -> Arrivals:
    arrivals = Arrivals(FIRST_S)
    for one in seconds:
        arrivals.add(one)
    return arrivals


def test_before_enough_arrivals_the_first_deadline_holds() -> None:
    for count in range(ENOUGH):
        assert learned(*[1.0] * count).deadline_s() == FIRST_S
    assert learned(*[1.0] * ENOUGH).deadline_s() == 1.0


def test_the_deadline_is_the_median_and_five_deviations() -> None:
    seconds = [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6]
    assert SPREADS == 5.0
    assert outlier(seconds) == pytest.approx(1.8 + 5 * 0.4)
    assert learned(*seconds).deadline_s() == pytest.approx(3.8)
    assert learned(*reversed(seconds)).deadline_s() == pytest.approx(3.8)


def test_a_deadline_is_never_shorter_than_the_floor() -> None:
    assert learned(*[0.0] * REMEMBERED).deadline_s() == FLOOR_S
    assert learned(*[0.01, 0.02, 0.03] * 5).deadline_s() == FLOOR_S


def test_an_arrival_before_its_time_counts_as_one_in_time() -> None:
    assert learned(*[-5.0] * 7, 1.0).deadline_s() == FLOOR_S
    assert learned(*[-5.0] * 4, *[1.0] * 5).deadline_s() == learned(*[0.0] * 4, *[1.0] * 5).deadline_s() == 1.0


@pytest.mark.parametrize("late_s", [3.0, 60.0, 1e9])
def test_however_late_a_few_are_they_move_the_deadline_no_more_than_any_who_are_late(late_s: float) -> None:
    punctual = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    assert learned(*punctual, *[late_s] * 3).deadline_s() == pytest.approx(learned(*punctual, *[3.0] * 3).deadline_s())
    assert learned(*punctual, *[late_s] * 3).deadline_s() < 3.0


def test_a_deadline_follows_a_swarm_that_gets_slower_or_faster() -> None:
    slow = learned(*[0.5] * REMEMBERED, *[4.0] * REMEMBERED)
    assert slow.deadline_s() == 4.0
    half = learned(*[4.0] * REMEMBERED, *[0.5] * (REMEMBERED // 2 + 1))
    assert half.deadline_s() == 0.5
