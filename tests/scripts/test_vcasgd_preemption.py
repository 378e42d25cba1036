"""Simulated fleets that are preempted, beside the formula."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collab.fleet_cost import Fleet

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from vcasgd_preemption import preempted, work_through

FLEET = Fleet(units=200, clients=5, at_once=2, unit_s=100.0, preemption=0.2, lost_s=300.0, price=1, preemptible_price=1)


def test_what_places_lose_is_what_is_expected_and_more_than_published() -> None:
    found = preempted(FLEET, runs=400, seed=1)
    assert abs(found["standard_errors_off"]) < 4
    assert found["expected_min"] == pytest.approx(25.0)
    assert found["published_min"] == pytest.approx(20.0)
    assert found["lost_min"] > 22.5


def test_without_preemptions_nothing_is_lost() -> None:
    worked = work_through(replace(FLEET, preemption=0.0), random.Random(0))
    assert (worked.lost_s, worked.seconds) == (0.0, 2000.0)


def test_leases_that_do_not_last_for_the_time_out_are_no_such_fleet() -> None:
    with pytest.raises(ValueError, match="a lease of"):
        work_through(replace(FLEET, unit_s=150.0), random.Random(0))
