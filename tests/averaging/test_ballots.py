"""The rules of an instance, one by one; that together they are safe is for test_ballots_exhaustive.py."""

import pytest
from hypothesis import given, strategies as st

from collab.averaging.ballots import Acceptor, Ballot, Electorate, Proposal, Vote, ballot_above, seat
from collab.errors import SplitDecision
from collab.types import PeerId

A, B, C, D, E = (PeerId(name) for name in "abcde")
LEADER, NEXT, LAST = Ballot(1, A), Ballot(2, B), Ballot(3, C)
PEERS = st.sets(st.sampled_from([A, B, C, D, E]))


def proposal(ballot: Ballot = NEXT, members: tuple[PeerId, ...] = (A, B, C)) -> Proposal[str]:
    return Proposal(ballot=ballot, electorate=Electorate(members))


def promised(ballot: Ballot, *answers: tuple[PeerId, Acceptor[str]]) -> Proposal[str]:
    """A proposal over a, b and c that has heard these electors, each after promising."""
    heard = proposal(ballot)
    for peer, acceptor in answers:
        heard = heard.hear_promise(peer, acceptor.promise(ballot))
    return heard


def voter(ballot: Ballot, value: str | None) -> Acceptor[str]:
    return Acceptor[str]().accept(ballot, value)


# -- ballots and electorates ------------------------------------------------------------------------------------------


def test_ballots_are_ordered_by_number_and_then_by_proposer() -> None:
    assert sorted([Ballot(2, A), Ballot(1, B), Ballot(1, A)]) == [Ballot(1, A), Ballot(1, B), Ballot(2, A)]


def test_a_ballot_above_all_that_was_heard_is_refused_by_none_of_them() -> None:
    assert ballot_above([], A) == Ballot(1, A)
    assert ballot_above([0, 4, 2], A) == Ballot(5, A)


def test_an_electorate_names_somebody_and_nobody_twice() -> None:
    for members in ((), (A, A), (A, B, A)):
        with pytest.raises(ValueError, match="nobody twice"):
            Electorate(members)


@pytest.mark.parametrize(
    ("members", "voters", "is_quorum"),
    [
        ((A,), {A}, True),
        ((A,), set(), False),
        ((A, B), {A}, True),
        ((A, B), {B}, False),
        ((A, B, C), {B, C}, True),
        ((A, B, C), {A}, False),
        ((A, B, C, D), {A, D}, True),
        ((A, B, C, D), {C, D}, False),
        ((A, B, C, D), {B, C, D}, True),
        ((B, C), {A, D, E}, False),
        ((A, B, C), {A, D, E}, False),
    ],
)
def test_a_quorum_is_more_than_half_or_half_with_the_first_member(
    members: tuple[PeerId, ...], voters: set[PeerId], is_quorum: bool
) -> None:
    assert Electorate(members).has_quorum(voters) is is_quorum


@given(st.permutations([A, B, C, D, E]), st.integers(1, 5), PEERS, PEERS)
def test_any_two_quorums_share_an_elector(order: list[PeerId], size: int, one: set[PeerId], two: set[PeerId]) -> None:
    electorate = Electorate(tuple(order[:size]))
    if electorate.has_quorum(one) and electorate.has_quorum(two):
        assert one & two & set(electorate.members)


@given(PEERS)
def test_of_an_electorate_and_its_rest_one_side_at_most_has_a_quorum_and_with_all_there_always_one(
    side: set[PeerId],
) -> None:
    electorate = Electorate((A, B, C, D))
    rest = set(electorate.members) - side
    assert electorate.has_quorum(side) != electorate.has_quorum(rest)


def test_only_who_took_part_in_the_making_of_an_electorate_has_a_seat() -> None:
    electorate = Electorate((A, B))
    assert seat(A, electorate, took_part=True) == Acceptor()
    assert seat(A, electorate, took_part=False) is None  # restarted: it may have voted, and does not know
    assert seat(C, electorate, took_part=True) is None


# -- electors ---------------------------------------------------------------------------------------------------------


def test_an_elector_refuses_ballots_below_what_it_promised() -> None:
    acceptor = Acceptor[str]().promise(NEXT)
    assert acceptor.promise(LEADER) == acceptor
    assert acceptor.accept(LEADER, "v") == acceptor
    assert acceptor.promise(LAST).promised == LAST
    assert acceptor.accept(NEXT, "v").vote == Vote(NEXT, "v")


def test_a_vote_promises_its_ballot_too() -> None:
    assert voter(NEXT, "v").promised == NEXT
    assert voter(NEXT, "v").promise(LEADER).promised == NEXT


def test_a_promise_keeps_the_vote_and_a_later_vote_replaces_it() -> None:
    acceptor = voter(LEADER, "v").promise(NEXT)
    assert acceptor.vote == Vote(LEADER, "v")
    assert acceptor.accept(NEXT, "w").vote == Vote(NEXT, "w")


def test_a_repeated_question_changes_nothing() -> None:
    acceptor = voter(LEADER, "v")
    assert acceptor.accept(LEADER, "v") == acceptor
    assert acceptor.promise(LEADER) == acceptor


def test_in_one_ballot_a_second_value_is_refused() -> None:
    assert voter(LEADER, "v").accept(LEADER, "w") == voter(LEADER, "v")


def test_an_elector_that_knows_the_decision_tells_it_and_takes_part_in_nothing_more() -> None:
    acceptor = voter(LEADER, "v").learn("v")
    assert acceptor.decided == "v"
    assert acceptor.promise(NEXT) == acceptor == acceptor.accept(NEXT, "w")
    assert acceptor.learn("v") == acceptor


