"""Readers of real pipes and terminals that stand still: a peer goes on, and they get what it said when they do."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 240.0

SAYS_MUCH = """\
import sys
from pathlib import Path

from collab.metrics.records import Notice
from peers.panel import Watched
from peers.process import announce, run_peer
from peers.screen import choose_screen

_, said, style, length, *ways = sys.argv


async def main(stop):
    screen = choose_screen(Watched(title="run"), as_json=style == "json")
    for number in range(400):
        screen.observe(Notice(at_s=float(number), text=f"note {number} " + "x" * int(length)))
    announce("bye")
    Path(said).write_text("all is said")
    if "waits" in ways:
        sys.stdin.readline()


raise SystemExit(run_peer(main))
"""


def wait_for(path: Path) -> None:
    """Until it is there."""
    give_up_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < give_up_s, path.name
        time.sleep(0.01)


@contextmanager
def saying_much(tmp_path: Path, style: str, length: int, *ways: str) -> Iterator["subprocess.Popen[str]"]:
    """Once it has said all of it, to a pipe that nobody has read so far."""
    command = [sys.executable, "-c", SAYS_MUCH, str(tmp_path / "said"), style, str(length), *ways]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as peer:
        try:
            wait_for(tmp_path / "said")
            yield peer
        finally:
            peer.kill()


def test_a_peer_goes_on_while_its_reader_stands_still_and_who_reads_on_misses_nothing(tmp_path: Path) -> None:
    with saying_much(tmp_path, "lines", 1000, "waits") as peer:
        said, _ = peer.communicate("\n", LIMIT_S)
    assert re.findall(r"note (\d+) ", said) == [str(number) for number in range(400)]
    assert said.endswith("x\nbye\n")
    assert peer.returncode == 0


@pytest.mark.parametrize("style", ["lines", "json"])
def test_beyond_a_megabyte_the_oldest_lines_are_missing_and_it_is_said_how_many(tmp_path: Path, style: str) -> None:
    with saying_much(tmp_path, style, 20_000, "waits") as peer:
        said, _ = peer.communicate("\n", LIMIT_S)
    *lines, last = said.splitlines()
    assert last == "bye"
    notes = [int(number) for number in re.findall(r"note (\d+) x{20000}\b", said)]
    first = notes[: next(place for place, number in enumerate(notes) if number != place)]
    gap = lines[len(first)]
    if style == "json":
        told = [json.loads(line) for line in lines]
        missed = told[len(first)]
        assert missed["event"] == "LinesMissed"
        num_missing = missed["lines"]
    else:
        assert gap.startswith("lines missing here, as nobody was reading: ")
        num_missing = int(gap.split()[-1])
    assert num_missing > 300
    assert notes == [*first, *range(len(first) + num_missing, 400)]
    assert sum(len(line) for line in lines[len(first) + 1 :]) < 1 << 20


def test_a_peer_whose_reader_stands_still_ends_all_the_same(tmp_path: Path) -> None:
    with saying_much(tmp_path, "json", 1000) as peer:
        assert peer.wait(LIMIT_S) == 0


PANEL = """\
import asyncio, signal, sys
from pathlib import Path

from collab.metrics.records import Notice
from peers.panel import LivePanel, Watched
from peers.process import announce, run_peer

place = Path(sys.argv[1])


async def main(stop):
    with LivePanel(Watched(title="run")) as panel:
        panel.observe(Notice(at_s=0.0, text="ready"))
        while not (place / "stopped").exists():
            await asyncio.sleep(0.01)
        for number in range(200):
            announce(f"line {number} " + "x" * 500)
        (place / "said").touch()
        await stop.wait()


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever holds for the tests
raise SystemExit(run_peer(main))
"""
STOP, GO_ON = b"\x13", b"\x11"
"""Ctrl+S and Ctrl+Q."""


def test_a_peer_with_a_panel_goes_on_while_its_terminal_is_stopped(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="80")
        os.execv(sys.executable, [sys.executable, "-c", PANEL, str(tmp_path)])
    try:
        read_until(terminal, b"ready")
        os.write(terminal, STOP)
        (tmp_path / "stopped").touch()
        wait_for(tmp_path / "said")
        os.write(terminal, GO_ON)
        shown = read_until(terminal, b"line 199")
        assert [int(number) for number in re.findall(rb"line (\d+)\b", shown)] == list(range(200))
        os.kill(pid, signal.SIGINT)
        read_until(terminal, b"leaving: ")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def read_until(terminal: int, words: bytes) -> bytes:
    """What it shows, with these words."""
    shown = b""
    while words not in shown:
        assert select.select([terminal], [], [], LIMIT_S)[0], words
        shown += os.read(terminal, 10_000)
    return shown


FORKED = """\
import os

from peers.process import run_peer


async def main(stop):
    print("before", flush=True)
    if not (child := os.fork()):
        print("of the child", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


raise SystemExit(run_peer(main))
"""


def test_a_process_that_a_peer_has_forked_writes_itself() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert sorted(done.stdout.splitlines()) == ["before", "of the child"]


AT_ONCE = """\
import asyncio, os, signal

from peers.process import run_peer


async def main(stop):
    os.kill(os.getpid(), signal.SIGINT)
    await stop.wait()
    print("left in a hurry")
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(1000.0)


raise SystemExit(run_peer(main))
"""


def test_who_is_asked_twice_to_leave_has_said_what_it_had_to_say() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 130
    assert done.stdout == "left in a hurry\n"
    assert done.stderr.startswith("leaving: ")


PATIENT = """\
from peers.process import run_peer


async def main(stop):
    for number in range(5):
        print(str(number) * 60_000, flush=True)


raise SystemExit(run_peer(main))
"""


def test_a_pipe_that_would_not_wait_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # of what all share that write there
    with subprocess.Popen([sys.executable, "-c", PATIENT], stdout=writer) as peer:
        os.close(writer)
        with os.fdopen(reader) as read:
            said = read.read()
        assert peer.wait(LIMIT_S) == 0
    assert said == "".join(f"{number}" * 60_000 + "\n" for number in "01234")
