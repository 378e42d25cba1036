"""The race to the same loss, in short: trainers on home links. Needs root, as CI has it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SMALL = ["--width", "32", "--layers", "1", "--rates", "0.005", "--json"]


def run(*options: str) -> dict[str, Any]:
    """Its JSON line."""
    command = [sys.executable, str(SCRIPTS / "bench_time_to_loss.py"), *SMALL, *options]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.live
def test_two_engines_train_on_the_same_links_and_are_compared_at_the_same_loss() -> None:
    links = "20/100@15,20/100@15"
    rest = ["--seconds", "12", "--phases", "128", "--batches", "32", "--delays", "0", "--pace-ms", "100"]
    content = run("--engines", "dedloc,diloco", "--links", links, *rest)
    seconds, steps = content["seconds_to_loss"], content["steps"]
    assert set(seconds) == set(content["bytes_to_loss"]) == {"dedloc", "diloco"}
    assert all(each and each > 0 for each in seconds.values()), "the target is the slowest engine's best: both reach it"
    assert content["target_loss"] == max(content["best_loss"].values()) < content["curves"]["dedloc"][0][1]
    assert max(each["own_microbatches"] for each in steps.values()) <= 120, "each takes a tenth of a second"
    assert min(each["epochs"] for each in steps.values()) > 0
    inner_steps = {name: each["own_microbatches"] / each["epochs"] for name, each in steps.items()}
    assert inner_steps["diloco"] > inner_steps["dedloc"] > 0, "a phase is four batches: it waits for fewer rounds"
    assert content["speedup"]["dedloc"] == 1.0


@pytest.mark.live
def test_dedloc_trains_on_when_two_of_four_are_killed_and_one_comes() -> None:
    links = ",".join(["20/100@15"] * 4)
    rest = ["--seconds", "40", "--phases", "256", "--batches", "64", "--churn", "0.1,0.15"]
    content = run("--engines", "dedloc", "--links", links, *rest)
    assert content["curves"]["dedloc"][-1][0] > 0.15 * 40, "steps after the two were killed"
    assert content["steps"]["dedloc"]["epochs"] > 1


@pytest.mark.live
def test_hivemind_is_measured_whether_or_not_it_takes_a_step_in_its_time() -> None:
    links = "20/100@15,20/100@15"
    content = run("--engines", "hivemind", "--links", links, "--seconds", "10", "--batches", "32", "--pace-ms", "100")
    assert content["failed"] == {}
    assert content["steps"]["hivemind"]["own_microbatches"] > 0
    assert (content["best_loss"]["hivemind"] is None) == (content["curves"]["hivemind"] == [])
