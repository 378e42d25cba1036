"""Forecasts: what follows from speeds and links by hand."""

import json
import math
from typing import Any

import pytest

from collab.simulation import pacing
from collab.simulation.alternatives import changes, suggest
from collab.simulation.forecast import Forecast, Model, forecast
from collab.simulation.swarm_file import SwarmFile, parse_swarm

MODEL = Model(num_elements=5_000_000, num_samples=10_000)


def swarm_of(strategy: dict[str, Any], **homes: Any) -> SwarmFile:
    content = {
        "minutes": 10,
        "task": {"name": "none", "num_elements": 5_000_000},
        "averaging": {"compression": "half"},
        "strategies": [{"strategy": strategy}],
        "groups": [
            {"name": "backbone", "role": "backbone", "up_mbit_per_s": 10, "down_mbit_per_s": 10, "latency_ms": 0},
            {"name": "homes", "count": 4, "samples_per_s": 16, "up_mbit_per_s": 20, "latency_ms": 0, **homes},
        ],
    }
    return parse_swarm(json.dumps(content), origin="the test")


def forecast_of(strategy: dict[str, Any], **homes: Any) -> Forecast:
    swarm = swarm_of(strategy, **homes)
    return forecast(swarm, swarm.strategies[0], MODEL)


# -- microbatches ----------------------------------------------------------------------------------------------------


def test_equal_trainers_end_a_batch_together() -> None:
    found = pacing.synchronous([16.0] * 4, microbatch=8, target=320, round_s=1.0)
    assert found.batch_s == pytest.approx(5.0)
    assert found.gather_s == 0
    assert found.samples == 320
    assert found.busy_s == pytest.approx(5.0)


def test_a_batch_between_two_microbatches_is_waited_for() -> None:
    """Four equal ones report 32 samples every half second, so that a batch of 100 is there after the fourth time."""
    found = pacing.synchronous([16.0] * 4, microbatch=8, target=100, round_s=1.0)
    assert found.batch_s + found.gather_s == pytest.approx(2.0)
    assert found.samples == 128


def test_nobody_waits_for_one_that_is_twenty_times_as_slow() -> None:
    found = pacing.synchronous([16.0] * 6 + [0.8], microbatch=8, target=480, round_s=0.5)
    assert found.batch_s + found.gather_s < 6.0


def test_a_batch_of_many_microbatches_takes_as_long_as_its_samples() -> None:
    speeds = [16.0, 21.0, 9.0]
    found = pacing.synchronous(speeds, microbatch=8, target=46_000, round_s=3.0)
    assert found.batch_s == pytest.approx(1000.0, rel=0.01)


# -- strategies ------------------------------------------------------------------------------------------------------


def test_a_round_of_equal_links_takes_what_the_formula_says() -> None:
    """10 MB in float16, four links of 20 Mbit/s and one of 10: sum of w_i = 1 where 10 MB (1 + 2 w_i) / u = T."""
    found = forecast_of({"name": "dedloc", "target_batch_size": 320}, down_mbit_per_s=20)
    assert 5.0 < found.round_s < 6.5
    assert found.step_s == pytest.approx(5.0 + found.round_s)
    assert found.samples_per_s == pytest.approx(320 / found.step_s)
    assert found.compute_use == pytest.approx(5.0 / found.step_s)
    assert found.codecs == ("float16", "float16")
    assert "the round, by" in found.bottleneck


def test_with_a_delay_the_longer_of_batch_and_round_counts() -> None:
    short = forecast_of({"name": "dedloc", "target_batch_size": 64, "delay": 1})
    assert short.step_s == pytest.approx(short.round_s + 0.25)
    long = forecast_of({"name": "diloco", "target_batch_size": 6400, "delay": 1})
    assert long.step_s == pytest.approx(100.0)
    assert short.samples_per_s == long.samples_per_s == pytest.approx(64.0)


def test_a_phase_of_diloco_waits_for_its_round() -> None:
    found = forecast_of({"name": "diloco", "target_batch_size": 6400})
    assert found.step_s == pytest.approx(100.0 + found.round_s, rel=0.02)


def test_servers_links_bound_what_clients_can_bring() -> None:
    """A unit moves 20 MB each way: over the backbone's 10 Mbit/s one every 16 s."""
    found = forecast_of({"name": "vc_asgd", "shards": 100}, count=8, up_mbit_per_s=200, down_mbit_per_s=200)
    assert found.step_s == pytest.approx(16.0)
    assert "the links of 1 servers" in found.bottleneck


# -- comings and goings ----------------------------------------------------------------------------------------------


