"""What a peer says on a terminal, or where one should be.

It may have nowhere to go: the terminal or the program behind a pipe goes away, a disk fills up. Its reader may stand
still. And it may hold what strangers have written, which no terminal is to obey.
"""

import errno
import io
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from peers.backlog import Backlog

GONE = (errno.EIO, errno.EPIPE)
"""Of a terminal that is closed, and of a pipe whose reader has ended: neither comes back."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of a file that takes no more: until somebody makes room."""
LAYOUT = "\n\t\u00a0\u3000"
"""What Python does not call printable, and a terminal may obey: new lines, and spaces of other scripts."""
HEARD_LIMIT_S = 1.0
"""At the end, for a reader that stands still; one that reads takes all there is at once."""
LINE_BYTES = 1 << 20
"""Lines so long are written at once, and are missing as a whole or not at all."""


def as_text(words: str) -> str:
    """Without what a terminal would obey; lines stay lines."""
    return "".join(letter if letter.isprintable() or letter in LAYOUT else "?" for letter in words)


def _in_words(num_lines: int) -> str:
    return f"lines missing here, as nobody was reading: {num_lines}"


class _Output(io.FileIO):
    """What cannot be written for want of a hearer or of room is left unsaid, instead of being an error each time."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream
        """Which may close the file when nobody has it any more."""
        self.backlog: Backlog | None = None
        """Takes what is written; None: the file does, when it can."""
        self.gap_words: Callable[[int], str] = _in_words
        """Of so many lines that are missing."""
        self._is_in_line = False

    def write(self, data: Any, /) -> int:
        if self.backlog is not None and self.backlog.take(self, bytes(data)):
            return len(data)
        return self._put(data) or len(data)  # nothing: another program has it wait for nobody, and it is full

    def put(self, data: bytes) -> None:
        """Waits until all is written. As a ``Place`` of its backlog."""
        rest = memoryview(data)
        with suppress(OSError, ValueError):  # ValueError: somebody has closed the stream
            while rest:
                if not (taken := self._put(rest)):
                    room = select.poll()
                    room.register(self.fileno(), select.POLLOUT)
                    room.poll()
                rest = rest[taken:]
        self._is_in_line = not data.endswith(b"\n")

    def gap(self, num_lines: int) -> bytes:
        line_end = "\n" if self._is_in_line else ""
        return f"{line_end}{self.gap_words(num_lines)}\n".encode(self._stream.encoding, "replace")

    def _put(self, data: Any) -> int:
        """Bytes that the file took, or that nobody can; 0: it takes none just now, and would not wait."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno in FULL:
                return len(data)
            if error.errno not in GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return len(data)


class Speech:
    """While it lasts, what this process says is written beside what it does: no reader that stands still holds it up.

    After ``outlive_hearers``, in the same way for all who write to ``sys.stdout`` and ``sys.stderr``.
    """

    def __init__(self) -> None:
        self._streams = (sys.stdout, sys.stderr)
        self._backlogs: dict[tuple[int, int], Backlog] = {}
        """By file: two streams to one terminal keep their order, and one that stands still does not hold up another."""

    def begin(self) -> None:
        for output in filter(None, map(_output_of, self._streams)):
            file = os.fstat(output.fileno())
            where = file.st_dev, file.st_ino
            if where not in self._backlogs:
                self._backlogs[where] = Backlog()
                self._backlogs[where].begin()
            output.backlog = self._backlogs[where]

    def end(self) -> None:
        """See ``say_all``."""
        say_all(*self._streams)


def say_all(*streams: TextIO) -> None:
    """To readers that take it within ``HEARD_LIMIT_S``; others hear no more of this program. What is said afterwards is
    written at once.
    """
    for stream in streams:
        with suppress(OSError, ValueError):
            stream.flush()
    ends_s = time.monotonic() + HEARD_LIMIT_S
    backlogs = dict.fromkeys(output.backlog for output in map(_output_of, streams) if output is not None)
    for backlog in filter(None, backlogs):
        backlog.close(max(ends_s - time.monotonic(), 0.0))


def tell_gaps(stream: TextIO, words: Callable[[int], str]) -> None:
    """In a stream that has a form of its own, as one for programs has.

    Args:
        words: the line that stands for so many lines which nobody has read in time.
    """
    if (output := _output_of(stream)) is not None:
        output.gap_words = words


def _output_of(stream: TextIO) -> _Output | None:
    """None: it is none of the system."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None


def outlive_hearers() -> None:
    """From now on nothing that this process says fails for want of somebody to hear it, or of room to write it down.

    For peers, which have better to do. A command that only answers fails, rather than have its answer lost unseen.
    """
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO | None) -> TextIO:
    """The same stream where it is none of the system, as in a notebook; nowhere, if it was closed from the start."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or stream.closed or not _is_of_the_system(stream):
        return stream
    if _output_of(stream) is not None:
        return stream
    stream.flush()
    output = io.BufferedWriter(_Output(stream), LINE_BYTES)
    by_line = stream.line_buffering or stream.write_through or stream.isatty()
    return io.TextIOWrapper(output, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)


def _is_of_the_system(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:
        return False
