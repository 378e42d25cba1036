"""One peer as a process: signals, logging, errors in words, exit codes."""

import asyncio
import ctypes
import gc
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO, TypeVar

import uvloop

from collab.compute import workers_end
from collab.errors import CollabError
from peers.terminal import Speech, as_text, outlive_hearers

LEAVE_LIMIT_S = 4.5
"""After the first Ctrl+C or SIGTERM; preemptible machines give little more."""
ONE_DEATH_S = 1.0
"""In which SIGTERM may come again without meaning *at once*: of a parent that dies each of its threads sends the signal
that we have asked for, one after the other (``dying_with_us``)."""
WORKER_LIMIT_S = 0.5
"""For the computation that is under way at the end, and of no use to anybody any more."""
LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ADDRESSES_IN_LOGS = ("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub")
"""Libraries that log addresses of requests, which may be as good as passwords: they never do, at any level."""
WAIT = asyncio.Event.wait.__qualname__
COLLECT_S, COLLECTING = 10.0, 0.002
"""Dead rings are looked for so often, and in no more than this part of the time."""
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
"""Of glibc's ``malloc.h``: how many heaps there are, and the size from which on a buffer is apart from them."""
APART_BYTES = 128 << 10
"""What that is in glibc before anything was freed."""
EXIT_ERROR = 1
HELPERS, HELPER = 8, "collab-beside"
"""Threads in which a backbone's work blocks, and the beginning of their names."""
EXIT_DECLINED = 3
"""2 is of the command line that cannot be read."""
EXIT_AT_ONCE = 130


class Declined(CollabError):
    """The person at the terminal has said no: nothing is wrong, and nothing was done."""


Error = TypeVar("Error", bound=Exception)
Main = Callable[[asyncio.Event], Awaitable[None]]
"""Runs a peer until the event is set."""


def run_peer(main: Main) -> int:
    """Run ``main`` until it ends or a signal asks to leave; returns the exit code.

    First SIGINT, SIGTERM or SIGHUP (its terminal is gone): leave cleanly within ``LEAVE_LIMIT_S``. Second: now.
    Whoever reads what it says does not hold it up.
    """
    outlive_hearers()
    speech = Speech()
    speech.begin()
    try:
        code = _live(main, speech)
        is_over = workers_end(WORKER_LIMIT_S)
    finally:
        speech.end()
    if not is_over:
        os._exit(code)  # all is said and done; whatever a microbatch that nobody waits for would come to
    return code


def _live(main: Main, speech: Speech) -> int:
    problems: list[CollabError] = []
    try:
        uvloop.run(_supervise(main, speech))
    except* CollabError as errors:
        problems = leaves(errors)
    for signum in LEAVE:
        signal.signal(signum, signal.SIG_IGN)  # what they ask for is done, and the exit code is not theirs any more
    has_declined = bool(problems) and all(isinstance(problem, Declined) for problem in problems)
    for problem in problems:
        announce(str(problem) if has_declined else f"error: {problem}")
    return EXIT_DECLINED if has_declined else EXIT_ERROR if problems else 0


async def _supervise(main: Main, speech: Speech) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    peer = asyncio.ensure_future(main(stop))

    asked_s = -math.inf

    def on_signal(signum: signal.Signals) -> None:
        nonlocal asked_s
        if stop.is_set():
            if signum is signal.SIGHUP:  # a terminal that closes sends it, and the shell in it sends it again
                return
            if signum is signal.SIGTERM and loop.time() - asked_s < ONE_DEATH_S:
                return
            try:
                speech.end()
            finally:
                os._exit(EXIT_AT_ONCE)  # p2pd sees its control connection break, and exits too
        stop.set()
        asked_s = loop.time()
        loop.call_later(LEAVE_LIMIT_S, peer.cancel)
        announce("leaving: finishing what is under way (again to leave at once)")  # last: whatever comes of saying it

    loop.set_exception_handler(_report)
    for signum in LEAVE:
        if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(signum, on_signal, signum)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEAVE)  # a program that began anew has not heard them so far
    try:
        await peer
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong in the loop, but for waits for an event that nobody will set: a search in the directory that
    is cancelled, as at the end, leaves some (``hivemind.dht.traverse``), and Python says so when it comes upon them.
    """
    task = context.get("task")
    waits = isinstance(task, asyncio.Task) and getattr(task.get_coro(), "__qualname__", "") == WAIT
    if not waits or "exception" in context:
        loop.default_exception_handler(context)


def run_plain(command: Callable[[], object]) -> None:
    """Run a command that is no peer; an error of ours becomes words and exit code 1."""
    problems: list[CollabError] = []
    try:
        command()
    except* CollabError as errors:
        problems = leaves(errors)
    for problem in problems:
        announce(f"error: {problem}")
    if problems:
        sys.exit(EXIT_ERROR)


def dying_with_us(signal_name: str = "KILL") -> list[str]:
    """Words before a command: where util-linux can do it, it gets the signal when we die, however we do.

    "We" is the thread that starts it.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal_name, "--"] if setpriv else []


