"""A peer whose program begins anew in its own place while it is paused.

What CUDA takes for a process that has used a GPU, some hundred megabytes of the card and as much of the machine's
memory, is given back when its program ends and not before. The process stays: its id, its terminal, its directory; what
it has given so far goes along.
"""

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from peers.process import EXIT_ERROR, LEAVE, announce
from peers.terminal import say_all

HANDED_ON = "COLLAB_HANDED_ON"
"""Environment variable of the new program; taken out of it before anything else is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOn:
    """From the life before to the next one of the same process."""

    invite: str
    """What was pasted, or found: its file may be gone, or the Hub not answer."""
    data_dir: str
    lock: int
    """Descriptor that holds the directory meanwhile; -1: none does."""
    asked_s: float
    """When the owner asked for the pause, by ``elapsed_s``, which goes on."""
    kind: int
    """Of the occasions, that it was for and that was told."""
    summary: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tally: dict[str, float] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)
    """Bytes, by month; on a full disk more than is kept there."""

    def let_go(self) -> Path:
        """Of the directory, for the new program to take it in the next moment."""
        if self.lock >= 0:
            with suppress(OSError):
                os.close(self.lock)
        return Path(self.data_dir)


def handed_on() -> HandedOn | None:
    """What the life before has left for this one; None: there was none. Once."""
    try:
        left = json.loads(os.environ.pop(HANDED_ON, "null"))
    except ValueError:
        return None  # nobody but ourselves writes it
    try:
        return HandedOn(**left) if left else None
    except TypeError:  # by another version, which was replaced just then
        if isinstance(left, dict) and isinstance(lock := left.get("lock"), int) and lock > 2:
            with suppress(OSError):
                os.close(lock)  # else the directory would be in use, by ourselves
        return None


def ignored_signals() -> frozenset[signal.Signals]:
    """What whoever has started this process wants it not to hear, as ``nohup`` does. Before a peer runs."""
    return frozenset(signum for signum in LEAVE if signal.getsignal(signum) is signal.SIG_IGN)


def begin_anew(life: HandedOn, ignored: frozenset[signal.Signals], *, is_to_leave: bool) -> NoReturn:
    """Become the same command again, on the main thread, whatever other threads are in the middle of.

    Where Python is gone, by an upgrade say, the process ends with an error.

    Args:
        ignored: see ``ignored_signals``.
        is_to_leave: somebody has asked for it, and the new program is to hear of that. It also hears of who asks while
            it is loaded.
    """
    os.environ[HANDED_ON] = json.dumps(asdict(life))
    signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE)  # until ``run_peer`` listens
    for signum in LEAVE:
        signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
    if is_to_leave:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # waits for what this thread becomes
    for name in os.listdir("/proc/self/fd"):  # a driver's own keep what they stand for as long as anybody has them
        if int(name) > 2:
            with suppress(OSError):
                os.set_inheritable(int(name), False)
    if life.lock >= 0:
        os.set_inheritable(life.lock, True)
    say_all(sys.stdout, sys.stderr)
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the words we were started with
    except OSError as error:
        announce(f"error: {sys.executable} cannot be started again after a pause: {error.strerror}")
        announce("  -> start this peer again with the same command")
        os._exit(EXIT_ERROR)
