"""Whether somebody uses the machine: its keyboards and terminals, and its processors."""

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

IDLE_S = 300.0
"""Without a key, and with little work of others, before the machine counts as idle: longer than it takes to read a
page, and than most builds pause."""
WINDOW_S = 30.0
"""Over which the work of others is averaged."""
BUSY_PROCESSORS = 0.5
"""On average, that other programs use: a video call or a build does, a desktop that nobody touches does not."""
ASK_S = 10.0
"""Between two questions to the session manager."""
TERMINALS = ("dev/pts/[0-9]*", "dev/tty[0-9]*")


def is_session_idle() -> bool | None:
    """Whether no session of this machine is in use, as systemd's login manager has it: a desktop tells it so."""
    if (loginctl := shutil.which("loginctl")) is None:
        return None
    try:
        asked = [loginctl, "show-session", "--property=IdleHint", "--value"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=2.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(answer.stdout.strip())


def cpu_s_of_family() -> tuple[float, float]:
    """Of this process and its children, living and ended: what libp2p's daemon does is nobody else's work."""
    own_user_s, own_system_s, ended_user_s, ended_system_s, _ = os.times()
    user_s, system_s = own_user_s + ended_user_s, own_system_s + ended_system_s
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):  # a thread, or a child, has ended meanwhile
            for child in listing.read_text(encoding="ascii").split():
                line = Path("/proc", child, "stat").read_text(encoding="utf-8", errors="replace")
                behind_name = line.rpartition(")")[2].split()
                user_s += int(behind_name[11]) * tick_s
                system_s += int(behind_name[12]) * tick_s
    return user_s, system_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is read of the machine."""

    root: Path = Path("/")
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    own_cpu_s: Callable[[], tuple[float, float]] = cpu_s_of_family
    """Seconds of processors that this process and those that it has started used for themselves, and for the system."""
    is_niced: Callable[[], bool] = lambda: os.getpriority(os.PRIO_PROCESS, 0) > 0
    """Whether it lets others go first."""
    is_desktop_idle: Callable[[], bool | None] = is_session_idle
    """By the session manager; None: it does not say."""


class Usage:
    """Looked at every second or so; says why the machine is not idle."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._seen: deque[tuple[float, float]] = deque()
        """Moments, and the seconds of processors that others had used by then."""
        self._busy_s = self._machine.monotonic()
        """When the machine was last in use; a peer that has just begun waits, too."""
        self._asked_s, self._is_idle_there = -ASK_S, True

    def look(self) -> str:
        """Why the machine is not idle; empty: it is."""
        now_s = self._machine.monotonic()
        reason = self._in_use(now_s)
        if reason:
            self._busy_s = now_s
            return reason
        left_s = self._busy_s + IDLE_S - now_s
        return f"the machine was in use a moment ago; it counts as idle in {left_s / 60:.0f} min" if left_s > 0 else ""

    def _in_use(self, now_s: float) -> str:
        if (processors := self._others(now_s)) > BUSY_PROCESSORS:
            return f"other programs use {processors:.1f} processors"
        if self._is_typing():
            return "somebody types at this machine"
        if now_s - self._asked_s >= ASK_S:
            self._asked_s, self._is_idle_there = now_s, self._machine.is_desktop_idle() is not False
        return "" if self._is_idle_there else "somebody uses this machine's desktop"

    def _others(self, now_s: float) -> float:
        """Processors that other programs have used lately, on average."""
        used_s = self._used_s()
        if used_s is None:
            return 0.0
        self._seen.append((now_s, used_s))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        (before_s, before), (_, after) = self._seen[0], self._seen[-1]
        return max(after - before, 0.0) / (now_s - before_s) if now_s - before_s >= WINDOW_S / 2 else 0.0

    def _used_s(self) -> float | None:
        """Seconds that the processors have worked for others; None: this system does not say.

        A peer that gives way is niced, and its daemon with it; what others have niced is in nobody's way either.
        """
        try:
            fields = (self._machine.root / "proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
            user, nice, system = (int(field) for field in fields[1:4])
        except (OSError, ValueError):
            return None
        own_user_s, own_system_s = self._machine.own_cpu_s()
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        if self._machine.is_niced():
            return (user + system) * tick_s - own_system_s
        return (user + nice + system) * tick_s - own_user_s - own_system_s

    def _is_typing(self) -> bool:
        """Whether a terminal was read from lately. One of a time to come says nothing: the clock was set back since."""
        for pattern in TERMINALS:
            for terminal in self._machine.root.glob(pattern):
                with suppress(OSError):  # it has gone meanwhile
                    read_at = terminal.stat().st_atime
                    if 0.0 <= self._machine.now() - read_at < IDLE_S:
                        return True
        return False
