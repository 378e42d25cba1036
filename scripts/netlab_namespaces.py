"""The namespaces of a lab, by name: made by ``netlab.py``, removed here, whatever became of their program."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from bench_processes import Seen, family

PREFIX = "collab"
"""Namespaces are called collab-<pid>-<its start time>-<peer or hub>: a pid alone may be somebody else's by now."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LabFailed(Exception):
    """The lab could not be built; the message says what to do."""


def run(*command: str) -> str:
    """Output of one command, in a session of its own, so that Ctrl+C in a terminal does not end it.

    Raises:
        LabFailed: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
    if done.returncode:
        raise LabFailed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def start_and_await(command: list[str]) -> "subprocess.Popen[str]":
    """Start a process that ends with its input, and wait for its first line.

    Raises:
        LabFailed: it ended without one.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    if process.stdout is None or not process.stdout.readline():
        process.communicate()
        raise LabFailed(f"{' '.join(command)}: ended with code {process.returncode}")
    return process


def own_tag() -> str:
    """How the names of this program's namespaces begin."""
    own = next(seen for seen in family([os.getpid()]) if seen.pid == os.getpid())
    return f"{PREFIX}-{own.pid}-{own.started_ticks}"


def require_root() -> None:
    """Raises ``LabFailed`` where no namespaces can be made."""
    if os.geteuid() != 0:
        raise LabFailed("network namespaces need root: run this with sudo; --links loopback:N works without")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise LabFailed(f"{' and '.join(missing)} not found: install the package iproute2")


def namespaces() -> list[str]:
    """Names of all labs' namespaces on this machine."""
    return [words[0] for words in map(str.split, run("ip", "netns", "list").splitlines()) if is_ours(words[0])]


def other_labs() -> int:
    """Labs of other programs that are up: two at once take each other's time."""
    return len({name.rpartition("-")[0] for name in namespaces()} - {own_tag()})


def is_ours(name: str) -> bool:
    parts = name.split("-")
    return len(parts) == 4 and parts[0] == PREFIX and parts[1].isdigit() and parts[2].isdigit()


def clean() -> list[str]:
    """Remove the namespaces of programs that are dead, with the processes in them; their names."""
    owners = {name: Seen(int(name.split("-")[1]), int(name.split("-")[2])) for name in namespaces()}
    dead = [name for name, owner in owners.items() if not owner.is_alive]
    remove(dead)
    return dead


def remove(names: Sequence[str]) -> None:
    """Kill what runs in these namespaces, and remove them; one that cannot be removed does not keep the others."""
    for name in names:
        with suppress(LabFailed):
            for pid in run("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    for name in names:
        with suppress(LabFailed):
            run("ip", "netns", "delete", name)


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt`` once; what cleans up after that is not interrupted."""

    def interrupt(*_: object) -> None:
        for signum in ENDINGS:
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in ENDINGS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
