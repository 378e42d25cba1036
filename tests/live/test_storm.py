"""A short storm over real processes: one is killed and replaced, one is stopped. Needs root, as CI has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.processes import processes_about

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SIZES = ("--peers", "3", "--links", "50", "--pace-s", "0.3", "--epoch-s", "3", "--hidden", "256")
STORM = ("--faults-per-hour", "240", "--kinds", "kill,stop", "--longest-s", "10", "--seed", "181")
PHASES = ("--warm-up-s", "5", "--baseline-minutes", "0.2", "--minutes", "0.5")


@pytest.mark.live
def test_survivors_of_a_real_storm_share_one_history_and_keep_all_their_work(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "storm.py"), *SIZES, *STORM, *PHASES, "--keep", str(tmp_path), "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout.splitlines()[-1])
    found = content["figures"]
    assert sorted(fault["kind"] for fault in content["faults"]) == ["kill", "stop"]
    assert not any(found["splits"].values())
    assert found["crashes"] == 0
    assert found["samples"]["survivors_lost"] == 0
    assert found["samples"]["survivors_that_did_not_say"] == 0
    assert found["samples"]["survivors_committed"] > 0.8 * found["samples"]["survivors_computed"]
    assert found["faults"]["all"]["never_recovered"] == 0
    assert found["peers"]["fault_free"]["contributing"] == 3
    assert not processes_about(tmp_path)
