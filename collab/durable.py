"""Files that are replaced whole: a reader, also after a kill or a power cut, finds the old one or the new one."""

import errno
import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666, is_synced: bool = True) -> None:
    """Put ``data`` where ``path`` is, in a directory that exists. Blocks.

    Args:
        mode: who may read and write it, as far as the process's umask lets them.
        is_synced: wait for the disk, so that after a power cut it is the new file; without, what is there then may be
            the old one, or damaged.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was, and nothing is left of the new one.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")  # several processes may replace the same file
    try:
        unfinished.touch(mode)
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    if is_synced:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """The names in a directory outlive a power cut, too, where its file system can promise that.

    Raises:
        OSError: it cannot be read, or the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
