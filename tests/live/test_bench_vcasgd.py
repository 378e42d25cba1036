"""The benchmark of preemptions with real kills, in short."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PROGRAM = """\
import json, sys
sys.path.insert(0, sys.argv[1])
from vcasgd_live import Course, work_through
print(json.dumps(work_through(Course(places=2, turns=10, unit_s=0.6, preemption=0.3, waits=True, seed=3))))
"""


@pytest.mark.live
def test_every_unit_is_done_once_while_clients_are_killed_and_each_kill_costs_a_time_out() -> None:
    command = [sys.executable, "-c", PROGRAM, str(SCRIPTS)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout.splitlines()[-1])
    assert row["units"] == 20, "and work_through has seen each of them in the store"
    assert row["kills"] >= 3
    assert row["time_out_s"] >= 3 * 0.6
    waited_s = row["lost_s"] - row["joining_s"]
    assert waited_s == pytest.approx(row["kills"] * row["time_out_s"] / 2, rel=0.3), "of a place"
