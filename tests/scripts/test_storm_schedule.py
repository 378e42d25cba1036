"""Storms are as random as they say, repeat with their seed, and never strike a majority."""

import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from storm_schedule import REPLACED_WITHIN_S, SHORTEST_S, Forecast, Kind, schedule, struck_at  # noqa: E402

HOUR_S = 3600.0


def forecast(seed: int = 0, **changes) -> Forecast:
    return Forecast(**{"seed": seed, "peers": 8, "faults_per_hour": 120.0, "seconds": HOUR_S, **changes})


def test_equal_forecasts_give_equal_storms_and_other_seeds_other_ones() -> None:
    assert schedule(forecast(1)) == schedule(forecast(1))
    assert schedule(forecast(1)) != schedule(forecast(2))


def test_faults_come_at_the_given_rate_with_the_spread_of_a_poisson_process() -> None:
    counts = [len(schedule(forecast(seed, peers=200))) for seed in range(200)]
    assert statistics.mean(counts) == pytest.approx(120, abs=3 * (120 / 200) ** 0.5)
    assert statistics.variance(counts) == pytest.approx(120, rel=0.3)


def test_gaps_between_faults_are_exponential() -> None:
    storms = [schedule(forecast(seed, peers=200)) for seed in range(50)]
    gaps_s = [late.at_s - early.at_s for storm in storms for early, late in pairwise(storm)]
    shares = [sum(gap > quantile for gap in gaps_s) / len(gaps_s) for quantile in (10.0, 30.0, 60.0)]
    assert shares == pytest.approx([0.717, 0.368, 0.135], abs=0.03)  # exp(-t / 30 s)


def test_every_kind_and_every_slot_is_as_likely_as_the_others() -> None:
    storms = [schedule(forecast(seed, peers=32)) for seed in range(50)]
    faults = [fault for storm in storms for fault in storm]
    kinds = Counter(fault.kind for fault in faults)
    assert set(kinds) == {Kind.KILL, Kind.STOP, Kind.PARTITION, Kind.SLOW}
    assert min(kinds.values()) > 0.9 * len(faults) / 4
    slots = Counter(slot for fault in faults for slot in fault.slots)
    assert set(slots) == set(range(32))
    assert min(slots.values()) > 0.7 * statistics.mean(slots.values())


@pytest.mark.parametrize("peers", [3, 4, 8, 33])
def test_at_most_a_minority_is_struck_and_nobody_twice_at_once(peers: int) -> None:
    for seed in range(3):
        storm = schedule(forecast(seed, peers=peers, faults_per_hour=1000.0))
        for number, fault in enumerate(storm):
            struck = struck_at(storm[:number], fault.at_s)
            assert not struck & set(fault.slots)
            assert len(struck) + len(fault.slots) <= (peers - 1) // 2


def test_one_partition_at_a_time_with_at_most_the_peers_allowed() -> None:
    storm = schedule(forecast(3, kinds=(Kind.PARTITION,), faults_per_hour=1000.0, max_cut=2))
    assert len(storm) > 30
    assert all(early.over_s <= late.at_s for early, late in pairwise(storm))
    assert {len(fault.slots) for fault in storm} == {1, 2}


def test_the_backbone_is_struck_only_when_asked_for() -> None:
    assert not any(8 in fault.slots for seed in range(20) for fault in schedule(forecast(seed)))
    assert any(8 in fault.slots for fault in schedule(forecast(0, strikes_backbone=True)))


def test_durations_are_within_their_bounds_and_no_fault_begins_after_the_end() -> None:
    for fault in schedule(forecast(5, faults_per_hour=1000.0, longest_s=20.0)):
        shortest_s, longest_s = REPLACED_WITHIN_S if fault.kind is Kind.KILL else (SHORTEST_S[fault.kind], 20.0)
        assert shortest_s <= fault.duration_s <= longest_s
        assert 0 <= fault.at_s < HOUR_S


def test_a_storm_without_faults_is_calm() -> None:
    assert schedule(forecast(faults_per_hour=0.0)) == ()


@pytest.mark.parametrize(
    "impossible", [{"peers": 2}, {"kinds": ()}, {"faults_per_hour": -1.0}, {"longest_s": 1.0}, {"max_struck": 0}]
)
def test_an_impossible_forecast_is_refused(impossible) -> None:
    with pytest.raises(ValueError):
        forecast(**impossible)
