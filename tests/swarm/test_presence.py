"""How long peers have been missed counts only while somebody looked for them."""

import pytest

from collab.swarm.presence import LONGEST_STEP_S, MOST_BACKBONES, MOST_REMEMBERED, Presence
from collab.swarm.progress import SwarmView
from collab.types import Lineage, PeerId

A, B, C = (PeerId(name) for name in "abc")


class Story:
    """A presence on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1e6
        self.presence = Presence(lambda: self.now_s)

    def looks(
        self, *present: PeerId, every_s: float = 1.0, times: int = 1, left: dict[PeerId, int] | None = None
    ) -> None:
        for _ in range(times):
            self.now_s += every_s
            self.presence.looked(present, left or {})


def test_a_peer_is_missed_for_as_long_as_somebody_has_looked_for_it_in_vain() -> None:
    story = Story()
    story.looks(A, B)
    story.looks(A, times=30)
    assert story.presence.absent_s(B) == 30.0
    assert story.presence.absent_s(A) == 0.0
    story.looks(A, B)
    assert story.presence.absent_s(B) == 0.0


def test_a_peer_that_was_seen_long_ago_and_is_looked_for_only_now_is_missed_since_now() -> None:
    story = Story()
    story.looks(A, B)
    story.looks(A, every_s=3600.0)
    assert story.presence.absent_s(B) == LONGEST_STEP_S, "we may have slept, and it may have been there all the time"


def test_a_peer_that_we_have_never_seen_is_missed_from_the_first_question_on() -> None:
    story = Story()
    story.looks(A, times=100)
    assert story.presence.absent_s(B) == 0.0
    story.looks(A, times=5)
    assert story.presence.absent_s(B) == 5.0


def test_whom_we_have_met_is_whom_we_have_seen_with_a_seat_and_not_whom_we_were_asked_for() -> None:
    """One that was started again does not know what it voted: whether it is missed is asked about its earlier life."""
    story = Story()
    has_met = story.presence.expected(SwarmView((), 0.0), 0, Lineage("")).has_met
    story.looks(A)
    assert story.presence.absent_s(B) == 0.0
    story.presence.looked([A], {}, seatless=[C])
    story.looks(A, times=5)
    assert [has_met(peer) for peer in (A, B, C)] == [True, False, False]
    assert story.presence.absent_s(C) == 5.0
    story.looks(A, B, C)
    story.looks(A, times=5)
    assert [has_met(peer) for peer in (A, B, C)] == [True, True, True]


def test_of_very_many_that_were_asked_for_and_never_seen_the_first_are_forgotten() -> None:
    story = Story()
    for number in range(MOST_REMEMBERED + 1):
        story.presence.absent_s(PeerId(str(number)))
    story.looks(A, times=2)
    assert story.presence.absent_s(PeerId("1")) > 0.0
    assert story.presence.absent_s(PeerId("0")) == 0.0


def test_a_goodbye_is_remembered_until_its_author_is_back() -> None:
    story = Story()
    story.looks(A, left={B: 7})
    story.looks(A, times=100)
    assert story.presence.left == {B: 7}
    story.looks(A, B)
    assert story.presence.left == {}
    story.looks(A)
    assert story.presence.left == {}


def test_a_goodbye_holds_for_who_is_back_without_a_seat_and_in_its_era_only() -> None:
    story = Story()
    story.looks(A, left={B: 7})
    story.presence.looked([A], {}, seatless=[B])
    assert story.presence.left == {B: 7}
    story.presence.looked([A], {}, seatless=[B], era="rolled back")
    assert story.presence.left == {}


def test_ever_new_peers_take_a_bounded_memory_and_those_who_are_here_stay_in_it() -> None:
    story = Story()
    for number in range(3):
        crowd = [PeerId(f"{number}-{index}") for index in range(MOST_REMEMBERED - 1)]
        story.looks(A, *crowd, left={PeerId(f"gone-{number}-{index}"): 1 for index in range(MOST_REMEMBERED)})
    story.looks(A)
    assert len(story.presence.left) == MOST_REMEMBERED
    assert len(story.presence._seen_s) == MOST_REMEMBERED
    assert story.presence.absent_s(A) == 0.0
    assert story.presence.absent_s(PeerId("2-0")) == pytest.approx(1.0)
    assert story.presence.absent_s(PeerId("0-0")) == 0.0, "forgotten, and missed anew"


def test_backbones_are_remembered_until_they_say_goodbye() -> None:
    story = Story()
    story.presence.looked([A, B], {}, [A])
    story.looks(B, times=100)
    assert story.presence.backbones == {A}
    assert story.presence.absent_s(A) == 100.0
    story.looks(B, left={A: 3})
    assert not story.presence.backbones


def test_of_very_many_backbones_those_that_are_gone_for_longest_are_forgotten() -> None:
    story = Story()
    story.presence.looked([A], {}, [A])
    story.looks(times=10)
    many = [PeerId(f"b{number}") for number in range(MOST_BACKBONES)]
    story.presence.looked(many, {}, many)
    assert story.presence.backbones == set(many)
