"""Files that one process makes and others find: encoded data, tokenizers."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from collab.durable import replace_file
from collab.errors import BrokenOff, DataError, DataUnreachable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Waits: TypeAlias = Callable[[Path], None]
"""Called with the lock before whoever holds it is waited for; that may be for ever, as where it was stopped."""


class BeingMade(DataError):
    """Another process makes the file just now."""


def patiently(_lock: Path) -> None:
    """Wait, and tell nobody."""


def not_now(lock: Path) -> None:
    """Do not wait.

    Raises:
        BeingMade: always.
    """
    raise BeingMade("another peer of yours is encoding the text for it just now", hint=hint_of_wait(lock))


def hint_of_wait(lock: Path) -> str:
    """What to do where it takes too long."""
    return f"nothing needs to be done, unless that one was stopped or hangs: it has {lock} open"


def make_once(path: Path, write: Callable[[BinaryIO], object], needed_bytes: Callable[[], int],
              waits: Waits = patiently) -> None:
    """Make sure that ``path`` exists, whole; ``write`` fills it if nobody did.

    Of several processes one writes and the others wait; if it dies, the next one starts over; if it breaks off, or
    what it reads is out of reach, the next one goes on (``left_at``). What is at ``path`` is never half a file.

    Args:
        path: where the file belongs; ``.lock``, ``.partial`` and ``.left`` beside it are ours.
        write: writes the whole file, from where ``left_at`` says over what is there already.
        needed_bytes: asked when the disk is full, for the message.
        waits: called in a process that is to wait; what it raises ends that.

    Raises:
        DataError: the disk is full, or the folder cannot be written.
        BrokenOff, DataUnreachable: ``write`` has raised it.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock"), waits):
            if not path.exists():
                _write_whole(path, write)
    except OSError as error:
        if error.errno in _FULL:
            raise DataError(f"no space to write {path}: it needs about {needed_bytes()} bytes, "
                            f"{_free_bytes(path.parent)} are free",
                            hint="make room, choose another --data-dir, or lower task.data.max_megabytes") from error
        raise DataError(f"cannot write {path}: {error.strerror}",
                        hint="choose another --data-dir, or change its permissions") from error


def left_at(path: Path) -> Any:
    """Where whoever wrote ``path`` last broke off, as JSON; None: it is to be written from its beginning.

    Another version may have noted it in another form, or a disk have spoilt it.
    """
    try:
        at = json.loads(path.with_suffix(".left").read_text(encoding="utf-8"))
        return at if path.with_suffix(".partial").exists() else None
    except (OSError, ValueError):
        return None


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    # The lock is held, so a partial file that is already there was left by a process that died, or broke off.
    partial, note = path.with_suffix(".partial"), path.with_suffix(".left")
    is_left = False
    try:
        with partial.open("wb" if left_at(path) is None else "r+b") as handle:
            try:
                write(handle)
            except (BrokenOff, DataUnreachable) as error:
                is_left = error.at is not None and _is_noted(note, handle, error.at)
                raise
            _synced(handle)
        partial.rename(path)
    finally:
        if not is_left:
            note.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)


def _is_noted(note: Path, handle: BinaryIO, at: dict[str, Any]) -> bool:
    """Whether the next one can go on; on a full disk it begins anew."""
    try:
        _synced(handle)
        replace_file(note, json.dumps(at).encode())
    except OSError:
        return False
    return True


def _synced(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


@contextmanager
def _locked(path: Path, waits: Waits) -> Iterator[None]:
    """Held by one at a time; the kernel releases it when its holder dies."""
    with path.open("wb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder if folder.exists() else folder.absolute().anchor).free
