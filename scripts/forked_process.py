"""Processes forked from one that has loaded what most peers load.

Loading takes seconds of a core for each process. Where that is not what is looked at, a machine with few cores has
nothing left for what is.
"""

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait as until_it_ends
from pathlib import Path
from typing import IO, Any, cast

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before torch is loaded
LOADED = ["hivemind", "peers.cli", "peers.joining", "peers.backbone", "peers.auxiliary", "peers.machine"]
LOADED += ["peers.dashboard.serving", "collab.joining", "collab.training.trainer", "sklearn.datasets"]
LOADED += ["torch._dynamo"]  # every optimizer does with its first step, which takes seconds of a core
LOADED += ["transformers.models.gpt2.modeling_gpt2"]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(LOADED)
CLONE_NEWNET = 0x40000000
"""Of Linux's sched.h."""
PR_SET_PDEATHSIG = 1
"""Of Linux's sys/prctl.h."""


class ForkedProcess:
    """Calls a function in a process and session of its own; as far as is needed here like ``subprocess.Popen``.

    What it writes is text, errors go to a log. It is a child of the process that it was forked from.
    """

    def __init__(
        self,
        target: Callable[..., object],
        arguments: Sequence[object],
        log: Path,
        *,
        listens: bool = False,
        place: str = "",
        goodbye: signal.Signals | None = None,
    ) -> None:
        """
        Args:
            target, arguments: can be pickled.
            listens: its input is a pipe, ``stdin`` here, and not empty.
            place: the network namespace that it runs in, by its name; empty: this process's own.
            goodbye: signal that it gets when this process has died.
        """
        log.touch()
        output, told = CONTEXT.Pipe(duplex=False)
        heard, to_say = CONTEXT.Pipe(duplex=False)
        life = _Life(target=target, arguments=arguments, log=log, place=place, goodbye=goodbye)
        self._process = CONTEXT.Process(target=_be, args=(life, heard if listens else None, told))
        self._process.start()
        self.stdout = os.fdopen(os.dup(output.fileno()), encoding="utf-8")
        self.stdin: IO[str] | None = os.fdopen(os.dup(to_say.fileno()), "w", encoding="utf-8") if listens else None
        for end in (output, told, heard, to_say):
            end.close()
        self.pid = cast(int, self._process.pid)
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code; None: it runs."""
        with self._asking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        until_it_ends([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(repr(self._process), timeout or 0.0)
        return code

    def send_signal(self, signum: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    target: Callable[..., object]
    arguments: Sequence[object]
    log: Path
    place: str
    goodbye: signal.Signals | None


def _be(life: _Life, heard: Connection | None, told: Connection) -> None:
    """The whole life of the new process."""
    gc.freeze()  # what the server has loaded: to look through it takes 0.4 s of a core
    os.setsid()
    _let_go_of_the_server()
    multiprocessing.set_start_method("fork", force=True)  # of its own children, as where it is typed
    if life.goodbye is not None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, life.goodbye)
    if life.place:
        enter(life.place)
    errors = os.open(life.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    source = os.open(os.devnull, os.O_RDONLY) if heard is None else os.dup(heard.fileno())
    for old, new in ((source, 0), (told.fileno(), 1), (errors, 2)):
        os.dup2(old, new)
        os.set_inheritable(new, True)
    for spare in (source, errors):
        os.close(spare)
    told.close()
    if heard is not None:
        heard.close()
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    try:
        life.target(*life.arguments)
    finally:
        sys.stdout.flush()


def _let_go_of_the_server() -> None:
    """The server ends when nobody holds its lifeline any more, and Python hands that to each process that it forks.

    They would keep it alive, and never be told that the program that they belong to is dead.
    """
    server: Any = vars(forkserver)["_forkserver"]
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def run_program(words: Sequence[str], folder: str, niceness: int = 0) -> None:
    """As ``python WORDS`` in ``folder``: a program's path, or ``-m`` and a module, and its arguments."""
    os.chdir(folder)
    if niceness:
        os.nice(niceness)
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def enter(namespace: str) -> None:
    """Move this thread, and with it what it starts, into a network namespace that ``ip netns add`` made.

    Raises:
        OSError: there is none of that name, or this is not root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    opened = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(opened, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    finally:
        os.close(opened)
