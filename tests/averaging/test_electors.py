"""Who decides what follows a history, by what a peer has seen of those who should."""

import time
from dataclasses import replace

from collab.averaging.assembly import Expected
from collab.averaging.electors import MOST_REMEMBERED, Electors
from collab.types import PeerId
from tests.averaging.records import make_record

A, B, C = (PeerId(name) for name in "abc")
KEEPER = PeerId("keeper")
MAKER = make_record(members=(C, A, B))
REFORM_S, ORPHANED_S = 60.0, 600.0


def seen(
    *present: PeerId,
    left: tuple[PeerId, ...] = (),
    from_epoch: int = 1,
    missed_s: dict[PeerId, float] | None = None,
    backbones: tuple[PeerId, ...] = (),
) -> Expected:
    return Expected(
        trainers=frozenset(present),
        helpers=frozenset(),
        left=dict.fromkeys(left, from_epoch),
        absent_s=lambda peer: (missed_s or {}).get(peer, 0.0),
        backbones=frozenset(backbones),
    )


def test_before_the_first_step_nobody_in_particular_decides() -> None:
    assert Electors(REFORM_S, ORPHANED_S).of(None, seen(A, B)) == ()


def test_the_members_of_the_round_that_made_the_history_decide_in_their_order() -> None:
    assert Electors(REFORM_S, ORPHANED_S).of(MAKER, seen(A, B, C)) == (C, A, B)
    assert Electors(REFORM_S, ORPHANED_S).of(MAKER, seen()) == (C, A, B)


def test_one_that_is_missed_counts_until_the_reform() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    assert electors.of(MAKER, seen(A, B, missed_s={C: REFORM_S})) == (C, A, B)
    assert electors.of(MAKER, seen(A, B, missed_s={C: REFORM_S + 0.1})) == (A, B)
    assert electors.of(MAKER, seen(A, B, C, missed_s={C: REFORM_S + 0.1})) == (C, A, B)


def test_one_that_said_goodbye_is_excused_at_once_and_when_it_is_back_it_decides_again() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    assert electors.of(MAKER, seen(A, B, left=(C,))) == (A, B)
    assert electors.of(MAKER, seen(A, B, C, left=(C,))) == (C, A, B)


def test_one_that_has_promised_something_about_this_step_is_not_excused_by_its_goodbye() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    busy = seen(A, B, left=(C,), from_epoch=2)
    assert electors.of(MAKER, busy) == (C, A, B), "what follows the first step is step 1"
    assert electors.is_gone(C, busy)
    assert electors.of(make_record(epoch=1, members=(C, A, B)), busy) == (A, B)


def test_a_goodbye_from_before_a_round_that_its_author_was_in_excuses_it_no_more() -> None:
    """It came back and went again without one: cut off, perhaps, with others who decide."""
    old = seen(A, B, left=(C,), from_epoch=4)
    assert Electors(REFORM_S, ORPHANED_S).of(make_record(epoch=3, members=(C, A, B)), old) == (A, B)
    assert Electors(REFORM_S, ORPHANED_S).of(make_record(epoch=4, members=(C, A, B)), old) == (C, A, B)
    assert Electors(REFORM_S, ORPHANED_S).of(make_record(epoch=9, members=(C, A, B)), old) == (C, A, B)


def test_peers_that_only_help_or_are_elsewhere_in_the_run_are_there() -> None:
    everywhere = Expected(
        trainers=frozenset(),
        helpers=frozenset({A}),
        ahead=frozenset({B}),
        behind=frozenset({C}),
        absent_s=lambda _: 10 * REFORM_S,
    )
    assert Electors(REFORM_S, ORPHANED_S).of(MAKER, everywhere) == (C, A, B)


def test_when_all_who_decide_are_gone_everybody_may_who_is_there() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    assert electors.of(MAKER, seen(left=(A, B, C))) == ()
    missed = dict.fromkeys((A, B, C), REFORM_S + 0.1)
    assert electors.of(MAKER, seen(missed_s=missed)) == ()
    assert electors.of(MAKER, seen(missed_s=missed | {B: REFORM_S})) == (B,)


