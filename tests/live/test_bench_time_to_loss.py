"""The race to the same loss, in short: three trainers on home links. Needs root, as CI has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.live
@pytest.mark.timeout(200)
def test_two_engines_train_on_the_same_links_and_are_compared_at_the_same_loss() -> None:
    options = ["--engines", "dedloc,diloco", "--links", "20/100@15,20/100@15", "--seconds", "12", "--phase", "320"]
    options += ["--batch", "32", "--width", "32", "--layers", "1", "--rates", "0.005", "--json"]
    command = [sys.executable, str(SCRIPTS / "bench_time_to_loss.py"), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=190)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout.splitlines()[-1])
    seconds, steps = content["seconds_to_loss"], content["steps"]
    assert set(seconds) == set(content["bytes_to_loss"]) == {"dedloc", "diloco"}
    assert all(0 < each < 20 for each in seconds.values()), "the slowest engine's best is the target, so both reach it"
    assert content["target_loss"] == max(content["best_loss"].values()) < content["curves"]["dedloc"][0][1]
    assert steps["diloco"]["own_microbatches"] > steps["dedloc"]["own_microbatches"] > 0, "it waits for no round"
    assert steps["dedloc"]["epochs"] > 0 < steps["diloco"]["epochs"]
    assert content["speedup"]["dedloc"] == 1.0
