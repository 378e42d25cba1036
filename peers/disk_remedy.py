"""What to do about a file of an organiser's directory that cannot be read or written, by what went wrong."""

import errno
import pwd
from contextlib import suppress
from pathlib import Path

from collab.checkpoints.disk_errors import BROKEN, FULL

FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


def remedy(place: Path, error: OSError) -> str:
    """The next step.

    Args:
        place: the file; where there is none yet, or it cannot be seen, its directory counts.
    """
    if error.errno in FULL:
        return "free some space on that disk, or lift the quota"
    if error.errno in BROKEN:
        return "the disk itself fails: look at the system's log, and go on from a backup on another one"
    if error.errno == errno.EROFS:
        return "that disk is mounted to be read only: look at the system's log, and mount it again"
    if error.errno in FORBIDDEN and (owner := _owner(place)):
        return f"it belongs to {owner}: give this command as that user, or make it readable and writable for this one"
    return "see that it is a file that this user can read and write"


def _owner(place: Path) -> str:
    """Of what can be seen of it; empty: nobody can say."""
    for each in (place, place.parent):
        with suppress(OSError):
            return _name_of(each.stat().st_uid)
    return ""


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in a container
        return f"user {user}"
