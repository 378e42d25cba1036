"""A terminal that may go away: somebody closes its window, or the line to it breaks."""

import errno
import io
import os
import sys
from typing import Any, TextIO


class _Output(io.FileIO):
    """What is written to a terminal that is gone goes nowhere from then on, instead of being an error each time."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return len(data)


def outlive_terminal() -> None:
    """From now on nothing that this process says fails for want of somebody to hear it."""
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO) -> TextIO:
    """The same stream where it is no terminal."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed or not stream.isatty():
        return stream
    stream.flush()
    output = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(output, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