def test_a_second_decision_is_an_alarm() -> None:
    with pytest.raises(SplitDecision, match="expected the one decision v"):
        Acceptor[str]().learn("v").learn("w")


# -- proposers: phase 1 -----------------------------------------------------------------------------------------------


def test_a_proposer_without_a_quorum_of_promises_proposes_nothing_at_all() -> None:
    heard = promised(NEXT, (A, Acceptor()))
    assert not heard.has_promises
    with pytest.raises(ValueError, match="without a quorum of promises"):
        heard.propose("own")


def test_strangers_refusals_and_repetitions_are_no_promises() -> None:
    heard = proposal().hear_promise(D, Acceptor[str]().promise(NEXT))
    heard = heard.hear_promise(A, Acceptor[str]().promise(LAST))  # refused: it has promised more
    heard = heard.hear_promise(B, voter(LEADER, "v"))  # as of before the question, say from its JOIN
    assert heard == proposal()
    once = promised(NEXT, (A, Acceptor()))
    assert once.hear_promise(A, Acceptor[str]().promise(NEXT)) == once


def test_a_proposer_of_whom_nobody_voted_proposes_its_own_value() -> None:
    heard = promised(NEXT, (A, Acceptor()), (B, Acceptor()))
    assert heard.value_to_propose("own") == "own"
    assert heard.value_to_propose(None) is None


def test_a_single_vote_found_is_carried_on_whatever_the_proposer_has() -> None:
    heard = promised(NEXT, (A, Acceptor()), (B, voter(LEADER, "v")))
    assert heard.value_to_propose("own") == "v" == heard.propose("own").value


def test_of_several_votes_the_highest_ballot_counts_in_any_order() -> None:
    answers = ((A, voter(LEADER, "v")), (B, voter(NEXT, "w")))
    assert promised(LAST, *answers).value_to_propose(None) == "w"
    assert promised(LAST, *reversed(answers)).value_to_propose(None) == "w"


def test_a_vote_that_is_heard_of_after_proposing_changes_nothing() -> None:
    asked = promised(NEXT, (A, Acceptor()), (B, Acceptor())).propose("own")
    assert asked.hear_promise(C, voter(LEADER, "v").promise(NEXT)) == asked
    assert asked.propose("other").value == "own"


def test_one_elector_that_knows_the_decision_is_enough() -> None:
    heard = proposal().hear_promise(C, Acceptor[str]().learn("v"))
    assert heard.is_decided
    assert heard.value_to_propose("own") == "v"
    assert proposal().hear_promise(D, Acceptor[str]().learn("v")) == proposal()


# -- proposers: phase 2 -----------------------------------------------------------------------------------------------


def test_a_quorum_of_votes_decides() -> None:
    asked = promised(NEXT, (A, Acceptor()), (B, Acceptor())).propose("own")
    one = asked.hear_vote(B, voter(NEXT, "own"))
    assert not one.is_decided
    two = one.hear_vote(C, voter(NEXT, "own").promise(LAST))  # it voted, and has promised more since
    assert two.is_decided
    assert two.value == "own"


def test_strangers_refusals_other_ballots_and_repetitions_are_no_votes() -> None:
    asked = promised(NEXT, (A, Acceptor()), (B, Acceptor())).propose("own")
    assert asked.hear_vote(D, voter(NEXT, "own")) == asked
    assert asked.hear_vote(A, Acceptor[str]().promise(LAST)) == asked
    assert asked.hear_vote(A, voter(LEADER, "own")) == asked
    once = asked.hear_vote(A, voter(NEXT, "own"))
    assert once.hear_vote(A, voter(NEXT, "own")) == once
    assert not asked.hear_vote(A, voter(NEXT, "x")).hear_vote(B, voter(NEXT, "x")).is_decided


def test_a_proposer_carries_a_value_on_to_its_decision() -> None:
    asked = promised(NEXT, (A, voter(LEADER, "v")), (B, Acceptor())).propose("own")
    done = asked.hear_vote(A, voter(NEXT, "v")).hear_vote(B, voter(NEXT, "v"))
    assert done.is_decided
    assert done.value == "v"


def test_a_proposer_that_is_overtaken_hears_the_decision_instead_of_a_vote() -> None:
    asked = promised(NEXT, (A, Acceptor()), (B, Acceptor())).propose("own")
    heard = asked.hear_vote(A, voter(LAST, "w").learn("w"))
    assert (heard.is_decided, heard.value) == (True, "w")


def test_a_decision_against_a_quorum_of_votes_is_an_alarm() -> None:
    asked = promised(NEXT, (A, Acceptor()), (B, Acceptor())).propose("own")
    decided = asked.hear_vote(A, voter(NEXT, "own")).hear_vote(B, voter(NEXT, "own"))
    with pytest.raises(SplitDecision, match="decided own, and an elector knows w"):
        decided.hear_vote(C, Acceptor[str]().learn("w"))


# -- reform -----------------------------------------------------------------------------------------------------------


def test_excusing_peers_that_are_merely_cut_off_can_split_the_swarm() -> None:
    """Outside of what this module promises, and why a reform needs a fence: a partition, and both sides decide."""
    whole = Electorate((A, B, C, D))
    sides = {(A, B): (whole, LEADER, "v"), (C, D): (Electorate((C, D)), NEXT, "w")}
    decided = set()
    for peers, (electorate, ballot, own) in sides.items():
        side: Proposal[str] = Proposal(ballot=ballot, electorate=electorate)
        for peer in peers:
            side = side.hear_promise(peer, Acceptor[str]().promise(ballot))
        side = side.propose(own)
        for peer in peers:
            side = side.hear_vote(peer, Acceptor[str]().promise(ballot).accept(ballot, own))
        decided |= {side.value} if side.is_decided else set()
    assert decided == {"v", "w"}
