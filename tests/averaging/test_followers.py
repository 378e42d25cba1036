"""The leader freezes in the middle of a round: who would notice last goes with those who noticed first."""

import pytest

from collab.averaging.base import Committed
from collab.averaging.silence import LONGEST_S, REMEMBERED
from tests.simulation.rounds import SimRounds, Strike, link


@pytest.mark.parametrize("patient", [1, 4])  # the successor itself, or another member
def test_a_member_that_has_seen_long_silences_goes_to_the_successor_with_the_others(patient: int) -> None:
    freeze = Strike(number=1, after_s=1.0, peer=0, kind="freeze")
    rounds = SimRounds([link(25)] * 5, rounds=3, strikes=[freeze])

    def remember_long_silences() -> None:
        silence = rounds.engines[patient]._desk.silence
        for _ in range(REMEMBERED):
            silence.ended(100.0)  # the limit grows with each
        assert silence.limit_s() == LONGEST_S

    rounds.world.call_at(0.5, remember_long_silences)
    rounds.run()
    assert rounds.absent == {0}
    for index in range(1, 5):
        assert isinstance(rounds.outcomes[index, 1], Committed), f"{index}: {rounds.outcomes[index, 1]}"
    calm_s, _, struck_s = rounds.seconds[0], rounds.seconds[2], rounds.seconds[1]
    assert struck_s < calm_s + 4.0, "the usual limit of silence, and what the lost one would have done"