def test_a_member_believes_that_all_who_decide_are_gone_when_it_has_missed_them_for_half_as_long() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    assert electors.are_gone((A, B), seen(missed_s=dict.fromkeys((A, B), REFORM_S / 2 + 0.1)))
    assert not electors.are_gone((A, B), seen(missed_s={A: REFORM_S / 2 + 0.1, B: REFORM_S / 2}))
    assert not electors.are_gone((A, B), seen(B, missed_s=dict.fromkeys((A, B), REFORM_S)))


def test_a_leader_that_leaves_somebody_out_is_followed_by_those_who_have_missed_it_for_long_too() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    assert electors.leaves_out_too_soon((A, B), MAKER, seen(A, B, missed_s={C: REFORM_S / 2})) == (C,)
    assert electors.leaves_out_too_soon((A, B), MAKER, seen(A, B, missed_s={C: REFORM_S / 2 + 0.1})) == ()
    assert electors.leaves_out_too_soon((A, B), MAKER, seen(A, B, left=(C,))) == ()
    assert electors.leaves_out_too_soon((C, A, B), MAKER, seen(A, B)) == ()


def test_who_misses_the_backbone_too_waits_longer_for_those_who_decide() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    missed = {C: REFORM_S + 0.1, KEEPER: REFORM_S + 0.1}
    assert electors.of(MAKER, seen(A, B, KEEPER, missed_s=missed, backbones=(KEEPER,))) == (A, B)
    assert electors.of(MAKER, seen(A, B, missed_s=missed, backbones=(KEEPER,))) == (C, A, B)
    assert electors.leaves_out_too_soon((A, B), MAKER, seen(A, B, missed_s=missed, backbones=(KEEPER,))) == (C,)
    half = {C: ORPHANED_S / 2 + 0.1, KEEPER: ORPHANED_S / 2 + 0.1}
    assert electors.leaves_out_too_soon((A, B), MAKER, seen(A, B, missed_s=half, backbones=(KEEPER,))) == ()
    for_good = {C: ORPHANED_S + 0.1, KEEPER: ORPHANED_S - 0.1}
    assert electors.of(MAKER, seen(A, B, missed_s=for_good, backbones=(KEEPER,))) == (A, B)


def test_while_somebody_is_here_who_has_gone_on_those_who_decide_are_missed_for_longer() -> None:
    """They have decided, and left; what it was is to be had."""
    electors = Electors(REFORM_S, ORPHANED_S)

    def gone_on(missed_s: float) -> Expected:
        here = seen(A, B, missed_s={C: missed_s})
        return replace(here, helpers=frozenset({KEEPER}), ahead=frozenset({KEEPER}))

    assert electors.of(MAKER, gone_on(REFORM_S + 0.1)) == (C, A, B)
    assert electors.leaves_out_too_soon((A, B), MAKER, gone_on(REFORM_S + 0.1)) == (C,)
    assert electors.of(MAKER, gone_on(ORPHANED_S + 0.1)) == (A, B), "perhaps it only says so"
    assert electors.leaves_out_too_soon((A, B), MAKER, gone_on(ORPHANED_S / 2 + 0.1)) == ()


def test_a_newcomer_takes_the_owner_s_backbone_s_word_about_those_whom_it_has_never_met() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    vouched = replace(seen(B, KEEPER, backbones=(KEEPER,)), is_vouched=lambda peer: peer == KEEPER)
    newcomer = replace(vouched, has_met=lambda _: False)
    assert electors.leaves_out_too_soon((B,), MAKER, newcomer, KEEPER) == ()
    assert electors.are_gone((A, C), newcomer, KEEPER)
    assert electors.leaves_out_too_soon((B,), MAKER, newcomer, B) == (C, A), "a trainer's word is none"
    assert electors.leaves_out_too_soon((B,), MAKER, newcomer) == (C, A)
    assert electors.leaves_out_too_soon((), MAKER, newcomer, KEEPER) == (B,), "who is here is not gone"
    assert not electors.are_gone((A, B, C), newcomer, KEEPER)
    knows_c = replace(vouched, has_met=lambda peer: peer == C)
    assert electors.leaves_out_too_soon((B,), MAKER, knows_c, KEEPER) == (C,), "we have looked for it ourselves"
    assert not electors.are_gone((A, C), knows_c, KEEPER)


