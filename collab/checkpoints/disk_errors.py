"""Errors of this machine's own disk. Those of the network are ``OSError``, too: here they are told apart, and told."""

import errno
import socket
import ssl
from pathlib import Path

from collab.errors import CheckpointFailed

OF_NETWORKS = (ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLError)
"""Whose numbers mean something else, or come from a socket."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
BROKEN = frozenset({errno.EIO, errno.ESTALE})
NEVER_OF_A_SOCKET = FULL | BROKEN | {errno.EROFS, errno.EFBIG, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
"""A write or a read that fails so names no file. What a firewall forbids is EACCES or EPERM, which a file may be, too:
of these only what names one is of the disk."""


def is_of_disk(error: BaseException) -> bool:
    """Whether a file of this machine could not be read or written."""
    if not isinstance(error, OSError) or isinstance(error, OF_NETWORKS):
        return False
    return error.filename is not None or error.errno in NEVER_OF_A_SOCKET


def not_written(path: Path, error: OSError) -> CheckpointFailed:
    """What to tell of a disk that did not take or give something.

    Args:
        path: what was under way there, if the error names no file.
    """
    return CheckpointFailed(f"{_place(path, error)}: {error.strerror or error}", hint=_hint(error))


def _place(path: Path, error: OSError) -> str:
    """``filename`` may be a number: that of an open file."""
    return f"{error.filename if isinstance(error.filename, str) else path} could not be read or written on this machine"


def _hint(error: OSError) -> str:
    if error.errno in FULL:
        return "free some space on that disk, or lift the quota"
    if error.errno in BROKEN:
        return "the disk itself fails: look at the system's log, and have a backup elsewhere"
    return "make it readable and writable for this user, or name another directory"
