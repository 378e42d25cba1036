"""What a peer does when nobody hears it any more, with real terminals, pipes and files: it goes on, says goodbye, and
what it says is no error.
"""

import io
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console

from collab.metrics.records import Notice
from peers.checkup import Finding, Outcome
from peers.doctor import line_of
from peers.panel import LivePanel, Watched
from peers.process import ToStandardError, announce
from peers.screen import LineScreen

LIMIT_S = 240.0

LEAVES = """\
import asyncio, logging, os, signal, sys
from pathlib import Path

from peers.process import announce, configure_logging, run_peer


async def main(stop):
    configure_logging("info")
    print("ready", flush=True)
    if "by itself" in sys.argv:
        os.kill(os.getpid(), signal.SIGINT)
    await stop.wait()
    for line in range(3):
        print("leaving", line, flush=True)
        announce("bye")
        logging.getLogger().info("bye")
    print("kept for the end", end="")
    Path(sys.argv[1]).write_text("left in order")


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever holds for the tests
raise SystemExit(run_peer(main))
"""

GOES_ON = """\
import asyncio, signal, sys, termios
from pathlib import Path

from collab.metrics.records import Notice
from collab.types import Role
from peers.panel import LivePanel, Watched
from peers.process import announce, run_peer


async def main(stop):
    with LivePanel(Watched(title="run", role=Role.TRAINER)) as panel:
        panel.observe(Notice(at_s=0.0, text="ready"))
        try:
            while termios.tcgetattr(0):
                await asyncio.sleep(0.05)
        except termios.error:
            pass
        for number in range(20):
            panel.observe(Notice(at_s=0.0, text=str(number)))
            print("on the terminal")
            await asyncio.sleep(0.05)
    announce("bye")
    Path(sys.argv[1]).write_text(f"left in order; asked to: {stop.is_set()}")


signal.signal(signal.SIGHUP, signal.SIG_IGN)
raise SystemExit(run_peer(main))
"""


@pytest.mark.parametrize(
    ("program", "said"), [(LEAVES, "left in order"), (GOES_ON, "left in order; asked to: False")], ids=["HUP", "no HUP"]
)
def test_a_peer_whose_terminal_is_closed_ends_as_it_should(tmp_path: Path, program: str, said: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", program, str(tmp_path / "said")])
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1000)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "said").read_text() == said


WAITS = """\
import asyncio, signal, sys

from peers.process import run_peer

signal.signal(signal.SIGHUP, signal.SIG_IGN if "nohup" in sys.argv else signal.SIG_DFL)


async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("leaving", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


raise SystemExit(run_peer(main))
"""


