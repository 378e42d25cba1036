"""One ``collab-peer`` of a notebook: started by a cell, listened to, and ended with the cell or the kernel."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from collab.errors import CollabError
from peers.cell_window import LINES, CellWindow, shown
from peers.process import EXIT_AT_ONCE, LEAVE_LIMIT_S, WORKER_LIMIT_S, dying_with_us

GONE_AFTER_S = LEAVE_LIMIT_S + WORKER_LIMIT_S + 5.0
"""A peer that was asked to leave has done so by then, on a machine that is busy, too; else it is killed."""
SAID_LAST = 6
"""Lines of a command that failed, in the message that says so."""
EPOCH = re.compile(r"(?:^|  |took over )epoch (\d+) ")
"""In a peer's line about itself; orders name epochs that are to come."""
PROGRAM = (sys.executable, "-m", "peers.cli")
LEFT = (0, EXIT_AT_ONCE, -signal.SIGINT)
"""How a command ends that was asked to: cleanly, at once, or before it had set itself up to hear of it."""


class CommandFailed(CollabError):
    """A command of a notebook ended with an error; what it said last is in the message."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: the way through our own code helps nobody."""
        return [f"error: {self}"]


@dataclass(frozen=True, slots=True)
class Line:
    """Of what a command says."""

    text: str
    is_result: bool
    """From standard output; else it is for the person who looks on."""


class CellCommand:
    """Runs beside the kernel from the start; ``follow`` and ``until`` show what it says in the cell that calls them.

    Interrupting such a cell asks the command to leave cleanly, interrupting it again at once. When the kernel dies,
    the command is asked to leave, too.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        hidden: Collection[str] = (),
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """
        Args:
            environment: beyond the kernel's own.
            hidden: texts that no cell is to show.
            program: what the words go to.
        """
        self.name = f"collab-peer {words[0]}"
        self._hidden = hidden
        self._said: list[Line] = []
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._is_told_to_leave = False
        self._process = subprocess.Popen(
            [*dying_with_us("TERM"), *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a kernel is interrupted with all its children; this one is told once, by us
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self._killer = threading.Timer(GONE_AFTER_S, self._process.kill)
        self._killer.daemon = True
        streams = ((self._process.stdout, True), (self._process.stderr, False))
        self._readers = [threading.Thread(target=self._read, args=stream, daemon=True) for stream in streams]
        self._num_open = len(self._readers)
        for thread in self._readers:
            thread.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.poll()

    def until(self, words: str) -> str:
        """Show what it says until a line has these words; returns the line.

        Raises:
            CommandFailed: it ended without them.
        """
        return self._until(lambda text: words in text, f"it said {words!r}")

    def until_epoch(self, epoch: int) -> str:
        """Show what a peer says until it tells of this epoch, or a later one; returns the line.

        Raises:
            CommandFailed: it ended before.
        """

        def is_there(text: str) -> bool:
            told = EPOCH.search(text)
            return told is not None and int(told[1]) >= epoch

        return self._until(is_there, f"epoch {epoch}")

    def follow(self, num_lines: int = LINES) -> str:
        """Show what it says until it ends, or the cell is interrupted; returns what it wrote to standard output.

        Args:
            num_lines: that the cell shows, the newest.

        Raises:
            CommandFailed: it ended with an error, or had to be killed.
        """
        with self._interruptible():
            window = CellWindow(self._hidden, num_lines)
            while self._next(window) is not None:
                pass
            code = self._end()
        if code not in (LEFT if self._is_told_to_leave else (0,)):
            raise self._failed(f"with code {code}" if code > 0 else f"by {signal.Signals(-code).name}")
        return "\n".join(line.text for line in self._said if line.is_result).strip()

    def leave(self) -> str:
        """Ask it to leave cleanly, and show what it says until it has.

        Raises:
            CommandFailed: it had ended with an error before, does so now, or had to be killed.
        """
        self._ask_to_leave()
        return self.follow()

    def _until(self, is_it: Callable[[str], bool], what: str) -> str:
        with self._interruptible():
            window = CellWindow(self._hidden)
            while (line := self._next(window)) is not None:
                if is_it(line.text):
                    return line.text
            self._end()
        raise self._failed(f"before {what}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """An interrupt goes to the command: one that were raised here could come between any two instructions."""
        before = signal.signal(signal.SIGINT, lambda *_: self._ask_to_leave())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ask_to_leave(self) -> None:
        if self._process.poll() is not None:
            return  # by itself: how it ended is its own
        if not self._is_told_to_leave:
            self._is_told_to_leave = True
            self._killer.start()
        self._process.send_signal(signal.SIGINT)

    def _next(self, window: CellWindow) -> Line | None:
        """The next line, which is shown; None: it has said all."""
        while self._num_open:
            line = self._lines.get()
            if line is not None:
                self._said.append(line)
                window.add(line.text)
                return line
            self._num_open -= 1
        return None

    def _end(self) -> int:
        """Its exit code, once it is gone."""
        code = self._process.wait()
        self._killer.cancel()
        for thread in self._readers:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code

    def _read(self, stream: IO[str], is_result: bool) -> None:
        for text in stream:
            self._lines.put(Line(text.rstrip("\n"), is_result))
        self._lines.put(None)

    def _failed(self, how: str) -> CommandFailed:
        last = [shown(line.text, self._hidden) for line in self._said if line.text.strip()][-SAID_LAST:]
        return CommandFailed("\n".join([f"{self.name} ended {how}", *last]), hint="mend that, and run the cell again")
