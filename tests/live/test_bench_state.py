"""The benchmark of handing the state over: one newcomer, two donors. Needs root, as CI has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.live
def test_a_newcomer_fetches_from_all_donors_and_is_measured_against_their_links() -> None:
    sizes = ("--donors", "20,20,20", "--state-mb", "6", "--joins", "1", "--epoch-s", "3", "--rounds", "1")
    command = [sys.executable, str(SCRIPTS / "bench_state.py"), *sizes, "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout.splitlines()[-1])
    (join,) = content["joins"]
    assert join["num_bytes"][0] == pytest.approx(6e6, rel=0.1)
    assert join["optimum_s"] == pytest.approx(6e6 * 8 / 60e6, rel=0.1)
    assert 1.0 <= join["ratio"] == pytest.approx(join["seconds"] / join["optimum_s"], rel=0.01)
    assert 0 <= join["ratio_between"] <= join["ratio"]
    assert join["donors"][0] >= 2, "from several at once; one whose answer takes longer than the rest is not needed"
    assert content["rounds_s"]["alone"] > 0
