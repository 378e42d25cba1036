"""A few faults in a swarm of real peers, and the end of one that is interrupted. Needs root, as CI has it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live.processes import LIMIT_S, processes_about, wait_until

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SIZES = ("--peers", "4", "--mbit", "50", "--mb", "2")


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / "bench_faults.py"), *SIZES, "--keep", str(folder), *arguments]


@pytest.mark.live
def test_survivors_of_a_kill_and_of_a_freeze_hold_one_mean_of_all_that_they_brought(tmp_path: Path) -> None:
    arguments = ("--kinds", "kill,stop", "--seeds", "1", "--json")
    result = subprocess.run(command(tmp_path, *arguments), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout.splitlines()[-1])
    assert not content["problem"]
    assert [case["kind"] for case in content["cases"]] == ["kill", "stop"]
    for case in content["cases"]:
        assert case["survivors_equal"]
        assert case["fraction_averaged"] == pytest.approx(1.0, abs=1e-3)
        assert case["record_agrees"]
        assert case["late"] == case["hung"] == []
        assert 0 < case["struck_s"] < case["first_result_s"] <= case["step_s"]
        assert case["rounds_until_whole"] is not None
    assert [case["victim_equal"] for case in content["cases"]] == [None, True]
    assert content["undisturbed"]["unequal"] == 0
    assert not processes_about(tmp_path)


@pytest.mark.live
def test_nothing_is_left_of_a_swarm_that_is_interrupted(tmp_path: Path) -> None:
    bench = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(processes_about(tmp_path)) > len(SIZES) // 2, "the first p2pd")
        time.sleep(1.0)
        bench.send_signal(signal.SIGINT)
        assert bench.wait(LIMIT_S) == 130
    finally:
        bench.kill()
        bench.wait()
    wait_until(lambda: not processes_about(tmp_path), "every process to be gone")
    assert f"-{bench.pid}-" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
