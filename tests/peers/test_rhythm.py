"""How long steps take, as events tell it."""

import math
from dataclasses import replace

from collab.metrics.records import Event
from peers.rhythm import Rhythm, RhythmKeeper, between_steps_s
from tests.metrics.test_names import REPORT, ROUND
from tests.peers.test_screen import step


def seen(*events: Event) -> Rhythm:
    keeper = RhythmKeeper()
    for event in events:
        keeper.observe(event)
    return keeper.rhythm


def test_a_step_takes_what_most_took_and_a_night_between_two_changes_nothing() -> None:
    assert between_steps_s([(4, 0.0), (5, 10.0), (6, 21.0), (7, 40_021.0), (8, 40_030.0)]) == 10.5
    assert between_steps_s([(4, 0.0), (5, 10.0), (9, 11.0), (10, 23.0)]) == 11.0, "between 5 and 9 some are missing"
    assert between_steps_s([(4, 0.0), (6, 10.0)]) == between_steps_s([]) == math.inf
    assert between_steps_s([(4, 10.0), (5, 9.0)]) == 0.0, "clocks are set"


def test_reports_tell_when_steps_came_but_for_the_one_before_the_first() -> None:
    before, *later = (replace(REPORT, epoch=12 + number, at_s=90.0 + 97.0 * number) for number in range(4))
    soon = replace(before, epoch=13, at_s=97.0)
    assert seen(before) == Rhythm(0.0, 90.0)
    assert seen(before, soon, replace(later[1], at_s=194.0)) == Rhythm(97.0, 194.0), "and not the 7 s before"
    assert seen(replace(REPORT, epoch=0, at_s=5.0)) == Rhythm()
    assert seen(before, *later, replace(REPORT, epoch=3, at_s=900.0)) == Rhythm(97.0, 900.0), "after a rollback"
    again = (replace(REPORT, epoch=epoch, at_s=900.0 + 50.0 * epoch) for epoch in (3, 4, 5))
    assert seen(before, *later, *again) == Rhythm(50.0, 1150.0)


def test_until_two_steps_were_seen_the_round_tells() -> None:
    assert seen(replace(ROUND, seconds=90.0)).step_s == 90.0
    assert seen(replace(ROUND, seconds=90.0, committed=False)).step_s == 0.0
    assert seen(replace(ROUND, seconds=math.nan)).step_s == 0.0


def test_of_steps_that_others_took_without_us_nothing_is_known() -> None:
    own = [replace(step(epoch=epoch), at_s=100.0 * epoch, seconds=100.0) for epoch in (1, 2)]
    caught_up = [replace(step(epoch=epoch), at_s=900.0, seconds=0.0) for epoch in (3, 4, 5)]
    assert seen(*own, *caught_up) == Rhythm(100.0, 900.0)
