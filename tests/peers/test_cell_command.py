"""Commands that a cell starts: what it shows of them, and how they end. The programs are Python's own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peers import cell_command
from peers.cell_command import CellCommand, CommandFailed
from peers.cell_window import CellWindow
from tests.live.processes import LIMIT_S, wait_until

PYTHON = (sys.executable, "-c")
LEAVES = """
import signal, sys, time
told = []
def hear(*_):
    told.append("left")
    if {enough}: sys.exit(print(*told) or 0)
    print("heard")
signal.signal(signal.SIGINT, hear)
print("ready")
while True: time.sleep(0.02)  # a pause for good could begin just when the signal has come
"""


def command(code: str, *hidden: str) -> CellCommand:
    return CellCommand([code], hidden=hidden, program=PYTHON)


class Interrupting(CellWindow):
    """Presses the stop button when one of these lines is shown."""

    at = ("ready", "heard")

    def add(self, line: str) -> None:
        super().add(line)
        if line in self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_cell_shows_all_that_a_command_says_and_gets_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    said = command("import sys; print('a result'); print('for people', file=sys.stderr); print('another')").follow()
    assert said == "a result\nanother"
    assert sorted(capsys.readouterr().out.splitlines()) == ["a result", "another", "for people"]


def test_a_command_that_fails_fails_its_cell_with_what_it_said_last() -> None:
    with pytest.raises(CommandFailed, match="ended with code 3\nno memory left\n") as told:
        command("import sys; print('no memory left', file=sys.stderr); sys.exit(3)").follow()
    (shown,) = told.value._render_traceback_()
    assert shown.startswith("error: collab-peer")


def test_until_returns_the_line_and_the_command_goes_on() -> None:
    going_on = command("print('one'); print('it is two now'); print('three')")
    assert going_on.until("two") == "it is two now"
    assert going_on.follow() == "one\nit is two now\nthree"


def test_until_an_epoch_stops_at_a_later_one_too() -> None:
    said = ("12:00:00  epoch 1  loss 3", "it ends at epoch 9 (it is 1)", "took over epoch 7 (1 MB)", "epoch 8  loss 2")
    peer = command(f"print(*{said}, sep='\\n')")
    assert peer.until_epoch(3) == "took over epoch 7 (1 MB)"
    assert peer.until_epoch(8) == "epoch 8  loss 2"
    with pytest.raises(CommandFailed, match="ended before epoch 9"):
        peer.until_epoch(9)


def test_until_says_so_when_the_command_ends_without_the_line() -> None:
    with pytest.raises(CommandFailed, match="ended before it said 'never'\nonly this"):
        command("print('only this')").until("never")


def test_an_interrupted_cell_tells_its_command_once_and_ends_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_command, "CellWindow", Interrupting)
    before = signal.getsignal(signal.SIGINT)
    assert command(LEAVES.format(enough="True")).follow() == "ready\nleft"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_reaches_the_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_command, "CellWindow", Interrupting)
    assert command(LEAVES.format(enough="len(told) == 2")).follow() == "ready\nheard\nleft left"


def test_who_does_not_leave_when_asked_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_command, "GONE_AFTER_S", 0.2)
    deaf = command(LEAVES.format(enough="False"))
    deaf.until("ready")
    with pytest.raises(CommandFailed, match="ended by SIGKILL\nready"):
        deaf.leave()
    assert deaf.code == -signal.SIGKILL


def test_asking_a_command_to_leave_does_not_hide_that_it_had_failed() -> None:
    failed = command("import sys; print('no memory left', file=sys.stderr); sys.exit(3)")
    wait_until(lambda: failed.code is not None, "the command to have ended")
    with pytest.raises(CommandFailed, match="ended with code 3\nno memory left"):
        failed.leave()


def test_a_command_that_fails_while_it_leaves_fails_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_command, "CellWindow", Interrupting)
    with pytest.raises(CommandFailed, match="ended with code 4\nready"):
        command(LEAVES.format(enough="sys.exit(4)")).follow()


AT_ONCE = "__import__('os')._exit(130)"
UNHEARD = "(signal.signal(signal.SIGINT, signal.SIG_DFL), signal.raise_signal(signal.SIGINT))"


@pytest.mark.parametrize("how", [AT_ONCE, UNHEARD])
def test_who_leaves_at_once_or_before_it_listens_has_done_as_it_was_told(how: str) -> None:
    leaving = command(LEAVES.format(enough=how))
    leaving.until("ready")
    assert leaving.leave() == "ready"


def test_no_cell_shows_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    command("print('token hf_abc, hf_abc')", "hf_abc", "").follow()
    assert capsys.readouterr().out == "token [secret], [secret]\n"
    failing = command("import sys; print('refused hf_abc \\x1b[31m', file=sys.stderr); sys.exit(1)", "hf_abc")
    with pytest.raises(CommandFailed, match="ended with code 1\nrefused \\[secret\\]  \\[31m\n"):
        failing.follow()


def test_a_command_leaves_when_its_kernel_dies(tmp_path: Path) -> None:
    left = tmp_path / "left"
    code = (  # as each peer does, which says that it leaves, to whom there is nobody any more
        "import asyncio, pathlib, sys\n"
        "from peers.process import run_peer\n"
        "async def main(stop):\n"
        "    print('ready')\n"
        f"    async with asyncio.timeout({LIMIT_S}):\n"
        "        await stop.wait()\n"
        f"    pathlib.Path({str(left)!r}).touch()\n"
        "sys.exit(run_peer(main))\n"
    )
    kernel = (
        "import os, signal\n"
        "from peers.cell_command import CellCommand\n"
        f"CellCommand([{code!r}], program={PYTHON!r}).until('ready')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(cell_command.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", kernel], env={**os.environ, "PYTHONPATH": str(root)}, timeout=280)
    assert done.returncode == -signal.SIGKILL
    wait_until(left.exists, "the command to have heard that its kernel is gone")


# -- the window --------------------------------------------------------------------------------------------------------


def test_a_window_shows_the_newest_lines_as_text_in_one_place() -> None:
    shown: list[str] = []
    window = CellWindow(num_lines=2, show=shown.append)
    for line in ("one", "\x1b[31mtwo\x1b[0m\x07", "<b>three</b>"):
        window.add(line)
    assert shown == ["one", "one\n [31mtwo [0m", " [31mtwo [0m\n<b>three</b>"]
