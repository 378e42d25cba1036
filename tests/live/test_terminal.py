"""A volunteer at a real terminal: asked at once though it is not the time, paused then, and gone with the window."""

import json
import os
import pty
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from tests.live.processes import LIMIT_S, LiveSwarm, live_swarm, pids_about, wait_until
from tests.live.test_swarm_life import digits

COMMAND = [sys.executable, "-c", "from peers.cli import main; main()"]


class Seat:
    """A terminal with one command in it."""

    def __init__(self, *arguments: str, home: Path) -> None:
        self.shown = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [*COMMAND, *arguments], environment(home))

    def wait_for(self, words: str) -> None:
        """Until it shows them."""
        give_up_s = time.monotonic() + LIMIT_S
        while words not in self.shown:
            assert time.monotonic() < give_up_s, f"waited for {words!r}:\n{self.shown}"
            try:
                self.shown += os.read(self._terminal, 10_000).decode(errors="replace")
            except OSError:  # it has ended
                raise AssertionError(f"it ended without {words!r}:\n{self.shown}") from None

    def type(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def close(self) -> None:
        """Its window; the command is told."""
        os.close(self._terminal)

    def code(self) -> int:
        """Of the command's end."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def environment(home: Path) -> dict[str, str]:
    """Of a user who has no other peers."""
    places = {name: str(home / name.lower()) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")}
    return {**os.environ, **places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def not_now() -> str:
    """Hours of the day that begin in six."""
    begins = datetime.now().astimezone() + timedelta(hours=6)
    return f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M}"


def sit_down(swarm: LiveSwarm, place: Path) -> Seat:
    arguments = ["--data-dir", str(place), "--when", not_now(), "--on-battery", "--quiet"]
    seat = Seat("join", str(swarm.invite), *arguments, home=swarm.directory)
    seat.wait_for("Take part?")
    assert "IP address" in seat.shown
    return seat


def test_whoever_sits_there_is_asked_at_once_and_their_word_counts(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        place = tmp_path / "elsewhere"
        seat = sit_down(swarm, place)
        seat.type("n")
        seat.wait_for("identity.key")
        assert seat.code() == 3
        assert "not joined" in seat.shown
        seat = sit_down(swarm, place)
        paused = subprocess.run(
            [*COMMAND, "pause"], env=environment(swarm.directory), capture_output=True, text=True, check=False
        )
        assert (paused.returncode, paused.stdout) == (0, ""), paused.stderr
        assert paused.stderr == f"{place}: paused: its device is free; nothing was on it yet\n"
        (place / "paused").unlink()
        seat.type("y")
        seat.wait_for("paused: it is not the time from")
        wait_until(lambda: len(pids_about(place)) == 1, "its daemon to be gone")
        told = json.loads((place / "condition.json").read_text())
        assert told["condition"] == "paused"
        seat.close()
        assert seat.code() == 0
