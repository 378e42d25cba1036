"""Rounds that take minutes, as large vectors on slow links do: only silence ends them."""

import pytest

from collab.averaging.base import Committed
from collab.averaging.timeouts import FIRST, LONGEST_S
from tests.simulation.rounds import SimRounds, link

LONGEST_SILENCE_S = 2 * (2 * FIRST.alive_s + LONGEST_S)
"""On a stream of parts, whatever was measured."""


def test_a_round_of_minutes_commits_like_any_other() -> None:
    rounds = SimRounds([link(2), link(2), link(2, 10)], mb=30.0, rounds=1)
    rounds.run()
    assert rounds.seconds[0] > 4 * LONGEST_SILENCE_S
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes


def test_rounds_on_narrow_links_are_not_lost_and_use_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of 64 KiB would take an eighth of a second here, and a result may be half a minute away."""
    for module in ("collab.simulation.links", "collab.net.memory_stream"):
        monkeypatch.setattr(f"{module}.PIECE_BYTES", 4096)
    rounds = SimRounds([link(4)] * 8, mb=8.0, rounds=3)
    ratios = rounds.run()
    assert min(rounds.seconds) > LONGEST_SILENCE_S / 2
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes
    assert max(ratios) <= 1.5, ratios
