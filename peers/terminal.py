"""What a peer says may have nowhere to go: its terminal or the program behind a pipe goes away, a disk fills up."""

import errno
import io
import os
import sys
from typing import Any, TextIO

GONE = (errno.EIO, errno.EPIPE)
"""Of a terminal that is closed, and of a pipe whose reader has ended: neither comes back."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of a file that takes no more: until somebody makes room."""


class _Output(io.FileIO):
    """What cannot be written for want of a hearer or of room is left unsaid, instead of being an error each time."""

    instead_of: TextIO
    """Kept, since its end would close the file."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
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


def _outliving(stream: TextIO) -> TextIO:
    """The same stream where it is none of the system, as in a notebook."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed or not _is_of_the_system(stream):
        return stream
    stream.flush()
    raw = _Output(stream.fileno(), "w", closefd=False)
    raw.instead_of = stream
    output = io.BufferedWriter(raw)
    by_line = stream.line_buffering or stream.write_through or stream.isatty()
    return io.TextIOWrapper(output, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)


def _is_of_the_system(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:
        return False
