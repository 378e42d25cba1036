"""Whom to go on without after a lost round."""

import itertools
from collections.abc import Mapping, Sequence

import pytest

from collab.averaging.reports import MAX_TEXT, Reports
from collab.net.wire import Message
from collab.types import PeerId

MEMBERS = frozenset(PeerId(name) for name in "abcd")


def failed(*culprits: str) -> Message:
    return Message("failed", {"reason": "r", "text": "t", "culprits": list(culprits)})


def culprits(accusations: Mapping[str, Sequence[str]]) -> set[tuple[PeerId, ...]]:
    """The verdict on failure reports; one for each order in which they may come."""
    verdicts = set()
    for order in itertools.permutations(accusations):
        reports = Reports(MEMBERS, 1)
        for peer in order:
            reports.add(PeerId(peer), failed(*accusations[peer]))
        assert reports.is_lost
        verdicts.add(reports.verdict()[2])
    return verdicts


@pytest.mark.parametrize(
    ("accusations", "expected"),
    [
        ({"b": "a"}, "a"),  # one witness
        ({"a": "a", "b": "a", "c": "a", "d": "a"}, "a"),  # everybody, itself included
        ({"a": "bcd", "b": "a", "c": "a"}, "a"),  # cut off from the others
        ({"a": "bcd"}, "a"),  # a liar
        ({"a": "bcd", "b": "a", "c": "a", "d": "b"}, "a"),  # d lost b, which gave up because of a
        ({"c": "a", "d": "b"}, "ab"),  # two of them
        ({"c": ["stranger"]}, ""),  # nobody of this round
        ({"c": ""}, ""),
    ],
)
def test_the_few_peers_that_explain_every_failure_are_left_out(
    accusations: Mapping[str, Sequence[str]], expected: str
) -> None:
    assert culprits(accusations) == {tuple(PeerId(name) for name in expected)}


def test_of_two_that_accuse_each_other_exactly_one_goes() -> None:
    assert culprits({"a": "b", "b": "a"}) == {(PeerId("a"),)}


def test_members_that_hold_the_same_bytes_commit_them() -> None:
    reports = Reports(MEMBERS, 3)
    reports.add(PeerId("a"), Message("done", {"digests": ["x", None, None]}))
    reports.add(PeerId("b"), Message("done", {"digests": ["x", "y", None]}))
    assert not reports.is_lost
    assert reports.digests == ("x", "y", "")


def test_different_bytes_of_one_span_lose_the_round() -> None:
    reports = Reports(MEMBERS, 2)
    reports.add(PeerId("a"), Message("done", {"digests": ["x", "y"]}))
    reports.add(PeerId("b"), Message("done", {"digests": ["x", "z"]}))
    assert reports.is_lost
    reason, text, others = reports.verdict()
    assert (reason, others) == ("results_differ", ())
    assert "span 1" in text


def test_a_member_s_endless_words_are_cut() -> None:
    reports = Reports(MEMBERS, 1)
    reports.add(PeerId("a"), Message("failed", {"reason": "r" * 9999, "text": "t" * 9999, "culprits": []}))
    reason, text, _ = reports.verdict()
    assert len(reason) <= MAX_TEXT
    assert len(text) <= MAX_TEXT
