"""Ids that came as text."""

from collab.types import LONGEST_NAME, NAMES, _one_of, peer_named


def test_an_id_that_is_named_again_is_one_string_and_nobody_fills_memory_with_names() -> None:
    first = peer_named("".join(("al", "ice")))
    assert peer_named("".join(("ali", "ce"))) is first
    long = "a" * (LONGEST_NAME + 1)
    assert peer_named(long) == long
    for number in range(2 * NAMES):
        peer_named(f"stranger {number}")
    assert _one_of.cache_info().currsize == NAMES
    assert peer_named("".join(("ali", "ce"))) == "alice"
