"""collab-peer in processes that need not load torch and hivemind each: forked from one that has loaded them.

Loading takes seconds of both cores, of which a test with four peers has none left for what it is about. What a command
says and does when it is started as people start it is seen in the demo and in ``test_process_end.py``.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

LOADED = ["peers.cli", "hivemind", "peers.joining", "peers.backbone", "peers.auxiliary", "collab.joining"]
LOADED += ["peers.machine", "peers.dashboard.serving"]
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")  # before torch is loaded
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(LOADED)
CLONE_NEWNET = 0x40000000
"""Of Linux's sched.h."""
Habits = Callable[[], None]
"""What makes a peer differ from others; called in its process before it begins, so it can be pickled."""


class Forked:
    """One collab-peer with its arguments; behaves as ``subprocess.Popen``, as far as the tests need it."""

    def __init__(
        self, arguments: list[str], errors: Path, namespace: str = "", habits: Habits | None = None
    ) -> None:
        """
        Args:
            errors: where its standard error is written.
            namespace: of the network, by its name; empty: this process's own.
        """
        self._arguments = arguments
        errors.touch()
        reader, writer = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_be, args=(arguments, writer, str(errors), namespace, habits))
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        return code

    def send_signal(self, signum: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)


def _be(arguments: list[str], writer: Connection, errors: str, namespace: str, habits: Habits | None) -> None:
    """The whole life of the new process."""
    os.setsid()
    if namespace:
        enter(namespace)
    error = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (writer.fileno(), 1), (error, 2)):
        os.dup2(old, new)
        os.set_inheritable(new, True)
    writer.close()
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    sys.argv = ["collab-peer", *arguments]
    from peers.cli import main

    if habits is not None:
        habits()
    try:
        main()
    finally:
        sys.stdout.flush()


def enter(namespace: str) -> None:
    """Move this thread, and with it what it starts, into a network namespace that ``ip netns add`` made."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(opened, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    finally:
        os.close(opened)
