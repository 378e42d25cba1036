"""What a probe finds out is what a newcomer says of its link when it first joins a round."""

import pytest

from tests.averaging.probe_lab import FAST, MBIT, ProbeLab, take_turns
from tests.simulation.rounds import link


@pytest.fixture(autouse=True)
def fair_links(monkeypatch: pytest.MonkeyPatch) -> None:
    take_turns(monkeypatch)


@pytest.mark.parametrize(("up", "down"), [(2, 10), (25, 25), (30, 100)])
def test_a_newcomer_tells_the_leader_what_its_probe_found_out(up: float, down: float) -> None:
    lab = ProbeLab([link(up, down, delay_ms=5)], [FAST] * 4)
    lab.run()
    measured = lab.links[-1].measured()
    assert measured["up_bytes_per_s"] == pytest.approx(up * MBIT, rel=0.1)
    assert measured["down_bytes_per_s"] == pytest.approx(down * MBIT, rel=0.1)
    assert measured["up_is_limit"]
    assert measured["down_is_limit"]


def test_a_newcomer_that_found_only_narrow_helpers_says_that_it_carries_at_least_so_much() -> None:
    lab = ProbeLab([link(200, delay_ms=5)], [link(10, delay_ms=5)] * 4)
    lab.run()
    measured = lab.links[-1].measured()
    assert measured["up_bytes_per_s"] == pytest.approx(40 * MBIT, rel=0.1)
    assert measured["down_bytes_per_s"] == pytest.approx(40 * MBIT, rel=0.1)
    assert not measured["up_is_limit"]
    assert not measured["down_is_limit"]
