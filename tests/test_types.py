"""The words that every layer shares."""

from collab.types import LONGEST_ID, one_peer_id

NAME = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


def anew(text: str) -> str:
    """Another object with the same text, as each message brings one."""
    return "".join(list(text))


def test_a_peer_that_is_named_again_and_again_is_kept_once() -> None:
    first, second = anew(NAME), anew(NAME)
    assert first is not second, "else this shows nothing"
    assert one_peer_id(first) == NAME
    assert one_peer_id(first) is one_peer_id(second)


def test_what_is_too_long_for_an_id_is_passed_on_and_not_kept() -> None:
    first, second = anew("2" * (LONGEST_ID + 1)), anew("2" * (LONGEST_ID + 1))
    assert one_peer_id(first) is first
    assert one_peer_id(second) is second
