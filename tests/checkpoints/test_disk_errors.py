"""What fails on our own disk is not told as the network's fault, nor the other way round."""

import errno
import os
import socket
import ssl
from pathlib import Path

import pytest

from collab.checkpoints.disk_errors import is_of_disk, not_written


def failed(number: int, name: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    "error",
    [
        *(failed(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)),
        *(failed(number, "/run/file") for number in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC)),
    ],
)
def test_a_file_that_cannot_be_read_or_written_is_of_the_disk(error: OSError) -> None:
    assert is_of_disk(error)


@pytest.mark.parametrize(
    "error",
    [
        failed(errno.ECONNREFUSED),
        failed(errno.ECONNRESET),
        failed(errno.ETIMEDOUT),
        failed(errno.ENETUNREACH),
        failed(errno.EACCES),
        failed(errno.EPERM),
        socket.gaierror(socket.EAI_NONAME, "no such name"),
        ssl.SSLError(errno.EIO, "SSL_ERROR_SYSCALL has the same number"),
        TimeoutError("late"),
        OSError("in words only"),
        ValueError("something else"),
    ],
)
def test_a_connection_that_fails_is_not(error: Exception) -> None:
    assert not is_of_disk(error)


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (failed(errno.ENOSPC), "/where could not be read or written on this machine: No space left", "free some space"),
        (failed(errno.EDQUOT), "quota exceeded", "lift the quota"),
        (failed(errno.EIO), "Input/output error", "the disk itself fails"),
        (failed(errno.EROFS, "/file"), "/file could not be read or written on this machine: Read-only", "name another"),
        (failed(errno.EACCES, "/file"), "/file could not be read or written", "writable for this user"),
    ],
)
def test_each_says_what_to_do(error: OSError, text: str, hint: str) -> None:
    told = not_written(Path("/where"), error)
    assert text in told.message
    assert hint in told.hint
