"""Real peers as child processes, for the live tests: start, watch, signal, and be sure that nothing stays behind."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.forked import Forked, Habits

LIMIT_S = 240.0
"""A wait that takes longer has failed. Far more than any takes: machines are slow, busy, and stand still at times."""


class Peer:
    """One peer process; its JSON lines are read as they come."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, place: str = "", habits: Habits | None = None
    ) -> None:
        """
        Args:
            place: the network namespace that it runs in; empty: here.
            habits: what it does differently from others.
        """
        self.name, self.log = name, log
        self.process = Forked(arguments, log, place, habits)
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        """For people."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{") and line.endswith("\n"):  # one that was killed while it wrote leaves half a line
                self.events.append(json.loads(line))
            else:
                self.lines.append(line)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Its events of a kind so far."""
        return [event for event in list(self.events) if event["event"] == kind]

    @property
    def epoch(self) -> int:
        """Newest epoch it has told of; -1 before the first."""
        return max((event["epoch"] for event in list(self.events) if "epoch" in event), default=-1)

    def wait_for_epoch(self, epoch: int) -> None:
        """Until it has told of ``epoch``."""
        wait_until(lambda: self.epoch >= epoch, f"{self.name} to reach epoch {epoch}", self)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Those that it has taken."""
        return self.all("EpochFinished")

    def wait_to_contribute(self) -> None:
        """Until a step has samples of its own."""
        wait_until(lambda: any(step["own_samples"] for step in self.steps), f"{self.name} to be of use", self)

    def wait_to_say(self, text: str) -> None:
        """Until ``text`` is in the end of its standard error, which another thread of it writes than its events."""
        wait_until(lambda: text in self.tail(), f"{self.name} to say {text!r}", self)

    def kill(self) -> None:
        """SIGKILL, as when the power fails."""
        self.process.kill()
        self.process.wait(LIMIT_S)

    def finish(self) -> dict[str, Any]:
        """Wait for its clean end; its summary."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert code == 0, f"{self.name} ended with code {code}:\n{self.tail()}"
        summaries = self.all("Summary")
        assert summaries, f"{self.name} was cut off while it left:\n{self.tail()}"
        return summaries[-1]

    def leave(self, signum: int = signal.SIGINT) -> dict[str, Any]:
        """Ask it to leave; its summary, which it does not tell when it is cut off after ``LEAVE_LIMIT_S``."""
        self.process.send_signal(signum)
        return self.finish()

    def tail(self) -> str:
        """The end of what it wrote to standard error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def close(self) -> None:
        """However the test ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class LiveSwarm:
    """A run directory and the peers of its run, all on loopback."""

    def __init__(self, directory: Path, run_text: str) -> None:
        self.directory = directory
        self.invite = directory / "invite.txt"
        self.peers: list[Peer] = []
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.yaml").write_text(run_text)

    def backbone(self, *arguments: str, place: str = "", habits: Habits | None = None) -> Peer:
        """Start the backbone and wait for its invite."""
        self.invite.unlink(missing_ok=True)
        host = "0.0.0.0" if place else "127.0.0.1"
        command = ["backbone", str(self.directory), "--host", host, "--invite-file", str(self.invite), "--json"]
        peer = self.start("backbone", [*command, *arguments], place, habits)
        wait_until(self.invite.exists, "the invite", peer)
        return peer

    def join(self, name: str, *arguments: str, place: str = "", habits: Habits | None = None) -> Peer:
        """Start a peer from the invite."""
        options = ["--name", name, "--data-dir", str(self.directory / name), "--json", *arguments]
        return self.start(name, ["join", str(self.invite), *options], place, habits)

    def join_as_backbone(self, name: str, *arguments: str, habits: Habits | None = None) -> Peer:
        """Start one more backbone, with an invite of its own, which is made when it comes for the first time."""
        word, data_dir = self.directory / f"{name}.invite", str(self.directory / name)
        if not word.exists():
            made = run_cli("invite", str(self.directory), "--name", name, "--role", "backbone", "--devices", "1")
            assert made.returncode == 0, made.stderr
            word.write_text(made.stdout)
        options = ["--role", "backbone", "--host", "127.0.0.1", "--name", name, "--data-dir", data_dir, "--json"]
        return self.start(name, ["join", str(word), *options, *arguments], habits=habits)

    def start(self, name: str, arguments: list[str], place: str = "", habits: Habits | None = None) -> Peer:
        """Start any command as a peer of this swarm."""
        number = len(self.peers)
        peer = Peer(name, arguments, self.directory / f"{number}-{name}.log", place, habits)
        self.peers.append(peer)
        return peer

    def status(self, place: str = "") -> dict[str, Any]:
        """What ``collab-peer status INVITE --json`` prints."""
        return dict(json.loads(run_cli("status", str(self.invite), "--json", place=place).stdout))

    def end(self) -> int:
        """Order the run's end; the epoch at which it ends, which the command puts far enough off."""
        ordered = run_cli("end", str(self.directory))
        assert ordered.returncode == 0, ordered.stderr
        told = re.search(r"ends at epoch (\d+)", ordered.stdout + ordered.stderr)
        assert told is not None
        return int(told[1])

    def checkpoint(self, epoch: int) -> Path:
        """Where the backbone keeps a checkpoint."""
        return self.directory / "backbone" / "checkpoints" / f"epoch-{epoch:08d}"


@contextmanager
def live_swarm(directory: Path, run_text: str) -> Iterator[LiveSwarm]:
    """A swarm whose processes, and their p2pd, are gone afterwards; a process that stays behind fails the test."""
    swarm = LiveSwarm(directory, run_text)
    try:
        yield swarm
    finally:
        for peer in swarm.peers:
            peer.close()
    wait_until(lambda: not processes_about(directory), f"every process about {directory} to be gone")


def processes_about(path: Path) -> list[str]:
    """Command lines of living processes that name ``path``; p2pd names its key file."""
    return list(commands_about(path).values())


def pids_about(path: Path) -> list[int]:
    """Process ids of the same."""
    return list(commands_about(path))


def commands_about(path: Path) -> dict[int, str]:
    """The same by their process ids."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile
            if str(path) in command:
                found[int(entry.name)] = command
    return found


def run_cli(*arguments: str, timeout_s: float = LIMIT_S, place: str = "") -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    with tempfile.NamedTemporaryFile(prefix="collab-errors-") as errors:
        log = Path(errors.name)
        command = Forked(list(arguments), log, place)
        killer = threading.Timer(timeout_s, command.kill)
        killer.start()
        try:
            assert command.stdout is not None
            with command.stdout as said:
                text = said.read()
            code = command.wait(timeout_s)
        finally:
            killer.cancel()
        return subprocess.CompletedProcess(list(arguments), code, text, log.read_text(errors="replace"))


def wait_until(condition: Callable[[], bool], what: str, peer: Peer | None = None, limit_s: float = LIMIT_S) -> None:
    """Poll until ``condition`` holds; fails the test after ``limit_s``, or at once when ``peer`` has died."""
    give_up_s = time.monotonic() + limit_s
    while not condition():
        tail = f"\n{peer.tail()}" if peer else ""
        assert time.monotonic() < give_up_s, f"waited {limit_s:.0f} s for {what}{tail}"
        if peer is not None and peer.process.poll() is not None and not condition():
            raise AssertionError(f"{peer.name} ended while the test waited for {what}{tail}")
        time.sleep(0.05)
