"""Units of work: in order, each counted once, nothing lost whatever becomes of clients and servers."""

import itertools
import pickle
import random

import pytest
from hypothesis import given, strategies as st

from collab.data.unit_samples import sample_ids_of
from collab.data.work_units import (
    LONGEST,
    MOST_EACH,
    OTHERS_FIRST_S,
    SLOWEST,
    Unit,
    UnitLease,
    WorkUnits,
)
from collab.errors import DataError
from collab.types import PeerId

ANNA, BEN = PeerId("anna"), PeerId("ben")


def units(shards: int = 3, passes: int = 2, first_s: float = 10.0) -> WorkUnits:
    numbers = itertools.count()
    return WorkUnits(shards=shards, passes=passes, first_s=first_s, name=lambda: f"lease-{next(numbers)}")


def taken(board: WorkUnits, client: PeerId, now_s: float) -> UnitLease:
    lease = board.take(client, now_s)
    assert lease is not None
    return lease


def test_units_go_out_in_order_of_passes_and_the_next_pass_waits_for_nobody() -> None:
    board = units()
    order = [taken(board, ANNA, 0.0).unit for _ in range(6)]
    assert order == [Unit(number, shard) for number in (1, 2) for shard in range(3)]
    assert board.take(BEN, 1.0) is None
    assert not board.is_finished
    for unit in order:
        board.note_done(unit, 2.0)
    assert board.is_finished
    assert board.take(BEN, 100.0) is None
    assert board.num_done == 6


def test_a_lease_that_is_over_goes_out_first_and_late_work_still_counts_once() -> None:
    board = units(passes=1)
    late = taken(board, ANNA, 0.0)
    assert late.until_s == 10.0
    assert taken(board, BEN, 9.9).unit == Unit(1, 1)
    again = taken(board, BEN, 10.0)
    assert again.unit == late.unit
    assert again.lease != late.lease
    board.note_done(late.unit, 11.0)
    assert board.extend(again.lease, BEN, 11.5) is None
    assert taken(board, BEN, 12.0).unit == Unit(1, 2)
    assert board.num_done == 1


def test_who_is_preempted_gives_its_unit_back_and_it_is_free_at_once() -> None:
    board = units()
    lease = taken(board, ANNA, 0.0)
    assert not board.give_back(lease.lease, BEN), "it is not his"
    assert board.give_back(lease.lease, ANNA) == lease.unit
    assert not board.give_back(lease.lease, ANNA)
    assert taken(board, BEN, 0.1).unit == lease.unit


def test_leases_last_as_long_as_units_take() -> None:
    board = units(shards=10)
    for seconds in (4.0, 7.0, 5.0):
        lease = taken(board, ANNA, 0.0)
        board.note_done(lease.unit, seconds)
    assert taken(board, ANNA, 100.0).until_s == 100.0 + SLOWEST * 7.0


def test_who_says_that_it_is_at_work_keeps_its_lease() -> None:
    board = units()
    lease = taken(board, ANNA, 0.0)
    longer = board.extend(lease.lease, ANNA, 8.0)
    assert longer is not None
    assert (longer.unit, longer.until_s, longer.began_s) == (lease.unit, 18.0, 0.0)
    assert taken(board, BEN, 12.0).unit != lease.unit


def test_a_server_that_takes_over_goes_on_with_what_the_store_has() -> None:
    board = units()
    board.note_all_done(1, {0: "a", 2: "b"}, 0.0)
    assert taken(board, ANNA, 0.0).unit == Unit(1, 1)
    assert taken(board, ANNA, 0.0).unit == Unit(2, 0)


