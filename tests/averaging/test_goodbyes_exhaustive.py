"""Electors that leave, and leaders that have not all heard so: no two decisions. See docs/protocol.md."""

import pytest

from tests.averaging.ballot_search import Found, search
from tests.averaging.goodbye_model import Rules, State, all_goodbyes, disjoint_quorums


def searched(num_electors: int, rules: Rules) -> list[Found[State]]:
    return [search(model) for model in all_goodbyes(num_electors, rules)]


@pytest.mark.parametrize(("num_electors", "states"), [(2, 275), (3, 2165), (4, 12168), (5, 57265)])
def test_whichever_goodbyes_leaders_have_heard_no_two_values_are_decided(num_electors: int, states: int) -> None:
    found = searched(num_electors, Rules())
    assert [one.fault for one in found if one.fault is not None] == []
    assert all(one.is_complete for one in found)
    assert sum(one.states for one in found) == states


@pytest.mark.parametrize("num_electors", [1, 2, 3, 4, 5])
def test_any_two_quorums_share_an_elector_whichever_goodbyes_their_leaders_have_heard(num_electors: int) -> None:
    assert disjoint_quorums(num_electors) is None


@pytest.mark.parametrize("rules", [Rules(voters_are_excused=True), Rules(promisers_are_excused=True)])
def test_excusing_who_has_promised_or_voted_splits_three_electors(rules: Rules) -> None:
    assert any(one.fault is not None for one in searched(3, rules))
