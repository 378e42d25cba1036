"""How fast something grows, from readings: a leak is seen, and noise is told apart from it."""

import math
import os
import random
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from soak_figures import HOUR_S, Reading, descriptors_of, figures, moved_by, rss_of, size_of, slope_of  # noqa: E402

TIMES_S = [1000.0 + 2.0 * number for number in range(900)]
"""Half an hour."""


def noisy(values: list[float], spread: float) -> list[float]:
    dice = random.Random(7)
    return [value + dice.gauss(0.0, spread) for value in values]


def reading(at_s: float, rss_bytes: float = 1e8, tasks: float = 40.0) -> Reading:
    return Reading(
        at_s=at_s,
        cpu_s=0.25 * at_s,
        daemon_cpu_s=0.5 * at_s,
        rss_bytes=rss_bytes,
        daemon_rss_bytes=6e7,
        descriptors=30.0,
        daemon_descriptors=20.0,
        tasks=tasks,
        threads=5.0,
        collections=at_s // 10,
        database_bytes=1e6,
        log_bytes=0.0,
    )


@pytest.mark.parametrize("per_hour", [-3.0, 0.0, 0.5, 40.0])
def test_the_slope_is_found_within_its_error(per_hour: float) -> None:
    values = noisy([100.0 + per_hour * at_s / HOUR_S for at_s in TIMES_S], 0.2)
    found = slope_of(TIMES_S, values)
    assert abs(found.per_hour - per_hour) < 3 * found.error
    assert found.error < 0.2


def test_noise_that_lasts_makes_the_error_larger_than_independent_noise() -> None:
    dice, drift, walk = random.Random(3), [0.0], 0.0
    for _ in TIMES_S[1:]:
        walk += dice.gauss(0.0, 0.05) - 0.01 * walk
        drift.append(walk)
    assert slope_of(TIMES_S, drift).error > 3 * slope_of(TIMES_S, noisy([0.0] * len(TIMES_S), 0.25)).error


def test_processor_time_is_told_in_cores() -> None:
    told = figures([reading(at_s) for at_s in TIMES_S])
    assert (told["cores"], told["daemon_cores"]) == (0.25, 0.5)


def test_of_too_few_readings_nobody_can_tell() -> None:
    found = slope_of([0.0, 1.0], [5.0, 5.0])
    assert math.isnan(found.per_hour)
    assert math.isinf(found.error)
    assert figures([reading(0.0), reading(1.0)])["rss_mb"]["per_hour"] is None


def test_what_grows_is_told_and_what_does_not_is_flat() -> None:
    numbered = enumerate(TIMES_S)
    found = figures([reading(at_s, 1e8 + 2e6 * at_s / HOUR_S, 40.0 + number % 3) for number, at_s in numbered])
    assert found["rss_mb"]["per_hour"] == pytest.approx(2.0, abs=0.01)
    assert found["tasks"]["first"] == found["tasks"]["last"] == 41.0
    assert found["tasks"]["most"] == 42.0
    assert abs(found["tasks"]["per_hour"]) < 2 * found["tasks"]["error"] + 1e-6
    assert found["descriptors"]["per_hour"] == 0.0


def test_a_process_that_is_gone_has_nothing(tmp_path: Path) -> None:
    assert rss_of(os.getpid()) > 1e6
    assert descriptors_of(os.getpid()) >= 3
    assert rss_of(1 << 30) == descriptors_of(1 << 30) == moved_by(1 << 30) == 0
    before = moved_by(os.getpid())
    Path(os.devnull).write_bytes(bytes(1_000_000))
    assert moved_by(os.getpid()) - before >= 500_000
    (tmp_path / "here").write_bytes(b"1234")
    assert size_of(tmp_path / "here", tmp_path / "gone") == 4
