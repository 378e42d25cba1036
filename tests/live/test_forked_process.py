"""Processes that are forked from one that has loaded everything: whose they are, and when they end."""

import subprocess
import sys
from pathlib import Path

from tests.live.processes import processes_about, wait_until

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PROGRAM = """\
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bench_processes import Household
folder = Path(sys.argv[2])
program = folder / "sleeper.py"
program.write_text("import json, time; print(json.dumps({}), flush=True); time.sleep(600)")
household = Household(folder)
sleepers = [household.start([str(program)], goodbye=signal.SIGTERM) for _ in range(2)]
for sleeper in sleepers:
    sleeper.answer(240)
print(*[sleeper.process.pid for sleeper in sleepers], flush=True)
signal.pause()
"""


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_they_end_when_the_program_that_started_them_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(SCRIPTS), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        program.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "both to be gone")
    assert not processes_about(tmp_path)
