"""A volunteer at a real terminal: asked at once though it is not the time, paused then, and gone with the window;
or with a pipe or a file in its place, which may be full.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from tests.live.processes import LIMIT_S, LiveSwarm, live_swarm, pids_about, wait_until
from tests.live.test_swarm_life import digits

COMMAND = [sys.executable, "-c", "from peers.cli import main; main()"]


class Seat:
    """A terminal with one command in it."""

    def __init__(self, *arguments: str, home: Path) -> None:
        self.shown = ""
        self._code: int | None = None
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under 'nohup'
            os.execve(sys.executable, [*COMMAND, *arguments], environment(home))
        os.set_inheritable(self._terminal, False)  # a terminal that another seat holds, too, is not closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """However the test ended."""
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        if self._terminal >= 0:
            self.close()

    def wait_for(self, words: str) -> None:
        """Until it shows them."""
        give_up_s = time.monotonic() + LIMIT_S
        while words not in self.shown:
            is_there, _, _ = select.select([self._terminal], [], [], max(give_up_s - time.monotonic(), 0.0))
            assert is_there, f"waited for {words!r}:\n{self.shown}"
            try:
                self.shown += os.read(self._terminal, 10_000).decode(errors="replace")
            except OSError:  # it has ended
                raise AssertionError(f"it ended without {words!r}:\n{self.shown}") from None

    def type(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def close(self) -> None:
        """Its window; the command is told."""
        os.close(self._terminal)
        self._terminal = -1

    def code(self) -> int:
        """Of the command's end."""
        wait_until(self._has_ended, "the command to end")
        assert self._code is not None
        return self._code

    def _has_ended(self) -> bool:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return bool(pid)


def environment(home: Path) -> dict[str, str]:
    """Of a user who has no other peers."""
    places = {name: str(home / name.lower()) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")}
    return {**os.environ, **places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def not_now() -> str:
    """Hours of the day that begin in six."""
    begins = datetime.now().astimezone() + timedelta(hours=6)
    return f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M}"


def sit_down(swarm: LiveSwarm, *arguments: str) -> Seat:
    rules = ["--when", not_now(), "--on-battery", "--quiet"]
    seat = Seat("join", str(swarm.invite), *rules, *arguments, home=swarm.directory)
    seat.wait_for("Take part?")
    assert "IP address" in seat.shown
    return seat


def test_a_no_ends_it_with_a_code_of_its_own(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        with sit_down(swarm, "--data-dir", str(tmp_path / "left")) as seat:
            seat.type("n")
            seat.wait_for("left holds ")
            assert "not joined" in seat.shown
            assert seat.code() == 3


def test_whoever_sits_there_is_asked_at_once_and_then_it_waits_for_its_time(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        place, usual = tmp_path / "elsewhere", swarm.directory / "xdg_data_home" / "collab" / "live-digits" / "peer-1"
        with sit_down(swarm, "--data-dir", str(place)) as seat:
            with sit_down(swarm) as other:
                paused = subprocess.run(
                    [*COMMAND, "pause"], env=environment(swarm.directory), capture_output=True, text=True, check=False
                )
                free = "paused: its device is free; nothing was on it yet"
                assert (paused.returncode, paused.stdout) == (0, ""), paused.stderr
                assert paused.stderr.splitlines() == [f"{place}: {free}", f"{usual}: {free}"]
                other.close()
                assert other.code() == 3
            (place / "paused").unlink()
            wait_until(lambda: told(place)["reason"].startswith("it is not the time"), "it to look around")
            seat.type("y")
            seat.wait_for("paused: it is not the time from")
            wait_until(lambda: len(pids_about(place)) == 1, "its daemon to be gone")
            assert told(place)["condition"] == "paused"
            seat.close()
            assert seat.code() == 0


def told(place: Path) -> dict[str, str]:
    return dict(json.loads((place / "condition.json").read_text()))


@pytest.mark.parametrize("is_piped", [True, False], ids=["its reader ends", "the disk is full"])
def test_a_trainer_that_nobody_hears_trains_on_and_says_goodbye(tmp_path: Path, is_piped: bool) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm, open("/dev/full", "w") as full:
        swarm.backbone()
        place = swarm.directory / "mine"
        peer = subprocess.Popen(
            [*COMMAND, "join", str(swarm.invite), "--data-dir", str(place), "--on-battery", "--plain"],
            env=environment(swarm.directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_piped else full,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            if peer.stdout is not None:
                peer.stdout.readline()
                peer.stdout.close()
            wait_until(lambda: peer.poll() is not None or steps_of(place) >= 3, "it to train")
            peer.send_signal(signal.SIGINT)
            assert peer.wait(LIMIT_S) == 0
        finally:
            peer.kill()
            peer.wait()
        assert steps_of(place) >= 3


def steps_of(place: Path) -> int:
    """Those that a peer has taken, by its own record."""
    try:
        return (place / "metrics.jsonl").read_text().count('"EpochFinished"')
    except FileNotFoundError:
        return 0


def full_pipe() -> tuple[int, int]:
    """Its two ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


def test_a_trainer_whose_reader_stands_still_steps_with_the_others_and_tells_all_when_it_is_read_on(
    tmp_path: Path,
) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        swarm.join("other")
        place = swarm.directory / "mine"
        reader, writer = full_pipe()
        peer = subprocess.Popen(
            [*COMMAND, "join", str(swarm.invite), "--data-dir", str(place), "--on-battery", "--json"],
            env=environment(swarm.directory),
            stdin=subprocess.DEVNULL,
            stdout=writer,
        )
        os.close(writer)
        try:
            wait_until(lambda: peer.poll() is not None or len(shared_steps(recorded(place))) >= 3, "it to train")
            told: list[dict[str, Any]] = []
            with os.fdopen(reader) as said:
                before = steps_of(place)
                for line in filter(str.strip, said):
                    told.append(json.loads(line))
                    if told[-1]["event"] == "EpochFinished" and len(of_kind(told, "EpochFinished")) == before + 1:
                        peer.send_signal(signal.SIGINT)
            assert peer.wait(LIMIT_S) == 0
        finally:
            peer.kill()
            peer.wait()
        assert len(shared_steps(told)) >= 3
        assert of_kind(told, "EpochFinished") == of_kind(recorded(place), "EpochFinished")
        assert told[-1]["event"] == "Summary"
        assert not of_kind(told, "LinesMissed")


def recorded(place: Path) -> list[dict[str, Any]]:
    """What a peer has noted of itself, as far as lines are whole."""
    try:
        lines = (place / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def shared_steps(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With samples of its own and of others."""
    steps = of_kind(events, "EpochFinished")
    return [step for step in steps if step["own_samples"] and step["contributors"] > 1]
