#!/usr/bin/env python3
"""What a volunteer waits for: from 'collab-peer join' to the first words, the first screen and the first contribution.

    python scripts/bench_welcome.py [--joins 5] [--json]
    python scripts/bench_welcome.py --bare dist/collab-0.1.0-py3-none-any.whl [--torch torch==2.13.0] --joins 1 --json

A backbone and a volunteer train digits. Newcomers join one after the other, each on a terminal of its own (a pty), and
answer y when they are asked.

    first_words_s   until something is there to read: which run, whose, and that it gets ready
    terms_s         until what taking part means is on the screen, and the question; the run, the way in and the
                    forecast are known by then
    panel_s         until the panel is there
    contribution_s  until a step has samples of the newcomer
    cpu_s           processor time of the newcomer until the question; first_words_cpu_s: until the first words

With --bare everything that the newcomer needs is fetched into an empty folder first, and installed into an environment
that was made for it; pip's cache is not used. Three commands: make the environment, install, join.

    fetched_mb, fetching_s       wheels, and the time to find and fetch them, and to build those that come as source
    installing_s, installed_mb   from that folder; what the environment takes on the disk afterwards
"""

import argparse
import json
import os
import platform
import pty
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed, Household, await_invite, family

RUN_FILE = """\
run_id: welcome
microbatch_size: 16
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 2048}
checkpoints: {every_epochs: 1000}
"""
LIMIT_S = 180.0
MEGABYTE = 1e6
QUESTION, PANEL = "Take part?", "\u256d"
"""The last line of the terms; the corner of the panel."""


class Terminal:
    """A newcomer with a terminal of its own; what is written there, and when."""

    def __init__(self, command: list[str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        self.began_s = time.time()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
        )
        os.close(theirs)
        self._ours, self.text = ours, ""

    def wait_for(self, text: str) -> float:
        """Seconds from the command until ``text`` is there; empty: anything.

        Raises:
            BenchFailed: it does not come.
        """
        while not self.text or text not in self.text:
            if not self.read(self.began_s + LIMIT_S - time.time()):
                raise BenchFailed(f"never saw {text!r}; there was:\n{self.text}")
        return time.time() - self.began_s

    def read(self, timeout_s: float) -> bool:
        """Take what is written; whether there was anything. Who writes waits when nobody reads."""
        ready, _, _ = select.select([self._ours], [], [], max(timeout_s, 0.0))
        try:
            written = os.read(self._ours, 1 << 16) if ready else b""
        except OSError:  # the other end is closed
            written = b""
        self.text += written.decode(errors="replace")
        return bool(written)

    def answer(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, text.encode() + b"\n")

    def close(self) -> None:
        """Leave, and read on meanwhile, so that nothing blocks."""
        self.process.send_signal(signal.SIGINT)
        with suppress(BenchFailed):
            self.wait_for("no such thing is ever said")
        self.process.wait(LIMIT_S)
        os.close(self._ours)


def join(program: list[str], invite: Path, place: Path) -> dict[str, float]:
    """One newcomer."""
    terminal = Terminal([*program, "join", str(invite), "--name", "newcomer", "--data-dir", str(place)], place.parent)
    try:
        first_words_s = terminal.wait_for("")
        first_words_cpu_s = sum(family([terminal.process.pid]).values())
        terms_s = terminal.wait_for(QUESTION)
        cpu_s = sum(family([terminal.process.pid]).values())
        terminal.answer("y")
        panel_s = terminal.wait_for(PANEL)
        contribution_s = contribution(terminal, place / "metrics.jsonl") - terminal.began_s
    finally:
        terminal.close()
    return {
        "first_words_s": first_words_s, "terms_s": terms_s, "panel_s": panel_s, "contribution_s": contribution_s,
        "cpu_s": cpu_s, "first_words_cpu_s": first_words_cpu_s,
    }  # fmt: skip


def contribution(terminal: Terminal, metrics: Path) -> float:
    """When the first step with samples of its own was taken.

    Raises:
        BenchFailed: none was.
    """
    while time.time() < terminal.began_s + LIMIT_S:
        lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        steps = [json.loads(line) for line in lines if '"EpochFinished"' in line and line.endswith("}")]
        if own := [float(step["at_s"]) for step in steps if step["own_samples"]]:
            return own[0]
        terminal.read(0.05)
    raise BenchFailed(f"it never contributed; there was:\n{terminal.text}")


def prepare(folder: Path, wheel: Path, torch: str) -> tuple[list[str], dict[str, float]]:
    """A bare environment with what a volunteer installs; the program in it, and what that took."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "bare")], check=True)
    python, wheels = str(folder / "bare" / "bin" / "python"), folder / "wheels"
    quiet = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    names = [*([torch] if torch else []), str(wheel.resolve())]
    fetching_s = timed([python, "-m", "pip", "wheel", *quiet, "--wheel-dir", str(wheels), *names])
    options = [*quiet, "--no-index", "--find-links", str(wheels)]
    installing_s = timed([python, "-m", "pip", "install", *options, *names])
    return [str(folder / "bare" / "bin" / "collab-peer")], {
        "fetching_s": round(fetching_s, 1),
        "fetched_mb": round(num_bytes(wheels) / MEGABYTE),
        "installing_s": round(installing_s, 1),
        "installed_mb": round(num_bytes(folder / "bare") / MEGABYTE),
    }


def timed(command: list[str]) -> float:
    """Seconds that a command takes."""
    began_s = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - began_s


def num_bytes(folder: Path) -> int:
    """Of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[dict[str, float]]]:
    """What the environment took, and every newcomer."""
    program, bare = [sys.executable, "-m", "peers.cli"], dict[str, float]()
    if options.bare is not None:
        program, bare = prepare(folder, options.bare, options.torch)
    household = Household(folder)
    try:
        invite, backbone = household.start_backbone(RUN_FILE, "--dashboard", "none", "--json")
        await_invite(invite, backbone, LIMIT_S)
        place = ["--name", "volunteer", "--data-dir", str(folder / "volunteer"), "--json"]
        household.start(["-m", "peers.cli", "join", str(invite), *place], goodbye=signal.SIGTERM)
        time.sleep(1.0)
        return bare, [join(program, invite, folder / f"newcomer-{number}") for number in range(options.joins)]
    finally:
        household.close()


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--bare", type=Path, help="wheel of collab to install into an environment of its own")
    parser.add_argument("--torch", default="", help="requirement that is installed with it, such as a CPU build")
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="collab-welcome-") as folder:
        try:
            bare, joins = measure(options, Path(folder))
        except (BenchFailed, subprocess.CalledProcessError) as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 1
    medians = {name: round(statistics.median(one[name] for one in joins), 2) for name in joins[0]}
    for name, value in [*bare.items(), *medians.items()]:
        print(f"{name:16} {value:8.2f}")
    if options.json:
        content: dict[str, Any] = {
            "benchmark": "welcome",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "setup": {"joins": options.joins, "torch": options.torch, "is_bare": options.bare is not None},
            "machine": {
                "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version(),
                "load_before": round(load_before, 2), "load_after": round(os.getloadavg()[0], 2),
            },
            "bare": bare,
            "median": medians,
            "joins": [{name: round(value, 3) for name, value in one.items()} for one in joins],
        }  # fmt: skip
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