def test_who_was_in_a_round_was_here_then_whatever_was_seen_of_it() -> None:
    """One that was started again says that it has no seat, until its first word after a round says otherwise."""
    now_s = 1000.0
    electors = Electors(REFORM_S, ORPHANED_S, lambda: now_s)
    missed = dict.fromkeys((A, C), ORPHANED_S)
    looked = replace(seen(B, missed_s=missed), has_met=lambda _: False, is_vouched=lambda peer: peer == KEEPER)
    assert electors.of(MAKER, looked) == (B,)
    assert electors.are_gone((A, C), looked, KEEPER)
    electors.note_met(MAKER.members, now_s)
    assert electors.of(MAKER, looked) == (C, A, B)
    assert not electors.are_gone((A, C), looked, KEEPER)
    now_s += REFORM_S / 2 + 0.1
    assert electors.are_gone((A, C), looked)
    assert electors.of(MAKER, looked) == (C, A, B)
    now_s += REFORM_S / 2
    assert electors.of(MAKER, looked) == (B,)


def test_of_very_many_who_were_in_rounds_the_first_are_forgotten() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    here = seen(missed_s=dict.fromkeys((A, B), ORPHANED_S))
    electors.note_met((A,), time.monotonic())
    for number in range(4):
        others = tuple(PeerId(f"{number}-{index}") for index in range(MOST_REMEMBERED // 4))
        electors.note_met(others, time.monotonic())
    electors.note_met((B,), time.monotonic())
    assert electors.are_gone((A,), here)
    assert not electors.are_gone((B,), here)


def test_who_was_in_no_group_for_as_long_as_anybody_is_waited_for_is_forgotten() -> None:
    now_s = 1000.0
    electors = Electors(REFORM_S, ORPHANED_S, lambda: now_s)
    here = replace(seen(), has_met=lambda _: False, is_vouched=lambda peer: peer == KEEPER)
    electors.note_met((A,), now_s)
    now_s += ORPHANED_S + 1.0
    assert not electors.are_gone((A,), here, KEEPER), "it was met"
    electors.note_met((B,), now_s)
    assert electors.are_gone((A,), here, KEEPER)
    assert not electors.are_gone((B,), here, KEEPER)


def test_who_has_a_reason_for_patience_takes_nobody_s_word() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    first, second = PeerId("x"), PeerId("y")
    newcomer = Expected(
        trainers=frozenset({B}),
        helpers=frozenset({second}),
        backbones=frozenset({first, second}),
        has_met=lambda _: False,
        is_vouched=lambda peer: peer in (first, second),
    )
    assert not electors.are_gone((A, C), newcomer, second), "of two backbones one is missed: which side are we on?"
    assert electors.are_gone((A, C), replace(newcomer, helpers=frozenset({first, second})), second)
    gone_on = replace(newcomer, helpers=frozenset({first, second}), ahead=frozenset({first}))
    assert not electors.are_gone((A, C), gone_on, second), "somebody has gone on, and what followed is to be had"


def test_a_backbone_that_is_gone_for_good_holds_nobody_up() -> None:
    missed = {C: REFORM_S + 0.1, KEEPER: ORPHANED_S + 0.1}
    assert Electors(REFORM_S, ORPHANED_S).of(MAKER, seen(A, B, missed_s=missed, backbones=(KEEPER,))) == (A, B)


def test_of_several_backbones_only_one_side_can_have_most() -> None:
    electors = Electors(REFORM_S, ORPHANED_S)
    first, second = PeerId("x"), PeerId("y")
    missed = dict.fromkeys((C, first, second), REFORM_S + 0.1)
    assert electors.of(MAKER, seen(A, B, first, missed_s=missed, backbones=(first, second))) == (A, B)
    assert electors.of(MAKER, seen(A, B, second, missed_s=missed, backbones=(first, second))) == (C, A, B)
