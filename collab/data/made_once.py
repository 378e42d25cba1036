"""Files that one process makes and others find: encoded data, tokenizers."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from collab.errors import DataError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def make_once(path: Path, write: Callable[[BinaryIO], object], needed_bytes: Callable[[], int]) -> None:
    """Make sure that ``path`` exists, whole; ``write`` fills it if nobody did.

    Of several processes one writes and the others wait; if it dies, the next one starts over. What is at ``path`` is
    never half a file.

    Args:
        path: where the file belongs; ``.lock`` and ``.partial`` beside it are ours.
        write: writes the whole file.
        needed_bytes: asked when the disk is full, for the message.

    Raises:
        DataError: the disk is full, or the folder cannot be written.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _write_whole(path, write)
    except OSError as error:
        if error.errno in _FULL:
            raise DataError(f"no space to write {path}: it needs about {needed_bytes()} bytes, "
                            f"{_free_bytes(path.parent)} are free",
                            hint="make room, choose another --data-dir, or lower task.data.max_megabytes") from error
        raise DataError(f"cannot write {path}: {error.strerror}",
                        hint="choose another --data-dir, or change its permissions") from error


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    # The lock is held, so a partial file that is already there was left by a process that died.
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one at a time; the kernel releases it when its holder dies."""
    with path.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder if folder.exists() else folder.absolute().anchor).free