@pytest.mark.parametrize(
    ("before", "first", "later"),
    [([], signal.SIGHUP, signal.SIGHUP), ([signal.SIGHUP], signal.SIGTERM, signal.SIGHUP)],
    ids=["twice", "nohup"],
)
def test_a_shell_that_sends_it_twice_is_no_order_to_leave_at_once_and_nohup_is_none_to_leave(
    before: list[signal.Signals], first: signal.Signals, later: signal.Signals
) -> None:
    command = [sys.executable, "-c", WAITS, *(["nohup"] if before else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"
        for signum in (*before, first):
            peer.send_signal(signum)
        assert peer.stdout.readline() == "leaving\n"
        peer.send_signal(later)
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert peer.wait(LIMIT_S) == 0


def unheard(where: str) -> IO[str]:
    """Where what is written cannot go."""
    if where == "full":
        return open("/dev/full", "w")
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("where", ["full", "gone"])
def test_a_peer_whose_disk_is_full_or_whose_reader_has_ended_leaves_when_it_is_asked_to_and_as_it_should(
    tmp_path: Path, where: str
) -> None:
    command = [sys.executable, "-c", LEAVES, str(tmp_path / "said"), "by itself"]
    with unheard(where) as nowhere:
        code = subprocess.run(command, stdout=nowhere, stderr=nowhere, timeout=LIMIT_S).returncode
    assert (tmp_path / "said").read_text() == "left in order"
    assert code == 0


SAYS_MUCH = """\
import sys
from pathlib import Path

from peers.process import run_peer


async def main(stop):
    for _ in range(3):
        print("x" * 1_000_000, flush=True)
    Path(sys.argv[1]).write_text("left in order")


raise SystemExit(run_peer(main))
"""


def test_a_pipe_that_is_full_and_waits_for_nobody_ends_no_peer(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # of what all share that write there
    command = [sys.executable, "-c", SAYS_MUCH, str(tmp_path / "said")]
    with os.fdopen(writer, "wb") as full:
        code = subprocess.run(command, stdout=full, timeout=LIMIT_S).returncode
    os.close(reader)
    assert (tmp_path / "said").read_text() == "left in order"
    assert code == 0


MAKES_ROOM = """\
import resource

from peers.terminal import outlive_hearers

_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
outlive_hearers()
resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
for _ in range(3):
    print("more than there is room for", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print("again", flush=True)
"""


def test_a_log_that_has_room_again_is_written_on(tmp_path: Path) -> None:
    log = tmp_path / "peer.log"
    with log.open("w") as out:
        subprocess.run([sys.executable, "-c", MAKES_ROOM], stdout=out, timeout=LIMIT_S, check=True)
    assert log.read_text() == "more than again\n"


def test_a_command_that_only_answers_fails_where_its_answer_is_lost() -> None:
    answers = "from peers.process import run_plain; run_plain(lambda: print('all is well'))"
    with unheard("full") as nowhere:
        assert subprocess.run([sys.executable, "-c", answers], stdout=nowhere, timeout=LIMIT_S).returncode


OPENED_ANEW = """\
import gc, os, sys

from peers.process import run_peer


async def main(stop):
    gc.collect()
    print("still there", flush=True)


sys.stdout = os.fdopen(1, "w")
raise SystemExit(run_peer(main))
"""


def test_a_standard_output_that_was_opened_anew_stays_open() -> None:
    done = subprocess.run([sys.executable, "-c", OPENED_ANEW], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "still there\n"), done.stderr


CLOSED = """\
import sys
from pathlib import Path

from peers.panel import Watched
from peers.process import announce, run_peer
from peers.screen import choose_screen


async def main(stop):
    choose_screen(Watched(title="run"), as_json=False)
    announce("bye")
    print("bye", flush=True)
    Path(sys.argv[1]).write_text("left in order")


raise SystemExit(run_peer(main))
"""


def test_a_peer_whose_streams_were_closed_before_it_began_says_nothing_and_works(tmp_path: Path) -> None:
    script = 'exec "$0" -c "$1" "$2" >&- 2>&-'
    command = ["bash", "-c", script, sys.executable, CLOSED, str(tmp_path / "said")]
    assert subprocess.run(command, timeout=LIMIT_S).returncode == 0
    assert (tmp_path / "said").read_text() == "left in order"


HOSTILE = "it refuses us: \x1b]0;bought\x07\x1b[2J \u202egnp.exe\r\n  -> ask\tthe organiser, Zo\u00eb\u3000\u00a0!"
HARMLESS = "it refuses us: ?]0;bought??[2J ?gnp.exe?\n  -> ask\tthe organiser, Zo\u00eb\u3000\u00a0!"


def test_what_strangers_write_is_text_wherever_a_person_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    announce(HOSTILE)
    assert capsys.readouterr().err == f"{HARMLESS}\n"
    record = logging.LogRecord("a", logging.WARNING, "b.py", 1, "%s", (HOSTILE,), None)
    assert ToStandardError().format(record) == HARMLESS
    finding = Finding(check="join", outcome=Outcome.NOTE, text=HOSTILE)
    assert line_of(finding).endswith(HARMLESS)
    notice, watched, out = Notice(at_s=0.0, text=HOSTILE, is_problem=True), Watched(title="run"), io.StringIO()
    LineScreen(out, watched).observe(notice)
    panel = LivePanel(watched)
    panel.observe(notice)
    Console(file=out, width=200, force_terminal=False).print(panel.render())
    assert out.getvalue().count("?]0;bought??[2J ?gnp.exe?") == 3, "in a line, as the headline and among the notes"
    assert not set(out.getvalue()) & {"\x1b", "\x07", "\u202e", "\r"}
