"""No interleaving of ballots splits an instance or a chain of two; and the checker that says so can fail."""

from typing import Any

import pytest

from tests.averaging.ballot_chain import Chain, Links
from tests.averaging.ballot_model import Model
from tests.averaging.ballot_mutants import (
    AcceptsBelowItsPromise,
    ForgetsItsVote,
    HalfIsEnough,
    IgnoresVotesFound,
    ProposesTwice,
    ProposesWithoutAQuorum,
    TakesAnyVoteFound,
    VotesOnce,
)
from tests.averaging.ballot_search import Found, search
from tests.averaging.ballot_states import Bounds


def explore(*, is_progress_checked: bool = True, **bounds: Any) -> Found[Any]:
    model = Model(Bounds(**bounds))
    return search(model, also=model.stuck if is_progress_checked else lambda _: None, marks=model.marks)


@pytest.mark.parametrize(
    "bounds",
    [
        {"electors": 1, "ballots": 3, "restarts": 1},
        {"electors": 2, "ballots": 2, "restarts": 2},
        {"electors": 3, "ballots": 2, "restarts": 3},
        {"electors": 4, "ballots": 2, "restarts": 0},
        {"electors": 5, "ballots": 2, "restarts": 0, "is_progress_checked": False},
        {"electors": 3, "ballots": 3, "learns": False, "is_progress_checked": False},
    ],
    ids=lambda bounds: "-".join(str(number) for number in bounds.values()),
)
def test_no_interleaving_of_ballots_decides_two_values_or_gets_stuck(bounds: Any) -> None:
    found = explore(**bounds)
    assert (found.fault, found.trace) == (None, ())
    assert found.is_complete
    values, ballots = "abc"[: bounds["ballots"]], range(bounds["ballots"])
    decided = {f"{value} decided in {b}" for b in ballots for value in values[: b + 1]}
    assert found.reached == decided


# -- the checker itself: each broken rule is found --------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        {"acceptor": AcceptsBelowItsPromise},
        {"acceptor": ForgetsItsVote},
        {"proposal": IgnoresVotesFound},
        {"proposal": ProposesWithoutAQuorum},
        {"proposal": ProposesTwice},
        {"proposal": TakesAnyVoteFound, "ballots": 3},
        {"electorate": HalfIsEnough, "electors": 2},
        {"electorate": HalfIsEnough, "electors": 4},
        {"comes_back_empty": True, "restarts": 1},
    ],
    ids=lambda broken: "-".join(str(getattr(rule, "__name__", rule)) for rule in broken.values()),
)
def test_a_broken_rule_is_seen_to_decide_two_values(broken: Any) -> None:
    found = search(Model(Bounds(**{"learns": False, "splits_only": True} | broken)))
    assert found.fault is not None, found
    assert found.fault.startswith("two values decided")


def test_a_quorum_that_counts_wrongly_is_seen_before_it_splits() -> None:
    found = explore(electors=4, electorate=HalfIsEnough, is_progress_checked=False)
    assert found.fault == "a was decided by 2 votes"


def test_an_acceptor_that_never_votes_again_is_seen_to_stop_the_swarm() -> None:
    found = explore(acceptor=VotesOnce)
    assert found.fault is not None
    assert "end with None" in found.fault


# -- two instances in a row -------------------------------------------------------------------------------------------

SHRUNK, GROWN, REPLACED = ("1", "2"), ("1", "2", "3", "4"), ("2", "3", "4")


@pytest.mark.parametrize(
    "links",
    [
        Links(electors=("1", "2", "3"), members=(SHRUNK, ("2", "3")), restarts=1),
        Links(electors=("1", "2", "3"), members=(SHRUNK, GROWN)),
        Links(electors=("1", "2", "3"), members=(GROWN, REPLACED)),
        Links(electors=("1", "2"), members=(REPLACED, ("1",)), restarts=2),
        Links(electors=("1",), members=(GROWN,), later_ballots=2),
        Links(electors=("1", "2", "3"), members=(("1", "2", "3"),), later_ballots=2),
        Links(electors=("1", "2"), members=(SHRUNK,), later_ballots=2, restarts=2),
    ],
    ids=lambda links: f"{len(links.electors)}-to-{[len(members) for members in links.members]}-{links.restarts}",
)
def test_no_interleaving_of_two_instances_makes_two_histories(links: Links) -> None:
    chain = Chain(links)
    found = search(chain, marks=chain.histories)
    assert (found.fault, found.trace) == (None, ())
    assert found.is_complete
    assert found.reached == {f"{first} {then}" for first in chain.earlier.own for then in chain.later[0].own}


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (Links(electors=("1", "2", "3"), members=(SHRUNK, ("2", "3")), follows_votes=True), "lineages ['a'] go on"),
        (
            Links(
                electors=("1",),
                members=(("1", "2", "3"),),
                later_ballots=2,
                restarts=1,
                rules=Bounds(comes_back_empty=True, splits_only=True),
            ),
            "two values decided",
        ),
        (
            Links(
                electors=("1",),
                members=(GROWN,),
                later_ballots=2,
                rules=Bounds(electorate=HalfIsEnough, splits_only=True),
            ),
            "two values decided",
        ),
    ],
    ids=("follows-votes", "comes-back-empty", "half-is-enough"),
)
def test_a_broken_rule_of_the_chain_is_seen_to_make_two_histories(broken: Links, fault: str) -> None:
    found = search(Chain(broken))
    assert found.fault is not None
    assert found.fault.startswith(fault)