def settle_heap() -> None:
    """Leave what has been imported and built out of later garbage collections.

    One that walks through all objects of torch and its like stops the event loop for a tenth of a second, and with it
    the parts of a round. The second collection finds nothing to do: it has Python count anew. It walks through what
    has lived for long only when that has grown by a quarter since it did so last; with what it counted before the
    freeze, rings of dead objects (a stream, the error it ended with, whose traceback holds the stream) would pile up
    for hours, until there are a hundred thousand of them.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def set_up_heap() -> None:
    """Have the C library keep one heap, and large buffers out of it, where it is glibc. Before threads start.

    Each thread would have a heap of its own. And each large buffer that is freed would raise the size from which on
    buffers are apart, up to 32 MB, so that they come to lie in the heap among what stays, and leave holes in it: in a
    backbone with trainers that come and go memory grew though what was in use did not (docs/benchmarks.md, "A backbone
    for long"). Nobody waits for a heap that another thread uses: Python lets one thread run at a time.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    set_option(M_ARENA_MAX, 1)
    set_option(M_MMAP_THRESHOLD, APART_BYTES)


def start_helpers() -> None:
    """Have the threads in which work blocks (disk, Hub) there from the beginning. In the event loop.

    Else each starts when all others happen to be busy, the last ones after an hour, and what they hold looks like a
    leak (docs/benchmarks.md, "A backbone for long").
    """
    helpers, all_there = ThreadPoolExecutor(HELPERS, HELPER), threading.Barrier(HELPERS)
    asyncio.get_running_loop().set_default_executor(helpers)
    for _ in range(HELPERS):
        helpers.submit(all_there.wait)


async def keep_heap_small(every_s: float = COLLECT_S) -> None:
    """Find dead rings every few seconds, until cancelled: a stream that ended is one, with all that its error holds.

    Python does so when there are thousands of new objects: each 100 s in a backbone with eight trainers that come and
    go, and until then a megabyte is held for nothing (docs/benchmarks.md, "A backbone for long"). What was imported is
    not looked at (``settle_heap``), so that it takes milliseconds. Where it takes more of the processor it is done less
    often. What is free goes back to the system: of each burst of newcomers the C library would keep some, for ever.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)  # of glibc
    took_s = 0.0
    while True:
        await asyncio.sleep(max(every_s, took_s / COLLECTING))
        began_s = time.thread_time()
        gc.collect()
        give_back(0)
        took_s = time.thread_time() - began_s


def leaves(group: BaseExceptionGroup[Error]) -> list[Error]:
    """The errors of a group, however deeply nested."""
    found: list[Error] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


class ToStandardError(logging.StreamHandler[TextIO]):
    """Wherever that goes by then: a panel takes it over meanwhile, and shows above itself what is said."""

    stream = property(lambda _: sys.stderr, lambda *_: None)

    def format(self, record: logging.LogRecord) -> str:
        return as_text(super().format(record))


class SaysErrorsOnly(logging.Logger):
    """A library's, also where that sets its level by itself when it is imported later."""

    def setLevel(self, level: int | str) -> None:  # noqa: N802 - as logging calls it
        super().setLevel(max(logging.ERROR, logging.getLevelNamesMapping()[level] if isinstance(level, str) else level))


def configure_logging(level: str) -> None:
    """Log to standard error; hivemind's own handlers and colours are switched off when it is imported."""
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")
    layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=level.upper(), format=layout, handlers=[ToStandardError()])
    for name in ADDRESSES_IN_LOGS:
        logging.getLogger(name).__class__ = SaysErrorsOnly
    for name in (*ADDRESSES_IN_LOGS, "hivemind", "filelock"):
        logging.getLogger(name).setLevel(logging.ERROR)


def announce(line: str) -> None:
    """Say something to the person at the terminal, wherever standard output goes."""
    print(as_text(line), file=sys.stderr, flush=True)  # noqa: T201 - this is the command line
