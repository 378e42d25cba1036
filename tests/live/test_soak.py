"""The soak in short: a backbone among trainers that are killed, leave and come; nothing of theirs stays with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"
OF_EACH_PEER = 12
"""Tasks that a peer in the swarm has a backbone hold at most: its streams, each with a handler, and what it is asked."""


@pytest.mark.live
@pytest.mark.timeout(180)
def test_who_came_and_went_leaves_no_task_and_no_descriptor_behind() -> None:
    length = ["--trainers", "2", "--minutes", "0.4", "--churn-s", "3", "--warm-up-s", "6", "--every-s", "0.5"]
    result = subprocess.run([sys.executable, str(SOAK), *length], capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["killed"] + told["left"] >= 3
    assert told["strangers"] >= 2
    assert told["epochs"] >= 1
    assert told["rss_mb"]["last"] > 10
    assert told["rss_mb"]["error"] is not None
    assert 0 < told["database_mb"]["last"] < 10
    assert told["threads"]["last"] <= told["threads"]["first"] + 2
