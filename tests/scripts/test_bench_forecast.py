"""The forecast's benchmark, in short: random swarms, calculated and simulated."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_forecast import candidates, compare, in_grid, random_swarm, with_churn


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_forecast_comes_near_to_the_simulation(number: int) -> None:
    found = compare(random_swarm(number, seed=0))
    assert abs(found["off"]) < 0.15
    assert abs(found["step_off"]) < 0.15
    assert abs(found["calculated_off"]) < 0.15
    assert abs(found["calculated_step_off"]) < 0.15


def test_it_does_so_where_machines_come_and_go() -> None:
    found = compare(with_churn(random_swarm(9, seed=0), seed=0))
    assert abs(found["off"]) < 0.15
    assert abs(found["step_off"]) < 0.15
    assert abs(found["calculated_off"]) < 0.15
    assert abs(found["calculated_step_off"]) < 0.15
    assert found["lost_share"]["simulation"] > 0


def test_random_swarms_follow_from_their_seed() -> None:
    assert random_swarm(1, seed=0) == random_swarm(1, seed=0) != random_swarm(1, seed=1)


def test_a_grid_has_every_kind_of_candidate() -> None:
    chosen = [candidate for candidate in candidates(random_swarm(2, seed=0)) if in_grid(candidate)]
    assert len(chosen) == 16
    assert {(c.contender.strategy.name, c.codec, c.delay) for c in chosen} == {
        (name, codec, delay) for name in ("dedloc", "diloco") for codec in ("half", "auto") for delay in (0, 1)
    }
