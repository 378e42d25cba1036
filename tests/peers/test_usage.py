"""Whether somebody uses the machine: a faked one whose processors, terminals and desktop are files and values."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peers.usage import IDLE_S, Machine, Usage, cpu_s_of_family

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Fake:
    """A machine whose clock is moved by hand."""

    root: Path
    time_s: float = 10_000.0
    user_s: float = 0.0
    nice_s: float = 0.0
    own_s: tuple[float, float] = (0.0, 0.0)
    is_niced: bool = True
    is_desktop_idle: bool | None = None
    asked: list[float] = field(default_factory=list)

    def usage(self) -> Usage:
        (self.root / "proc").mkdir()
        (self.root / "dev/pts").mkdir(parents=True)
        self._write()
        return Usage(
            Machine(
                root=self.root,
                monotonic=lambda: self.time_s,
                now=lambda: self.time_s,
                own_cpu_s=lambda: self.own_s,
                is_niced=lambda: self.is_niced,
                is_desktop_idle=self._desktop,
            )
        )

    def _desktop(self) -> bool | None:
        self.asked.append(self.time_s)
        return self.is_desktop_idle

    def _write(self) -> None:
        figures = " ".join(str(round(seconds * TICKS)) for seconds in (self.user_s, self.nice_s, 0.0, self.time_s))
        (self.root / "proc/stat").write_text(f"cpu  {figures} 0 0 0 0 0 0\ncpu0 0\n")

    def go_on(self, usage: Usage, seconds: float, *, user: float = 0.0, nice: float = 0.0) -> str:
        """The newest word, after so many seconds with so many processors in use."""
        word = ""
        for _ in range(round(seconds)):
            self.time_s += 1.0
            self.user_s += user
            self.nice_s += nice
            self._write()
            word = usage.look()
        return word

    def type(self) -> None:
        """A key in a terminal."""
        terminal = self.root / "dev/pts/3"
        terminal.touch()
        os.utime(terminal, (self.time_s, self.time_s))


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_a_machine_is_idle_after_five_minutes_in_which_nothing_was_done(fake: Fake) -> None:
    usage = fake.usage()
    assert "counts as idle" in fake.go_on(usage, IDLE_S - 2)
    assert fake.go_on(usage, 3) == ""


def test_a_key_ends_that_at_once(fake: Fake) -> None:
    usage = fake.usage()
    fake.go_on(usage, IDLE_S + 2)
    fake.type()
    assert fake.go_on(usage, 1) == "somebody types at this machine"
    assert fake.go_on(usage, IDLE_S - 10) != ""
    assert fake.go_on(usage, IDLE_S + 10) == ""


def test_a_terminal_of_a_time_to_come_says_nothing_and_hides_no_key_in_another(fake: Fake) -> None:
    """As after a start with the hardware's clock in local time, which NTP then sets back by hours."""
    usage = fake.usage()
    console = fake.root / "dev/tty1"
    console.touch()
    os.utime(console, (fake.time_s + 7_200.0, fake.time_s + 7_200.0))
    assert fake.go_on(usage, IDLE_S + 2) == ""
    fake.type()
    assert fake.go_on(usage, 1) == "somebody types at this machine"


def test_work_of_others_does_and_their_niced_work_does_not(fake: Fake) -> None:
    usage = fake.usage()
    fake.go_on(usage, IDLE_S + 2, nice=3.0, user=0.2)
    assert usage.look() == ""
    assert fake.go_on(usage, 30, user=1.0) == "other programs use 1.0 processors"
    assert "a moment ago" in fake.go_on(usage, 60)


def test_our_own_work_is_not_that_of_others(fake: Fake) -> None:
    usage = fake.usage()
    fake.go_on(usage, IDLE_S + 2)
    fake.is_niced = False
    for _ in range(60):
        fake.own_s = fake.own_s[0] + 2.0, 0.0
        fake.go_on(usage, 1, user=2.0)
    assert usage.look() == ""


def test_a_desktop_in_use_says_so_and_is_not_asked_every_second(fake: Fake) -> None:
    usage = fake.usage()
    fake.is_desktop_idle = True
    fake.go_on(usage, IDLE_S + 2)
    assert usage.look() == ""
    fake.is_desktop_idle = False
    assert fake.go_on(usage, 11) == "somebody uses this machine's desktop"
    assert len(fake.asked) < IDLE_S / 10 + 5


def test_a_system_that_tells_nothing_of_its_processors_is_judged_by_its_keys(fake: Fake) -> None:
    usage = fake.usage()
    (fake.root / "proc/stat").write_text("nonsense")
    fake.time_s += IDLE_S + 1
    assert usage.look() == ""


BURN = """\
import os, sys
before = sum(os.times()[:2])
while sum(os.times()[:2]) < before + 0.5:
    os.getppid()
print("done", flush=True)
sys.stdin.readline()
"""


def test_what_a_child_has_used_is_ours_while_it_lives_and_when_it_has_ended() -> None:
    before_s = sum(cpu_s_of_family())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert sum(cpu_s_of_family()) - before_s > 0.45
        child.communicate(b"\n")
    assert sum(cpu_s_of_family()) - before_s > 0.45
