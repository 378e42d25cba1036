"""The benchmark of a backbone that is talked to: real records, taken and shown by a real one."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_backbone.py"


def test_a_backbone_hears_all_peers_and_what_that_costs_is_told() -> None:
    words = ["--peers", "4", "--direct", "1", "--every-s", "0.5", "--seconds", "3", "--settle-s", "2"]
    words += ["--apart"] if len(os.sched_getaffinity(0)) > 1 else []
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["peers_seen"] == 5, "four, and the backbone"
    assert told["stored_per_s"] > 0
    assert all(told[when]["backbone"] > 0 for when in ("alone", "with_peers", "with_pages"))
    assert told["with_peers"]["daemon"] > 0
    assert told["with_peers"]["mbit_per_s"] > told["alone"]["mbit_per_s"]
