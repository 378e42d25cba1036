"""What is checked on a GPU, on a processor: so much of it as needs no card, and that it can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "check_gpu.py"


@pytest.mark.live
def test_all_that_needs_no_card_holds_on_a_processor(tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), "--device", "cpu", "--folder", str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["setup"]["device"] == "cpu"
    checks = told["checks"]
    assert set(checks) == {"doctor", "arithmetic", "optimisers", "moving", "speeds", "swarm"}
    assert checks["arithmetic"]["apart"]["bfloat16"] > 0, "it is computed in bfloat16"
    assert checks["swarm"]["alone"]["samples_per_s"] > 0
    assert checks["swarm"]["pause"]["command_s"] > checks["swarm"]["pause"]["free_after_s"]


def test_without_a_card_it_says_so_and_a_check_that_fails_is_an_error(tmp_path: Path) -> None:
    asked = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
    assert (asked.returncode, "PyTorch sees no GPU here" in asked.stderr) == (2, True)
    broken = "import sys, runpy; from collab.training import lamb\n"
    broken += "lamb.Lamb.step = lambda *_: (_ for _ in ()).throw(RuntimeError('no step'))\n"
    broken += f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
    broken += f"sys.argv = ['check_gpu', '--device', 'cpu', '--only', 'optimisers', '--folder', {str(tmp_path)!r}]\n"
    broken += f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    asked = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert asked.returncode == 1
    assert json.loads(asked.stdout)["checks"]["optimisers"]["error"] == "RuntimeError: no step"
