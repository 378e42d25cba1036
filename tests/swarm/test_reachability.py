"""The verdict on how others reach us: whose answers count, and what they come to."""

import itertools

import pytest

from collab.swarm.reachability import Answer, Verdict, decide
from collab.types import PeerId, Reachability

OWN, ROUTER, PUBLIC = "192.168.1.5", "10.0.0.1", "8.8.4.4"
"""An interface of ours, a router inside a larger private network, and an address of the open internet."""


def answer(helper: str, host: str, *, is_reached: bool) -> Answer:
    return Answer(helper=PeerId(helper), host=host, is_reached=is_reached)


def verdict(*answers: Answer, trusted: str = "", own: str = OWN) -> Verdict:
    names = [PeerId(name) for name in trusted]
    return decide(answers, own_hosts={own, "127.0.0.1"}, port=4000, trusted=names, num_asked=len(answers))


@pytest.mark.parametrize("is_reached", [True, False])
def test_one_helper_alone_is_believed(is_reached: bool) -> None:
    found = verdict(answer("a", PUBLIC, is_reached=is_reached))
    assert found.reach is (Reachability.DIRECT if is_reached else Reachability.CLIENT)
    assert found.host == PUBLIC
    assert "4000" in found.text


def test_nobody_to_ask_is_client_mode_and_says_so() -> None:
    found = verdict()
    assert found.reach is Reachability.CLIENT
    assert "no peer could try" in found.text
    assert "--reach direct" in found.hint


def test_one_liar_among_three_decides_nothing_whoever_it_is() -> None:
    for liar, truth in itertools.product("abc", (True, False)):
        answers = [answer(name, PUBLIC, is_reached=truth != (name == liar)) for name in "abc"]
        for trusted in ("", "a", "b", "c"):
            assert (verdict(*answers, trusted=trusted).reach is Reachability.DIRECT) == truth


def test_of_two_that_differ_the_one_in_the_invite_is_believed_and_without_one_nobody_is_told_to_dial_us() -> None:
    yes, no = answer("a", PUBLIC, is_reached=True), answer("b", PUBLIC, is_reached=False)
    assert verdict(yes, no, trusted="a").reach is Reachability.DIRECT
    assert verdict(yes, no, trusted="b").reach is Reachability.CLIENT
    assert verdict(yes, no).reach is Reachability.CLIENT
    assert verdict(yes, no, trusted="ab").reach is Reachability.CLIENT


@pytest.mark.parametrize(("near", "far"), [(OWN, PUBLIC), (OWN, ROUTER), (ROUTER, PUBLIC)])
def test_neighbours_behind_our_router_do_not_outvote_who_sees_us_from_outside(near: str, far: str) -> None:
    neighbours = [answer(name, near, is_reached=True) for name in "abc"]
    found = verdict(*neighbours, answer("d", far, is_reached=False))
    assert found.reach is Reachability.CLIENT
    assert found.host == far
    assert (found.num_answered, found.num_reached) == (4, 3)
    assert "0 of 1" in found.text


def test_a_machine_with_a_public_address_of_its_own_is_announced_as_it_is() -> None:
    found = verdict(answer("a", PUBLIC, is_reached=True), own=PUBLIC)
    assert found.reach is Reachability.DIRECT
    assert found.is_announced


def test_a_port_that_a_router_passes_on_must_be_announced_where_others_see_it() -> None:
    found = verdict(answer("a", PUBLIC, is_reached=True), answer("b", OWN, is_reached=True))
    assert (found.reach, found.host, found.port, found.is_announced) == (Reachability.DIRECT, PUBLIC, 4000, False)


def test_most_of_those_that_reached_us_say_where_we_are() -> None:
    elsewhere = "8.8.8.8"
    found = verdict(
        answer("liar", elsewhere, is_reached=True),
        answer("b", PUBLIC, is_reached=True),
        answer("c", PUBLIC, is_reached=True),
    )
    assert found.host == PUBLIC


def test_the_order_of_answers_changes_nothing() -> None:
    answers = [
        answer("a", PUBLIC, is_reached=True),
        answer("b", "8.8.8.8", is_reached=True),
        answer("c", ROUTER, is_reached=False),
        answer("d", OWN, is_reached=True),
    ]
    assert len({verdict(*order) for order in itertools.permutations(answers)}) == 1


def test_every_verdict_that_is_not_direct_has_a_next_step() -> None:
    for answers in ([], [answer("a", PUBLIC, is_reached=False)], [answer("a", OWN, is_reached=False)]):
        found = verdict(*answers)
        assert found.reach is not Reachability.DIRECT
        assert "--port" in found.hint