def test_who_is_there_half_of_the_time_counts_half() -> None:
    churn = {"kind": "sessions", "mean_session_s": 200, "mean_absence_s": 200}
    found = forecast_of({"name": "dts", "target_batch_size": 320}, count=40, churn=churn)
    assert 0.4 < found.samples_per_s / (40 * 16.0) < 0.6
    assert found.turnover is not None
    assert 16 < found.turnover.trainers < 24


def test_where_all_stay_nothing_comes_and_goes() -> None:
    staying = forecast_of({"name": "dedloc", "target_batch_size": 320})
    assert staying.turnover is None
    assert forecast_of({"name": "dedloc", "target_batch_size": 320}, churn={"kind": "none"}) == staying


def test_who_fetches_the_state_computes_nothing_meanwhile() -> None:
    """20 MB take 16 s at 10 Mbit/s, and 3 s before that; of sessions of 60 s exp(-19/60) = 0.73 is left."""
    churn = {"kind": "sessions", "mean_session_s": 60, "mean_absence_s": 60, "killed": 0}
    thin, fat = (
        forecast_of({"name": "dts", "target_batch_size": 320}, count=60, down_mbit_per_s=down, churn=churn).turnover
        for down in (10, 100_000)
    )
    assert thin is not None
    assert fat is not None
    assert 0.6 < thin.trainers / (thin.trainers + thin.joining) < 0.85
    assert fat.joining < thin.joining / 2


@pytest.mark.parametrize("what", ["kill", "leave"])
def test_half_a_batch_goes_with_those_who_go_and_with_the_killed_half_a_microbatch(what: str) -> None:
    """One of forty homes, a second before the end; batches of 5 s, microbatches of half a second."""
    trace = {"kind": "trace", "happenings": [{"peer": 0, "at_s": 599, "what": what}]}
    strategy = {"name": "dedloc", "target_batch_size": 3200}
    found = forecast_of(strategy, count=40, up_mbit_per_s=1000, down_mbit_per_s=1000, churn=trace)
    assert found.turnover is not None
    step_s = 5.0 + found.round_s
    seconds = 2.5 + 0.25 if what == "kill" else 2.5 * 5.0 / step_s
    assert found.turnover.lost_share == pytest.approx(seconds * 16.0 / 600 / (3200 / step_s), rel=0.02)


def test_the_mean_is_over_the_time_and_not_over_the_members() -> None:
    """For half of the time four homes, for half of it two: batches of 5 s and 10 s, on links that cost nothing."""
    trace = [{"peer": peer, "at_s": 300, "what": "leave"} for peer in (0, 1)]
    churn = {"kind": "trace", "happenings": trace}
    swarm = swarm_of({"name": "dedloc", "target_batch_size": 320}, up_mbit_per_s=1e6, down_mbit_per_s=1e6, churn=churn)
    found = forecast(swarm, swarm.strategies[0], Model(num_elements=100, num_samples=10_000))
    assert found.turnover is not None
    assert found.turnover.trainers == 3
    assert found.step_s * (1 - found.turnover.lost_share) == pytest.approx(2 / (1 / 5 + 1 / 10), rel=0.02)
    assert found.samples_per_s == pytest.approx(320 / found.step_s)


# -- what else -------------------------------------------------------------------------------------------------------


def test_leaner_encodings_and_more_backbones_make_thin_links_faster() -> None:
    swarm = swarm_of({"name": "dedloc", "target_batch_size": 320})
    before = forecast(swarm, swarm.strategies[0], MODEL)
    found = {change.what: change for change in changes(swarm, swarm.strategies[0], MODEL)}
    assert found["one more backbone"].samples_per_s > before.samples_per_s
    assert found["compression: auto"].step_s < before.step_s < found["compression: exact"].step_s


@pytest.mark.parametrize(("up", "name", "delay"), [(1000.0, "dedloc", 0), (20.0, "dedloc", 1), (0.2, "diloco", 1)])
def test_thin_links_ask_for_rounds_beside_compute_and_the_thinnest_for_few_of_them(
    up: float, name: str, delay: int
) -> None:
    swarm = swarm_of({"name": "dedloc", "target_batch_size": 640}, up_mbit_per_s=up, down_mbit_per_s=up)
    fast = swarm.groups[0].model_copy(update={"up_mbit_per_s": up, "down_mbit_per_s": up})
    found = suggest(swarm.model_copy(update={"groups": (fast, swarm.groups[1])}), MODEL)
    assert (found.candidate.contender.strategy.name, found.candidate.delay) == (name, delay)
    assert len(found.reasons) == 4
    assert all(reason.endswith(".") for reason in found.reasons)
    assert math.isfinite(found.forecast.samples_per_s)
