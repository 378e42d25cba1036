"""Rounds that take minutes, as large vectors on slow links do: only silence ends them."""

from collab.averaging.base import Committed
from collab.averaging.timeouts import RoundTimeouts
from tests.simulation.rounds import SimRounds, link


def test_a_round_of_minutes_commits_like_any_other() -> None:
    rounds = SimRounds([link(2), link(2), link(2, 10)], mb=30.0, rounds=1)
    rounds.run()
    assert rounds.seconds[0] > 5 * (RoundTimeouts().part_s + RoundTimeouts().finish_s)
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes
