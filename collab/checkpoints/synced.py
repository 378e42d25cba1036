"""Writing files so that they are on the disk, and saying how much of them is."""

import os
from collections.abc import Callable
from pathlib import Path

from collab.checkpoints.base import Listener

STRETCH_BYTES = 32 << 20
"""After which what was written is waited for, so that it is on the disk when it is told of."""


def write_synced(path: Path, data: bytes, wrote: Callable[[int], None] = lambda _: None) -> None:
    """Write a file whose content outlives a power cut.

    Args:
        wrote: called with the bytes of each stretch that is on the disk.

    Raises:
        OSError: the disk is full or not writable; what is there of the file is of no use.
    """
    with path.open("wb") as file:
        for start in range(0, max(len(data), 1), STRETCH_BYTES):
            stretch = memoryview(data)[start : start + STRETCH_BYTES]
            file.write(stretch)
            file.flush()
            os.fsync(file.fileno())
            wrote(len(stretch))


def counting(whole_bytes: int, tell: Listener) -> Callable[[int], None]:
    """For ``write_synced``, over several files of so many bytes together; of what is one stretch nobody is told."""
    done_bytes = 0

    def wrote(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += num_bytes
        if whole_bytes > STRETCH_BYTES:
            tell(done_bytes, whole_bytes)

    return wrote