def test_a_server_that_takes_over_hands_out_nothing_that_is_out_until_its_time_is_over() -> None:
    before, board = units(), units()
    leases = [taken(before, client, 0.0) for client in (ANNA, BEN, ANNA)]
    before.note_done(leases[0].unit, 5.0)
    longer = before.extend(leases[1].lease, BEN, 6.0)
    assert longer is not None

    board.note_all_done(1, {leases[0].unit.shard: leases[0].lease}, 7.0)
    for lease in (leases[0], longer, leases[2]):
        board.note_out(lease)
    assert [lease.unit for lease in board.out()] == [leases[2].unit, longer.unit], "and not what is done"
    assert [taken(board, ANNA, 7.0).unit for _ in range(3)] == [Unit(2, shard) for shard in range(3)]
    assert board.extend(leases[1].lease, BEN, 8.0) is not None, "he need not know of it"
    assert taken(board, BEN, leases[2].until_s).unit == leases[2].unit
    assert board.take(BEN, leases[2].until_s) is None, "everything is out"


def test_whole_passes_are_noted_by_their_number() -> None:
    board = units(passes=3)
    out = taken(board, ANNA, 0.0)
    board.note_settled(3)
    assert board.num_done == 2 * 3
    assert board.out() == []
    assert board.extend(out.lease, ANNA, 1.0) is None
    assert taken(board, ANNA, 1.0).unit == Unit(3, 0)
    board.note_settled(2)
    assert board.num_done == 2 * 3


def test_one_that_takes_units_without_end_holds_a_few_and_others_get_the_next() -> None:
    board = units(shards=50, passes=1000)
    for number in range(5000):
        taken(board, ANNA, number / 1000)
    assert len(board.out()) == MOST_EACH
    assert taken(board, BEN, 5.0).unit == Unit(1, MOST_EACH)


def test_many_identities_that_bring_nothing_hold_a_few_passes_and_who_has_brought_one_goes_on() -> None:
    board = units(shards=50, passes=1000)
    first = taken(board, BEN, 0.0)
    held = list(iter(lambda: board.take(PeerId(f"stranger {len(board.out())}"), 1.0), None))
    assert max(lease.unit for lease in held) == Unit(3, 49)
    board.note_done(first.unit, 9.0)
    assert taken(board, BEN, 9.0).unit == Unit(4, 0)
    assert taken(board, PeerId("late"), 11.0).unit == Unit(1, 1), "their time is over"


def test_who_pushes_under_a_lease_of_before_counts_as_one_that_brings_and_who_has_the_unit_now_does_not() -> None:
    board = units(shards=50, passes=1000)
    lazy = taken(board, PeerId("stranger"), 0.0)
    while board.take(PeerId(f"stranger {len(board.out())}"), 1.0):
        pass
    board.note_all_done(1, {lazy.unit.shard: "a lease of before our restart"}, 2.0)
    assert taken(board, PeerId("another"), 2.0).unit == Unit(4, 0), "in the place of the one that is done"
    assert board.take(lazy.client, 3.0) is None, "it has brought nothing"
    assert board.take(ANNA, 3.0) is None
    board.note_brought(ANNA, 4.0)
    assert taken(board, ANNA, 4.0).unit == Unit(4, 1)


def test_a_lease_is_not_made_longer_for_ever_for_one_that_brings_nothing() -> None:
    board = units(shards=1, passes=1)
    lease, now_s = taken(board, ANNA, 0.0), 0.0
    while board.extend(lease.lease, ANNA, now_s) is not None:
        now_s += 5.0
    assert now_s == LONGEST * 10.0
    assert board.take(ANNA, now_s) is None, "others have waited for it"
    assert not board.is_all_out
    assert taken(board, BEN, now_s + 1.0).unit == lease.unit


def test_who_was_killed_and_is_alone_gets_its_unit_again_a_little_later() -> None:
    board = units(shards=1, passes=1)
    lease = taken(board, ANNA, 0.0)
    assert board.take(ANNA, 10.0) is None
    assert taken(board, ANNA, 10.0 + OTHERS_FIRST_S).unit == lease.unit


def test_who_brings_units_keeps_the_others_for_as_long_as_it_does() -> None:
    board = units(shards=100, passes=1)
    slow = taken(board, ANNA, 0.0)
    for number in range(1, 90):
        board.note_done(taken(board, ANNA, 5.0 * number).unit, 5.0 * number + 4.0)
        assert board.extend(slow.lease, ANNA, 5.0 * number + 4.5) is not None


