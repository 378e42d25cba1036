"""Limits follow what answers took: they grow on far and busy links, shrink on near ones, and none is without end."""

from contextlib import suppress

import pytest

from collab.answers import ENOUGH, FACTOR, SLOT_S, SLOTS
from collab.averaging.timeouts import (
    ASKED_AGAIN_S,
    FIRST,
    FORGOTTEN_S,
    LONGEST_S,
    MOST_MISSED,
    MOVES_LONGEST_S,
    SHORTEST_S,
    MeasuredTimeouts,
)
from collab.errors import StreamClosed, TimedOut
from collab.types import PeerId

A, B = PeerId("a"), PeerId("b")


class Story:
    """Timeouts on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timeouts = MeasuredTimeouts(lambda: self.now_s, FIRST)

    def ask(self, peer: PeerId, takes_s: float) -> float:
        """Ask a peer that answers after ``takes_s``, or not in time; the limit."""
        with suppress(TimedOut), self.timeouts.asking(peer) as limit_s:
            self.now_s += min(takes_s, limit_s)
            if takes_s > limit_s:
                raise TimedOut("no answer")
        return limit_s


def test_before_enough_is_known_the_first_values_hold() -> None:
    story = Story()
    for _ in range(ENOUGH - 1):
        assert story.ask(A, 0.1) == FIRST.answer_s
    assert story.timeouts.slowest_s is None
    assert story.timeouts.stalled_s(0.0) == FIRST.stalled_s


def test_far_peers_get_longer_and_near_ones_shorter_limits_than_the_first() -> None:
    near, far = Story(), Story()
    for _ in range(ENOUGH):
        near.ask(A, 0.02)
        far.ask(A, 2.5)
    assert near.timeouts.answer_s() == SHORTEST_S < FIRST.answer_s
    assert far.timeouts.answer_s() == FACTOR * 2.5 > FIRST.answer_s


def test_every_limit_follows_the_answers_and_keeps_its_order() -> None:
    near, far = Story(), Story()
    for _ in range(ENOUGH):
        near.ask(A, 0.02)
        far.ask(A, 2.5)
    for limit in ("sender_s", "part_s", "verdict_s", "blame_s"):
        assert getattr(near.timeouts, limit) < getattr(far.timeouts, limit), limit
    for story in (Story(), near, far):
        assert FIRST.alive_s < story.timeouts.sender_s < story.timeouts.part_s
        assert FIRST.pulse_s < story.timeouts.blame_s < story.timeouts.sender_s


def test_answers_between_rounds_are_not_given_the_time_of_those_in_queues_behind_parts() -> None:
    story = Story()
    for _ in range(ENOUGH):
        story.ask(A, 2.0)
        with story.timeouts.asking(A, is_quiet=True) as limit_s:
            story.now_s += 0.02
    assert limit_s == FIRST.answer_s, "not known before the last one"
    assert story.timeouts.answer_s() == FACTOR * 2.0
    assert story.timeouts.answer_s(is_quiet=True) == SHORTEST_S
    with suppress(TimedOut), story.timeouts.asking(A, is_quiet=True):
        raise TimedOut("no answer")
    assert story.timeouts.has_missed(A)
    assert not story.timeouts.has_missed(B)
    assert story.timeouts.answer_s(A) == 2 * FACTOR * 2.0, "whoever is silent is so in both"


def test_one_slow_answer_is_forgotten_after_a_while_in_which_others_came() -> None:
    story = Story()
    for _ in range(ENOUGH):
        story.ask(A, 0.02)
    story.ask(B, 1.4)
    assert story.timeouts.answer_s() == pytest.approx(FACTOR * 1.4)
    for _ in range(SLOTS):
        story.now_s += SLOT_S
        story.ask(A, 0.02)
    assert story.timeouts.answer_s() == SHORTEST_S


def test_answers_of_a_quiet_time_are_not_forgotten_because_many_came_at_once() -> None:
    story = Story()
    story.ask(A, 1.9)
    for _ in range(10_000):
        story.timeouts.answered(0.001)
    assert story.timeouts.slowest_s == pytest.approx(1.9)


def test_whoever_does_not_answer_in_time_has_twice_as_long_until_it_answers_and_nobody_else_has() -> None:
    story = Story()
    for _ in range(ENOUGH):
        story.ask(A, 0.02)
    assert [story.ask(B, 5.0) for _ in range(3)] == [SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S]  # the third is in time
    assert story.timeouts.answer_s(A) == story.timeouts.answer_s(B) == FACTOR * SHORTEST_S, "it raises all, by a step"


def test_a_peer_that_never_answers_costs_a_bounded_time_each() -> None:
    story = Story()
    for _ in range(100):
        assert story.ask(A, 1e9) <= LONGEST_S
    assert story.timeouts.answer_s() == FIRST.answer_s, "no answer says nothing of the others' links"


def test_a_peer_that_is_gone_is_not_given_more_time_for_it() -> None:
    story = Story()
    with suppress(StreamClosed), story.timeouts.asking(A):
        raise StreamClosed("gone")
    assert story.timeouts.answer_s(A) == FIRST.answer_s


def test_ever_new_peers_that_do_not_answer_take_a_bounded_memory() -> None:
    story = Story()
    for number in range(10 * MOST_MISSED):
        story.timeouts.miss(PeerId(str(number)))
    doubled = [n for n in range(10 * MOST_MISSED) if story.timeouts.answer_s(PeerId(str(n))) > FIRST.answer_s]
    assert doubled == list(range(9 * MOST_MISSED, 10 * MOST_MISSED))


def test_who_did_not_answer_is_asked_after_the_others_for_a_while_and_longer_each_time() -> None:
    """It may be our own link that was away."""
    story = Story()
    for wait_s in (ASKED_AGAIN_S, 2 * ASKED_AGAIN_S, 4 * ASKED_AGAIN_S):
        story.timeouts.miss(A)
        story.now_s += wait_s - 0.1
        assert story.timeouts.responsive([A, B]) == [B, A]
        story.now_s += 0.2
        assert story.timeouts.responsive([A, B]) == [A, B]
    for _ in range(2000):
        story.timeouts.miss(A)
    assert story.timeouts.responsive([A, B]) == [B, A]
    with story.timeouts.asking(A):
        pass
    assert story.timeouts.responsive([A, B]) == [A, B]


def test_who_did_not_answer_long_ago_is_asked_as_anybody_else() -> None:
    story = Story()
    story.timeouts.miss(A)
    story.now_s += FORGOTTEN_S - 1.0
    story.timeouts.miss(B)
    assert story.timeouts.answer_s(A) == story.timeouts.answer_s(B) == 2 * FIRST.answer_s
    story.now_s += 2.0
    assert story.timeouts.responsive([B, A]) == [A, B]
    assert story.timeouts.answer_s(A) == FIRST.answer_s < story.timeouts.answer_s(B)


def test_a_side_may_stand_still_for_as_long_as_the_plan_says_and_as_others_did() -> None:
    story = Story()
    assert story.timeouts.stalled_s(100.0) == 200.0
    assert story.timeouts.stalled_s(1e9) == MOVES_LONGEST_S, "a leader's word is not believed without end"
    for _ in range(16):
        story.timeouts.moves.ended(1.0)
    assert story.timeouts.stalled_s(0.0) < FIRST.stalled_s
    for _ in range(16):
        story.timeouts.moves.ended(15.0)
    assert story.timeouts.stalled_s(0.0) == 45.0


def test_what_a_frozen_peer_acknowledges_when_it_is_back_raises_no_limit() -> None:
    """A call to one that was frozen again took ten seconds of everybody's time."""
    story = Story()
    for _ in range(ENOUGH):
        story.ask(A, 0.02)
    for _ in range(100):
        story.timeouts.answered(20.0)
    assert story.timeouts.answer_s() == SHORTEST_S
