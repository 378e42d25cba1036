"""Expected time and money of fleets, beside published figures and simulated preemptions."""

import random
import statistics
from dataclasses import replace

import pytest

from collab.fleet_cost import Fleet, compare

PUBLISHED = Fleet(
    units=2000, clients=5, at_once=2, unit_s=144.0, preemption=0.05, lost_s=300.0, price=1.0, preemptible_price=0.2
)
"""CIFAR-10 in 50 shards and 40 passes on five clients that train two units each, P5C5T2: 8 hours without preemption."""


@pytest.mark.parametrize(("p", "once_min", "again_min"), [(0.05, 50.0, 52.63), (0.20, 200.0, 250.0)])
def test_the_extra_time_is_the_published_one_and_that_of_units_preempted_again(
    p: float, once_min: float, again_min: float
) -> None:
    found = compare(replace(PUBLISHED, preemption=p))
    assert found.staying.seconds == pytest.approx(8 * 3600)
    assert found.extra_once_s / 60 == pytest.approx(once_min)
    assert found.extra_s / 60 == pytest.approx(again_min, abs=0.01)


def test_money_is_hours_of_clients_and_of_servers_that_wait_with_them() -> None:
    fleet = replace(PUBLISHED, preemption=0.2, servers=5, server_price=0.1)
    found = compare(fleet)
    assert found.staying.money == pytest.approx(8 * (5 * 1.0 + 5 * 0.1))
    hours = 8 + 250 / 60
    assert found.preemptible.money == pytest.approx(hours * (5 * 0.2 + 5 * 0.1))
    assert found.gross_saving == pytest.approx(0.8)
    assert found.net_saving == pytest.approx(1 - hours * 1.5 / (8 * 5.5))


def test_cheap_machines_that_are_taken_away_all_the_time_save_nothing() -> None:
    assert compare(replace(PUBLISHED, preemption=0.9, lost_s=600.0)).net_saving < 0


@pytest.mark.parametrize("p", [0.05, 0.20, 0.6])
def test_simulated_preemptions_take_as_long_as_expected(p: float) -> None:
    fleet, rng, runs = replace(PUBLISHED, preemption=p), random.Random(3), 1000
    expected = compare(fleet)

    def extra_s() -> float:
        return sum(fleet.lost_s for _ in range(round(fleet.turns)) for _ in attempts())

    def attempts() -> list[None]:
        failed = []
        while rng.random() < p:
            failed.append(None)
        return failed

    drawn = [extra_s() for _ in range(runs)]
    error_s = expected.spread_s / runs**0.5
    assert abs(statistics.fmean(drawn) - expected.extra_s) < 4 * error_s
    assert statistics.stdev(drawn) == pytest.approx(expected.spread_s, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"units": 0}, {"clients": 0}, {"at_once": 0}, {"unit_s": 0.0}, {"unit_s": float("nan")}, {"price": 0.0},
     {"preemption": 1.0}, {"preemption": -0.1}, {"lost_s": -1.0}, {"servers": -1}, {"server_price": float("inf")}],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0|below"):
        compare(replace(PUBLISHED, **wrong))  # type: ignore[arg-type]
