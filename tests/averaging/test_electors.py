"""Who decides what follows a history, on a clock that the test sets."""

from collab.averaging.assembly import Expected
from collab.averaging.electors import Electors
from collab.types import PeerId
from tests.averaging.records import make_record

A, B, C = (PeerId(name) for name in "abc")
MAKER = make_record(members=(C, A, B))
REFORM_S = 60.0


class Hand:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


def seen(*present: PeerId, left: tuple[PeerId, ...] = (), from_epoch: int = 0) -> Expected:
    return Expected(trainers=frozenset(present), helpers=frozenset(), left=dict.fromkeys(left, from_epoch))


def test_before_the_first_step_nobody_in_particular_decides() -> None:
    assert Electors(Hand(), REFORM_S).of(None, seen(A, B)) == ()


def test_the_members_of_the_round_that_made_the_history_decide_in_their_order() -> None:
    assert Electors(Hand(), REFORM_S).of(MAKER, seen(A, B, C)) == (C, A, B)
    assert Electors(Hand(), REFORM_S).of(MAKER, seen()) == (C, A, B)


def test_one_that_is_silent_counts_until_the_reform() -> None:
    clock = Hand()
    electors = Electors(clock, REFORM_S)
    assert electors.of(MAKER, seen(A, B, C)) == (C, A, B)
    clock.at_s = REFORM_S
    assert electors.of(MAKER, seen(A, B)) == (C, A, B)
    clock.at_s += 0.1
    assert electors.of(MAKER, seen(A, B)) == (A, B)
    assert electors.of(MAKER, seen(A, B, C)) == (C, A, B)


def test_one_that_was_never_seen_has_its_time_from_when_it_was_first_missed() -> None:
    clock = Hand()
    clock.at_s = 1e6
    electors = Electors(clock, REFORM_S)
    assert electors.of(MAKER, seen(A, B)) == (C, A, B)
    clock.at_s += REFORM_S + 0.1
    assert electors.of(MAKER, seen(A, B)) == (A, B)


def test_one_that_said_goodbye_is_excused_at_once_and_stays_so_until_it_is_back() -> None:
    electors = Electors(Hand(), REFORM_S)
    assert electors.of(MAKER, seen(A, B, left=(C,))) == (A, B)
    assert electors.of(MAKER, seen(A, B)) == (A, B)
    assert electors.of(MAKER, seen(A, B, C, left=(C,))) == (C, A, B)
    assert electors.of(MAKER, seen(A, B)) == (C, A, B)


def test_one_that_has_promised_something_about_this_step_is_not_excused_by_its_goodbye() -> None:
    clock = Hand()
    electors = Electors(clock, REFORM_S)
    busy = seen(A, B, left=(C,), from_epoch=2)
    assert electors.of(MAKER, busy) == (C, A, B), "what follows the first step is step 1"
    assert electors.is_gone(C, busy)
    following = make_record(epoch=1, members=(C, A, B))
    assert electors.of(following, busy) == (A, B)
    assert electors.of(MAKER, seen(A, B)) == (C, A, B)
    clock.at_s = REFORM_S + 0.1
    assert electors.of(MAKER, seen(A, B)) == (A, B)


def test_peers_that_only_help_or_are_elsewhere_in_the_run_are_there() -> None:
    clock = Hand()
    electors = Electors(clock, REFORM_S)
    electors.of(MAKER, seen())
    clock.at_s = 10 * REFORM_S
    everywhere = Expected(trainers=frozenset(), helpers=frozenset({A}), ahead=frozenset({B}), behind=frozenset({C}))
    assert electors.of(MAKER, everywhere) == (C, A, B)


def test_when_everybody_is_excused_all_of_them_decide() -> None:
    clock = Hand()
    electors = Electors(clock, REFORM_S)
    assert electors.of(MAKER, seen(left=(A, B, C))) == (C, A, B)
