"""The owner's orders: a chain that proves itself, and what it means at each epoch."""

from dataclasses import asdict
from typing import Any

import msgpack
import pytest

from collab.errors import BadMessage
from collab.swarm.identity import Identity
from collab.swarm.orders import MAX_ORDERS, TAG, OrderBook
from collab.swarm.statements import FOREVER, Amend, Ban, End, Pardon, Rollback, Statement
from tests.swarm.people import PEOPLE

OWNER, STRANGER = PEOPLE[0], PEOPLE[1]
F = "f" * 64
EMPTY = OrderBook(F, OWNER.peer_id)
EVERYTHING: list[Statement] = [
    Amend(from_epoch=10, learning_rate=0.5),
    Amend(from_epoch=20, target_batch_size=64, minimum_version="0.2.0"),
    Ban(who=STRANGER.peer_id, reason="spam", until_s=500.0, name="stranger"),
    Pardon(who=STRANGER.peer_id),
    Rollback(to_epoch=30, lineage="a" * 64),
    End(at_epoch=40),
]


def book_of(*said: Statement, begun: OrderBook = EMPTY) -> OrderBook:
    for number, what in enumerate(said):
        begun = begun.extended([begun.signed(what, OWNER, 100.0 + number)])
    return begun


def forged(values: list[Any], signer: Identity = OWNER) -> bytes:
    body = msgpack.packb(values)
    return msgpack.packb([body, signer.sign(body)])


def test_a_chain_is_read_as_it_was_said() -> None:
    book = book_of(*EVERYTHING)
    again = EMPTY.extended(book.packed)
    assert [order.what for order in again.orders] == EVERYTHING
    assert again == book
    assert len({order.mark for order in again.orders}) == len(EVERYTHING)


def test_nobody_but_the_owner_gives_orders() -> None:
    with pytest.raises(ValueError, match="owner"):
        EMPTY.signed(End(at_epoch=1), STRANGER, 1.0)
    values = [TAG, F, 1, "", 1.0, "end", asdict(End(at_epoch=1))]
    assert EMPTY.extended([forged(values)]).orders
    with pytest.raises(BadMessage, match="not signed"):
        EMPTY.extended([forged(values, STRANGER)])


def test_a_run_without_an_owner_has_no_orders() -> None:
    with pytest.raises(BadMessage):
        OrderBook(F, PEOPLE[0].peer_id.__class__("")).extended([book_of(End(at_epoch=1)).packed[0]])


def test_an_order_cannot_be_left_out_repeated_moved_or_brought_to_another_run() -> None:
    book = book_of(*EVERYTHING)
    for wrong in (book.packed[1:], (book.packed[0], book.packed[0]), (book.packed[1], book.packed[0])):
        with pytest.raises(BadMessage, match="does not follow"):
            EMPTY.extended(wrong)
    with pytest.raises(BadMessage, match="another run"):
        OrderBook("e" * 64, OWNER.peer_id).extended(book.packed)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [TAG, F, 1, "", 1.0, "end"],
        [TAG, F, 1, "", 1.0, "dance", {}],
        [TAG, F, 1, "", "now", "end", {"at_epoch": 1}],
        [TAG, F, 1, "", 1.0, "end", []],
        [TAG, F, 1, "", 1.0, "end", {}],
        [TAG, F, 1, "", 1.0, "end", {"at_epoch": True}],
        [TAG, F, 1, "", 1.0, "end", {"at_epoch": -1}],
        [TAG, F, 1, "", 1.0, "amend", {"from_epoch": 1}],
        [TAG, F, 1, "", 1.0, "amend", {"from_epoch": 1, "learning_rate": 0.0}],
        [TAG, F, 1, "", 1.0, "amend", {"from_epoch": 1, "learning_rate": float("nan")}],
        [TAG, F, 1, "", 1.0, "amend", {"from_epoch": 1, "target_batch_size": 0}],
        [TAG, F, 1, "", 1.0, "amend", {"from_epoch": 1, "minimum_version": "soon"}],
        [TAG, F, 1, "", 1.0, "ban", {"who": "x", "reason": "r" * 300, "until_s": 0.0}],
    ],
)
def test_an_order_that_makes_no_sense_is_refused(values: list[Any]) -> None:
    with pytest.raises(BadMessage):
        EMPTY.extended([forged(values)])


@pytest.mark.parametrize(
    ("told", "name"),
    [({}, None), ({"name": None}, None), ({"name": "Eve"}, "Eve"), ({"name": "Eve", "of_a_later_version": 7}, "Eve")],
)
def test_a_ban_is_read_as_versions_before_and_after_this_one_say_it(told: dict[str, Any], name: str | None) -> None:
    values = [TAG, F, 1, "", 1.0, "ban", {"who": STRANGER.peer_id, "reason": "spam", "until_s": 500.0, **told}]
    (order,) = EMPTY.extended([forged(values)]).orders
    assert order.what == Ban(who=STRANGER.peer_id, reason="spam", until_s=500.0, name=name)


