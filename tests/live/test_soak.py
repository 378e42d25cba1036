"""The soak in short: a backbone among trainers that are killed, leave and come; nothing of theirs stays with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"


@pytest.mark.live
def test_who_came_and_went_leaves_no_task_and_no_descriptor_behind() -> None:
    length = ["--trainers", "3", "--minutes", "0.4", "--churn-s", "3", "--warm-up-s", "8", "--every-s", "0.5"]
    result = subprocess.run([sys.executable, str(SOAK), *length], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["killed"] + told["left"] >= 3
    assert told["arrived"] >= 3
    assert told["strangers"] >= 2
    assert told["epochs"] >= 1
    assert told["rounds"]["committed"] >= 1
    assert sum(told["reasons"].values()) == told["rounds"]["aborted"]
    assert 1 <= told["contributors"] <= 3
    assert 0 < told["cores"] < 2
    assert told["tasks"]["most"] > told["alone_before"]["tasks"], "peers have it hold something while they are there"
    assert told["descriptors"]["most"] > told["alone_before"]["descriptors"]
    assert told["is_settled"], (told["alone_before"], told["alone_after"])
    assert told["rss_mb"]["error"] is not None
    assert 0 < told["database_mb"]["last"] < 10
