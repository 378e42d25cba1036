"""Where this user's peers that pause keep their things, wherever that is: ``collab-peer pause`` looks for them there.

One small file for each directory, with its path, which is written anew at each start and stays. Whether a peer runs in
the directory now its lock says, which ends with the process however that ends; so there is nothing to go stale. What
names a directory that is gone is cleared away at the next start of any peer.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOENT, ENOTDIR
from pathlib import Path
from stat import S_ISDIR
from typing import TypeGuard

from collab.durable import replace_file

logger = logging.getLogger(__name__)


def list_home() -> Path:
    """Not where peers keep their things: a notebook, or a service, has that elsewhere than its user's terminal."""
    return Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "collab" / "peers"


def note_pausable(path: Path) -> None:
    """A peer that pauses has this directory from now on. Where that cannot be written down it has to be named."""
    place = path.resolve()
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    try:
        list_home().mkdir(parents=True, exist_ok=True)
        with _locked(fcntl.LOCK_EX):
            for entry in _entries():
                if _is_gone(_named_in(entry)):
                    entry.unlink(missing_ok=True)
            replace_file(list_home() / name, os.fsencode(place))
    except OSError as error:
        logger.info("'collab-peer pause' finds this peer by its --data-dir only reason=%s", error)


def noted_pausable() -> list[Path]:
    """All directories that are still there, in order; not those of which nobody can say that now."""
    try:
        with _locked(fcntl.LOCK_SH):
            return sorted(path for path in map(_named_in, _entries()) if is_there(path))
    except OSError:
        return []


@contextmanager
def _locked(how: int) -> Iterator[None]:
    """Whoever clears away does not meet whoever begins."""
    with (list_home() / ".lock").open("a") as lock:
        fcntl.flock(lock, how)
        yield


def _entries() -> list[Path]:
    return [entry for entry in list_home().iterdir() if not entry.name.startswith(".")]


def _named_in(entry: Path) -> Path | None:
    """None: a full disk has left the note empty."""
    named = entry.read_bytes()
    return Path(os.fsdecode(named)) if named else None


def is_there(place: Path | None) -> TypeGuard[Path]:
    """Whether it is a directory that can be looked at; one whose mount has broken cannot."""
    try:
        return place is not None and S_ISDIR(place.stat().st_mode)
    except OSError:
        return False


def _is_gone(place: Path | None) -> bool:
    """For good: what cannot be looked at now may come back."""
    try:
        return place is None or not S_ISDIR(place.stat().st_mode)
    except OSError as error:
        return error.errno in (ENOENT, ENOTDIR)
