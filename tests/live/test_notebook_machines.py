"""The notebooks beside the versions that Colab and Kaggle have, with this environment's Python and PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_notebook_machines.py"


@pytest.mark.parametrize("machine", ["colab", "kaggle"])
def test_every_notebook_runs_there_and_replaces_nothing(machine: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--machine", machine, "--torch-of-here", "--folder", str(tmp_path)]
    own_home = {name: str(tmp_path / name.lower()) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "IPYTHONDIR")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own_home)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["changed"] == {}
    assert "to 2 steps" in found["joined"]
    assert list(found["seconds"]) == [f"join_{machine}", "organise_a_run", "strategies_compared"]
    assert "protobuf" in found["would_change"], "what the constraints are for"
    assert {"collab", "hivemind", "grpcio-tools"} <= set(found["came"])
