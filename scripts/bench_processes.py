"""The processes of a benchmark: started together, counted together, and at the end none of them is left."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_process import ForkedProcess, run_program
from netlab_links import Loopback, Network

os.environ["HIVEMIND_LOGLEVEL"] = "WARNING"  # before hivemind is loaded
LEAVE_LIMIT_S = 7.0
"""A peer that is asked to leave does so within 5 s."""
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchFailed(Exception):
    """An engine did not come up or did not answer."""


class Child:
    """A program of ours and all that it starts; its output is read line by line, its errors go to a log."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        *,
        place: str = "",
        goodbye: signal.Signals | None = None,
        niceness: int = 0,
        is_fresh: bool = False,
    ) -> None:
        """
        Args:
            words: what follows ``python`` where somebody types it: a program's path, or ``-m`` and a module, and more.
            place: network namespace that it runs in; empty: here.
            goodbye: signal that asks it to leave; None: it leaves when its input ends, with all that it started.
                Should we be killed ourselves, who watches no input is sent that signal.
            is_fresh: it loads everything itself, as when somebody types it; else it is forked from what is loaded.
        """
        self.log = log
        self.goodbye = goodbye
        self.process: subprocess.Popen[str] | ForkedProcess
        if is_fresh:
            self.process = _typed(words, log, place, goodbye, niceness)
        else:
            work = (list(words), str(log.parent), niceness)
            self.process = ForkedProcess(run_program, work, log, listens=True, place=place, goodbye=goodbye)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def say(self, line: str) -> None:
        """Write one line to its input."""
        if self.process.stdin is not None:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Its next line, which is JSON.

        Raises:
            BenchFailed: it ended, or said nothing for ``timeout_s``; the end of its log is in the message.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise BenchFailed(f"no answer within {timeout_s:.0f} s; the end of its log:\n{self.log_tail()}") from None
        if not line:
            raise BenchFailed(f"a process ended too early; the end of its log:\n{self.log_tail()}")
        return dict(json.loads(line))

    def heard(self) -> list[dict[str, Any]]:
        """What it has said and nobody has read yet, without waiting for more."""
        said: list[dict[str, Any]] = []
        while not self._lines.empty():
            line = self._lines.get()
            if not line:
                self._lines.put(line)  # its end, which is for ``answer`` to tell
                break
            said.append(json.loads(line))
        return said

    def log_tail(self) -> str:
        """The last lines it wrote to standard error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def leave(self) -> None:
        """Ask it to go."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.goodbye is not None and self.process.poll() is None:
            self.process.send_signal(self.goodbye)


def _typed(
    words: Sequence[str], log: Path, place: str, goodbye: signal.Signals | None, niceness: int
) -> "subprocess.Popen[str]":
    """A process of its own from the beginning."""
    command = ["nice", "-n", str(niceness), sys.executable, *words]
    setpriv = shutil.which("setpriv")
    if goodbye is not None and setpriv is not None:
        command = [setpriv, "--pdeathsig", goodbye.name.removeprefix("SIG"), *command]
    if place:
        command = ["ip", "netns", "exec", place, *command]
    with log.open("wb") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=log.parent,
            start_new_session=True,
            text=True,
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """A process in the process table; a pid alone may be somebody else's by now."""

    pid: int
    started_ticks: int

    @property
    def is_alive(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started_ticks and fields[0] != "Z"

    @property
    def is_stopped(self) -> bool:
        """Frozen by a signal."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started_ticks and fields[0] == "T"


def _stat(pid: int) -> list[str] | None:
    """Fields of the process table from the state (field 3 in proc(5)) on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def family(roots: Iterable[int]) -> dict[Seen, float]:
    """The processes and all their descendants, with the CPU seconds of each."""
    table = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found, wanted = dict[Seen, float](), list(roots)
    while wanted:
        pid = wanted.pop()
        fields = table.get(pid)
        if fields is not None:
            found[Seen(pid, int(fields[19]))] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S
            wanted += [child for child, other in table.items() if other is not None and int(other[1]) == pid]
    return found


def await_invite(invite: Path, backbone: Child, limit_s: float) -> None:
    """Until a backbone serves: it writes its invite then.

    Raises:
        BenchFailed: it ended, or has not written it within ``limit_s``.
    """
    give_up_s = time.monotonic() + limit_s
    while not invite.exists():
        if time.monotonic() > give_up_s or backbone.process.poll() is not None:
            raise BenchFailed(f"the backbone did not come up; the end of its log:\n{backbone.log_tail()}")
        time.sleep(0.05)


class Household:
    """The processes of one engine's run; at its end none of them nor of their descendants is alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    def start(
        self,
        words: Sequence[str],
        *,
        place: str = "",
        goodbye: signal.Signals | None = None,
        niceness: int = 0,
        is_fresh: bool = False,
    ) -> Child:
        """Start a program; see ``Child``."""
        log = self.folder / f"{len(self._children)}.log"
        child = Child(words, log, place=place, goodbye=goodbye, niceness=niceness, is_fresh=is_fresh)
        self._children.append(child)
        return child

    def start_backbone(
        self, run_text: str, *options: str, network: Network | None = None, is_fresh: bool = False
    ) -> tuple[Path, Child]:
        """Start a backbone, as the network's first peer; where its invite will be, see ``await_invite``."""
        network = network or Loopback()
        run, invite = self.folder / "run", self.folder / "invite.txt"
        run.mkdir()
        (run / "run.yaml").write_text(run_text)
        where = ["--host", network.host(0), "--invite-file", str(invite)]
        words = ["-m", "peers.cli", "backbone", str(run), *where, *options]
        return invite, self.start(words, place=network.place(0), goodbye=signal.SIGTERM, is_fresh=is_fresh)

    def cpu_s(self) -> float:
        """CPU seconds of everybody so far."""
        return sum(family(child.process.pid for child in self._children).values())

    def close(self) -> None:
        """Peers leave first, then whoever was there before them; what stays behind is killed by its own pid."""
        everybody = set(family(child.process.pid for child in self._children))
        for is_peer in (True, False):
            leaving = [child for child in self._children if (child.goodbye is None) == is_peer]
            for child in leaving:
                child.leave()
            give_up_s = time.monotonic() + LEAVE_LIMIT_S
            while time.monotonic() < give_up_s and any(child.process.poll() is None for child in leaving):
                time.sleep(0.05)
        time.sleep(0.3)  # p2pd sees the end of its peer's connection
        for seen in everybody:
            if seen.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
        for child in self._children:
            child.process.wait()
