"""What a peer says on a terminal, or where one should be.

It may have nowhere to go: the terminal or the program behind a pipe goes away, a disk fills up. And it may hold what
strangers have written, which no terminal is to obey.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

GONE = (errno.EIO, errno.EPIPE)
"""Of a terminal that is closed, and of a pipe whose reader has ended: neither comes back."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of a file that takes no more: until somebody makes room."""
LAYOUT = "\n\t\u00a0\u3000"
"""What Python does not call printable, and a terminal may obey: new lines, and spaces of other scripts."""


def as_text(words: str) -> str:
    """Without what a terminal would obey; lines stay lines."""
    return "".join(letter if letter.isprintable() or letter in LAYOUT else "?" for letter in words)


class _Output(io.FileIO):
    """What cannot be written for want of a hearer or of room is left unsaid, instead of being an error each time."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream
        """Which may close the file when nobody has it any more."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)  # nothing: another program has it wait for nobody, and it is full
        except OSError as error:
            if error.errno in FULL:
                return len(data)
            if error.errno not in GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return len(data)


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
    stream.flush()
    output = io.BufferedWriter(_Output(stream))
    by_line = stream.line_buffering or stream.write_through or stream.isatty()
    return io.TextIOWrapper(output, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)


def _is_of_the_system(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:
        return False
