"""The benchmark of trainers a continent apart, in short. Needs root, as CI has it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def bench(*options: str) -> dict[str, Any]:
    """Its JSON."""
    command = [sys.executable, str(SCRIPTS / "bench_world.py"), "--strategy", "dts", *options, "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return content


@pytest.mark.live
def test_steps_go_on_beside_rounds_that_synchronous_training_waits_for() -> None:
    rows = {row["strategy"]: row for row in bench("--step-ms", "30", "--seconds", "5")["rates"]}
    alone, dedloc, dts = (rows[name] for name in ("alone", "dedloc", "dts"))
    assert 0 < alone["steps_per_s"] < 1.1 / 0.03, "as a machine would that computes for so long"
    assert dts["efficiency"] == pytest.approx(dts["steps_per_s"] / alone["steps_per_s"], rel=0.01)
    assert dts["over_dedloc"] == pytest.approx(dts["steps_per_s"] / dedloc["steps_per_s"], rel=0.01)
    assert dedloc["delay"] <= 1, "one microbatch may be under way when the leader calls"
    assert 5 < dts["delay"] < dts["window"], "steps of the median round, from when its window was full to its mean"


@pytest.mark.live
def test_as_many_steps_learn_with_a_delay_what_they_learn_without(tmp_path: Path) -> None:
    nearer = {**json.loads((SCRIPTS / "sites_four.json").read_text()), "mbit_per_s": 50}
    (tmp_path / "sites.json").write_text(json.dumps(nearer))
    sizes = ("--steps", "120", "--step-ms", "20", "--delay", "20", "--learning-rate", "0.2")
    content = bench("--sites", str(tmp_path / "sites.json"), *sizes)
    assert content["setup"]["sites"]["mbit_per_s"] == 50
    synchronous, ours = content["losses"]
    assert (synchronous["strategy"], ours["strategy"]) == ("dedloc", "dts")
    assert synchronous["loss"] < ours["loss"] < 0.8, "guessing has 2.3; a sixth of the steps is still on its way"
    assert ours["delay"] <= 20
