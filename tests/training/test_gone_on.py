"""Whom a straggler asks first what followed its history."""

from collab.averaging.agreement import CommitRecord
from collab.training.gone_on import who_has_gone_on
from collab.types import Lineage, PeerId
from tests.averaging.records import make_record

ME, NEAR, FAR, BACKBONE, GONE = map(PeerId, ("me", "near", "far", "backbone", "gone"))
OURS = (7, Lineage("l7"))


def record(epoch: int, lineage: Lineage, *contributors: PeerId) -> CommitRecord:
    return make_record(epoch=epoch, lineage=lineage, contributors=tuple((peer, 1.0) for peer in contributors))


def asked(known: list[CommitRecord], ahead: list[PeerId], *, ours: tuple[int, Lineage] = OURS) -> list[PeerId]:
    return who_has_gone_on(ours, known, ahead, me=ME, knows=lambda peer: peer != GONE)


def test_who_contributed_to_what_followed_is_asked_before_who_says_to_be_ahead() -> None:
    followed = record(*OURS, FAR, NEAR)
    assert asked([followed], [BACKBONE, NEAR]) == [NEAR, FAR, BACKBONE]


def test_who_made_our_history_is_asked_while_nothing_is_heard_of_what_followed() -> None:
    made = record(6, Lineage("l6"), FAR, ME)
    assert asked([made], [NEAR], ours=(7, made.next_lineage())) == [FAR, NEAR]


def test_nobody_is_asked_of_whom_the_swarm_has_not_heard_nor_are_we() -> None:
    assert asked([record(*OURS, GONE, ME, NEAR)], [FAR]) == [NEAR, FAR]


def test_without_a_record_words_decide_in_their_order() -> None:
    other = record(7, Lineage("another history"), FAR)
    assert asked([other], [NEAR, FAR, BACKBONE]) == [NEAR, FAR, BACKBONE]


def test_nobody_is_asked_twice() -> None:
    followed = record(*OURS, NEAR, FAR)
    assert sorted(asked([followed], [FAR, NEAR])) == [FAR, NEAR]