def test_passes_that_are_done_take_no_memory_and_neither_does_who_let_leases_pass() -> None:
    board, sizes = units(shards=3, passes=10_000), []
    for number in range(2000):
        now_s = 100.0 * number
        taken(board, PeerId(f"stranger {number}"), now_s)
        for _ in range(2):
            board.note_done(taken(board, ANNA, now_s + 90.0).unit, now_s + 91.0)
        if number in (200, 1999):
            sizes.append(len(pickle.dumps({**vars(board), "_name": None})))
    assert board.num_done == 4000
    assert sizes[1] < 1.2 * sizes[0]


@pytest.mark.parametrize("wrong", [Unit(0, 0), Unit(3, 0), Unit(1, 3), Unit(1, -1)])
def test_what_is_no_unit_of_the_run_is_refused(wrong: Unit) -> None:
    with pytest.raises(ValueError, match="no unit"):
        units().note_done(wrong, 0.0)


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"passes": 0}, {"first_s": 0.0}, {"first_s": float("nan")}])
def test_a_run_without_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        units(**wrong)  # type: ignore[arg-type]


@given(st.integers(0, 10_000), st.floats(0.0, 0.7), st.booleans())
def test_whatever_clients_do_every_unit_is_done_and_none_is_out_twice(
    seed: int, dies: float, server_dies: bool
) -> None:
    """Clients die, give back, come late; the server may start again with what is done, in the middle."""
    rng, board, now_s = random.Random(seed), units(shards=7, passes=3), 0.0
    done: dict[int, dict[int, str]] = {}
    working: list[UnitLease] = []
    while not board.is_finished:
        now_s += rng.expovariate(1.0)
        lease = board.take(PeerId(str(rng.randrange(4))), now_s)
        if lease is not None:
            assert lease.unit.shard not in done.get(lease.unit.pass_number, {})
            working.append(lease)
        out = [each.unit for each in board.out()]
        assert len(out) == len(set(out))
        if working and rng.random() < 0.7:
            lease = working.pop(rng.randrange(len(working)))
            if rng.random() < dies:
                if rng.random() < 0.5:
                    board.give_back(lease.lease, lease.client)
                continue
            done.setdefault(lease.unit.pass_number, {}).setdefault(lease.unit.shard, lease.lease)
            board.note_done(lease.unit, now_s)
        if server_dies and rng.random() < 0.02:
            board = units(shards=7, passes=3)
            for number, leases in done.items():
                board.note_all_done(number, leases, now_s)
    assert sum(map(len, done.values())) == 21


def test_a_lease_that_is_made_longer_when_units_take_less_ends_by_that() -> None:
    """The first ones last long, as long as nobody knows what a unit takes."""
    units = WorkUnits(shards=2, passes=1, first_s=300.0, name=iter("abcdef").__next__)
    kept, fast = units.take(PeerId("kept"), 0.0), units.take(PeerId("fast"), 0.0)
    assert kept is not None
    assert fast is not None
    units.note_done(fast.unit, 10.0)
    longer = units.extend(kept.lease, PeerId("kept"), 150.0)
    assert longer is not None
    assert longer.until_s == 180.0
    assert units.take(PeerId("other"), 179.0) is None
    again = units.take(PeerId("other"), 181.0)
    assert again is not None
    assert again.unit == kept.unit


def test_fewer_samples_than_shards_are_refused_with_how_many_shards_there_may_be() -> None:
    with pytest.raises(DataError, match="7 samples cannot be cut into 8 units of work") as refused:
        sample_ids_of(Unit(1, 0), shards=8, num_samples=7, seed=0)
    assert "strategy.shards of 7 at most" in refused.value.hint
    assert len(sample_ids_of(Unit(1, 0), shards=7, num_samples=7, seed=0)) == 1
