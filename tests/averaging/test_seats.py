"""What a peer remembers of its votes, and how it tells others."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from collab.averaging.ballots import Acceptor, Ballot, Vote
from collab.averaging.seats import REMEMBERED, RecordSeat, Seats, seat_from_fields, seat_to_fields
from collab.errors import BadMessage, SplitDecision
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.records import X, Y, make_record
from tests.fakes import through_the_wire

RECORD = make_record(members=(X, Y))
NEXT = (1, RECORD.next_lineage())
FIRST = (0, RECORD.lineage)
LOW, HIGH = Ballot(1, X), Ballot(2, Y)
VOTED = Acceptor(promised=HIGH, vote=Vote(LOW, RECORD))
RECORDS = st.sampled_from([RECORD, make_record(round_id="other", gaps=((X, 1, 2),)), make_record(epoch=5)])
BALLOTS = st.builds(Ballot, st.integers(1, (1 << 53) - 1), st.sampled_from([X, Y]))
SEATS = st.builds(
    Acceptor,
    promised=st.none() | BALLOTS,
    vote=st.none() | st.builds(Vote, BALLOTS, RECORDS),
    decided=st.none() | RECORDS,
)
NO_BALLOTS: tuple[Any, ...] = (None, 5, {}, [1], [1, "x", 2], ["1", "x"])
NO_RECORDS: tuple[Any, ...] = (None, 5, [], {"round_id": "r"})


@given(seat=st.none() | SEATS)
def test_a_seat_travels_as_it_is(seat: RecordSeat | None) -> None:
    message = through_the_wire(Message("vote", {"seat": seat_to_fields(seat)}))
    assert seat_from_fields(message.get("seat", dict)) == seat


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(field, ...) for field in ("promised", "voted", "value", "decided")],
        *[(field, value) for field in ("promised", "voted") for value in NO_BALLOTS],
        *[(field, value) for field in ("promised", "voted") for value in ([0, "x"], [-1, "x"], [1 << 53, "x"])],
        *[(field, [True, "x"]) for field in ("promised", "voted")],
        *[(field, value) for field in ("value", "decided") for value in NO_RECORDS],
    ],
)
def test_a_malformed_seat_is_a_bad_message(field: str, value: Any) -> None:
    fields = {name: each for name, each in {**seat_to_fields(VOTED), field: value}.items() if each is not ...}
    with pytest.raises(BadMessage):
        seat_from_fields(fields)


def test_about_a_first_step_everybody_may_vote() -> None:
    assert Seats().of(FIRST, (), X) == Acceptor()


def test_who_was_in_the_round_that_made_the_history_votes_about_what_follows() -> None:
    seats = Seats()
    seats.learn(RECORD)
    assert seats.of(NEXT, (X, Y), X) == Acceptor()
    assert seats.of(NEXT, (Y,), X) is None


def test_after_a_restart_a_peer_has_no_seat_until_it_has_helped_to_make_a_history() -> None:
    seats = Seats()
    assert seats.of(NEXT, (X, Y), X) is None
    following = make_record(epoch=1, lineage=NEXT[1], members=(X, Y))
    seats.learn(following)
    assert seats.of(NEXT, (X, Y), X) is None
    assert seats.of((2, following.next_lineage()), (X, Y), X) == Acceptor()


def test_what_was_promised_and_voted_is_kept() -> None:
    seats = Seats()
    assert seats.promised(FIRST) == 0
    assert seats.voted(*FIRST) is None
    seats.keep(FIRST, Acceptor())
    assert seats.promised(FIRST) == 0
    seats.keep(FIRST, VOTED)
    assert seats.promised(FIRST) == 2
    assert seats.voted(*FIRST) == RECORD
    assert seats.of(FIRST, (), X) == VOTED
    assert seats.promised(NEXT) == 0


def test_what_is_learned_closes_the_instance_and_another_decision_is_a_split() -> None:
    seats = Seats()
    seats.keep(FIRST, VOTED)
    seats.learn(RECORD)
    seats.learn(RECORD)
    seat = seats.of(FIRST, (), X)
    assert seat is not None
    assert seat.decided == RECORD
    assert seat.vote == VOTED.vote
    with pytest.raises(SplitDecision):
        seats.learn(make_record(round_id="other"))


def test_what_is_forgotten_may_be_decided_again() -> None:
    seats = Seats()
    seats.learn(RECORD)
    seats.forget(FIRST)
    seats.forget(FIRST)
    assert seats.of(FIRST, (), X) == Acceptor()
    seats.learn(make_record(round_id="other"))


def test_only_recent_instances_are_remembered() -> None:
    seats = Seats()
    instances = [(epoch, Lineage(str(epoch))) for epoch in range(REMEMBERED + 1)]
    for instance in instances:
        seats.keep(instance, VOTED)
    assert seats.promised(instances[0]) == 0
    assert all(seats.promised(instance) == 2 for instance in instances[1:])


def test_an_instance_in_use_is_not_forgotten_for_the_sake_of_newer_ones() -> None:
    seats = Seats()
    for epoch in range(2 * REMEMBERED):
        seats.keep(FIRST, VOTED)
        seats.keep((epoch, Lineage(f"other-{epoch}")), VOTED)
    assert seats.promised(FIRST) == 2


def test_invented_instances_push_out_each_other_and_not_those_of_histories_that_we_made() -> None:
    seats = Seats()
    made = make_record(epoch=0, members=(X, Y))
    seats.learn(made)
    instance = 1, made.next_lineage()
    ours = seats.of(instance, (X, Y), X)
    assert ours is not None
    seats.keep(instance, ours.promise(Ballot(3, X)))
    for number in range(5 * REMEMBERED):
        seats.keep((7, Lineage(f"invented {number}")), Acceptor(promised=Ballot(1, Y)))
    assert seats.promised(instance) == 3
    assert seats.of(instance, (X, Y), X) is not None
    assert seats.promised((7, Lineage(f"invented {5 * REMEMBERED - 1}"))) == 1, "the newest is there while it is used"


def test_only_recent_histories_have_seats() -> None:
    seats = Seats()
    records = [make_record(epoch=epoch, lineage=Lineage(str(epoch))) for epoch in range(REMEMBERED + 1)]
    for record in records:
        seats.learn(record)
    following = [(record.epoch + 1, record.next_lineage()) for record in records]
    assert seats.of(following[0], (PeerId("x"),), X) is None
    assert all(seats.of(instance, (X,), X) == Acceptor() for instance in following[1:])


def test_a_seat_that_was_forgotten_is_not_taken_anew() -> None:
    seats = Seats()
    record = make_record(members=(X, Y))
    seats.learn(record)
    lineage = record.next_lineage()
    seats.keep((1, lineage), Acceptor().promise(Ballot(1, Y)))
    assert seats.of((1, lineage), (X, Y), X) is not None
    for epoch in range(1, REMEMBERED + 1):
        later = make_record(epoch=epoch, lineage=Lineage(f"other {epoch}"), members=(X, Y))
        seats.learn(later)
        seats.keep((epoch + 1, later.next_lineage()), Acceptor())
    assert seats.promised((1, lineage)) == 0
    assert seats.of((1, lineage), (X, Y), X) is None


def test_a_peer_is_free_of_what_it_has_promised_nothing_about_in_this_life_and_in_any_before() -> None:
    seats = Seats()
    assert seats.free_from() is None, "it may have promised anything before a restart"
    seats.keep(FIRST, VOTED)
    assert seats.free_from() is None
    seats.learn(RECORD)
    assert seats.free_from() == 1
    seats.keep(NEXT, Acceptor().promise(LOW))
    assert seats.free_from() == 2


def test_a_peer_that_closed_its_seats_abstains_and_knows_where_it_has_voted() -> None:
    seats = Seats()
    seats.keep(FIRST, Acceptor().promise(LOW).accept(LOW, RECORD))
    seats.keep(NEXT, Acceptor().promise(LOW))
    assert seats.close() == [FIRST]
    assert seats.of(FIRST, (), X) is None
    assert seats.of((7, Lineage("new")), (), X) is None
