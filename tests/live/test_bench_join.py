"""The benchmark of joining: a newcomer's way from its command to a step, in parts."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_a_newcomer_contributes_and_its_way_there_is_told_in_parts() -> None:
    command = [sys.executable, str(SCRIPTS / "bench_join.py"), "--parameters", "1e4", "--joins", "1", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    join = json.loads(result.stdout.splitlines()[-1])["joins"][0]
    order = ("reach_decided_after_s", "state_after_s", "first_microbatch_after_s", "total_s")
    moments = [join[name] for name in order]
    assert moments == sorted(moments)
    assert min(join["imports_s"], join["transfer_s"], join["batch_s"]) > 0
    assert join["contributors"] >= 2, "its step is one with others"