def test_there_are_only_so_many_orders() -> None:
    with pytest.raises(BadMessage, match="limit"):
        EMPTY.extended([b""] * (MAX_ORDERS + 1))


def test_the_longer_of_two_chains_counts_and_of_equally_long_ones_everybody_takes_the_same() -> None:
    common = book_of(End(at_epoch=90))
    short, long = book_of(End(at_epoch=50), begun=common), book_of(End(at_epoch=60), End(at_epoch=70), begun=common)
    assert short.merged(1, long.packed[1:]) == long
    assert long.merged(1, short.packed[1:]) == long
    other = book_of(End(at_epoch=55), begun=common)
    assert short.merged(0, other.packed) == other.merged(0, short.packed)


def test_terms_are_those_of_the_orders_that_count_for_the_epoch() -> None:
    book = book_of(*EVERYTHING)
    assert book.terms_at(9).mark == ""
    assert (book.terms_at(10).learning_rate, book.terms_at(19).target_batch_size) == (0.5, None)
    later = book.terms_at(20)
    assert (later.learning_rate, later.target_batch_size, later.minimum_version) == (0.5, 64, "0.2.0")
    assert later.mark == book.orders[1].mark
    assert book.ends_at(100) == 40
    assert EMPTY.ends_at(100) == 100


def test_an_end_counts_for_the_step_that_reaches_its_epoch_and_for_all_later_ones() -> None:
    amend, end = Amend(from_epoch=3, learning_rate=0.5), End(at_epoch=10)
    book = book_of(amend, end)
    assert [book.terms_at(epoch).mark for epoch in (2, 8, 9, 12)] == ["", book.mark_of(1), book.mark, book.mark]
    assert book.terms_at(9).learning_rate == 0.5
    book = book_of(end, amend)
    assert [book.terms_at(epoch).mark for epoch in (2, 8, 9, 12)] == ["", book.mark, book.mark, book.mark]
    longer = book_of(End(at_epoch=20), begun=book_of(end))
    assert (longer.terms_at(9).mark, longer.terms_at(19).mark) == ("", longer.mark)


def test_a_run_ends_with_the_first_step_that_counts_the_end_and_not_before_its_epoch() -> None:
    before = book_of(Amend(from_epoch=0, learning_rate=0.5))
    book = book_of(End(at_epoch=10), begun=before)
    later = book_of(Amend(from_epoch=0, learning_rate=0.25), begun=book)
    assert book.ends_at(None) == 10
    assert book.ends_at(None, 9, before.mark) == 10
    assert book.ends_at(None, 10, book.mark) == 10
    assert [book.ends_at(None, taken, before.mark) for taken in (10, 14)] == [11, 15], "nobody knew of it then"
    assert book.ends_at(None, 15, book.mark) == 15
    assert later.ends_at(None, 15, later.mark) == 15


def test_a_round_names_the_orders_that_it_counted_whatever_came_later() -> None:
    first = book_of(Amend(from_epoch=10, learning_rate=0.5))
    later = book_of(Amend(from_epoch=10, learning_rate=0.25), begun=first)
    assert later.terms_at(12).learning_rate == 0.25
    assert later.terms_at(12, first.mark).learning_rate == 0.5
    assert later.terms_at(12, "").learning_rate is None
    with pytest.raises(KeyError):
        first.terms_at(12, later.mark)


def test_a_rollback_makes_amendments_void_that_are_about_steps_after_the_checkpoint() -> None:
    kept, spike = Amend(from_epoch=9, learning_rate=0.5), Amend(from_epoch=10, learning_rate=30.0)
    before = book_of(kept, spike, Amend(from_epoch=90, target_batch_size=8))
    rollback = Rollback(to_epoch=10, lineage="a" * 64)
    after = book_of(rollback, begun=before)
    assert [what.from_epoch for what in before.void_with(rollback)] == [10, 90]
    assert after.void_with(rollback) == []
    assert (before.terms_at(95).learning_rate, before.terms_at(95).target_batch_size) == (30.0, 8)
    again = after.terms_at(95)
    assert (again.learning_rate, again.target_batch_size, again.mark) == (0.5, None, after.orders[0].mark)
    assert after.terms_at(95, again.mark) == again
    assert after.terms_at(12, after.orders[1].mark).learning_rate == 30.0, "of a round before the rollback"
    later = book_of(Amend(from_epoch=12, learning_rate=0.25), begun=after)
    assert (later.terms_at(11).learning_rate, later.terms_at(95).learning_rate) == (0.5, 0.25)


def test_a_ban_holds_until_its_end_or_until_it_is_pardoned() -> None:
    who = STRANGER.peer_id
    banned = book_of(Ban(who=who, reason="spam", until_s=500.0))
    assert banned.bans()[who].holds(499.0)
    assert not banned.bans()[who].holds(500.0)
    assert OWNER.peer_id not in banned.bans()
    forever = book_of(Ban(who=who, reason="spam", until_s=FOREVER), begun=banned)
    assert forever.bans()[who].holds(1e12)
    assert book_of(Pardon(who=who), begun=forever).bans() == {}
