"""One command of an organiser at a time."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from peers.process import announce

AGAIN_S = 0.2
"""Between two looks whether the other one has ended."""


@asynccontextmanager
async def alone_at(directory: Path) -> AsyncIterator[None]:
    """With a lock of the directory itself, which takes no space on its disk; waits for whoever has it."""
    door: int | None = None
    with suppress(OSError):  # there is none, or it is another user's: whoever reads in it says so
        door = os.open(directory, os.O_RDONLY)
    try:
        is_told = False
        while door is not None and not _is_locked(door):
            if not is_told:
                announce(f"another command gives orders in {directory}; waiting until it has ended ...")
                is_told = True
            await asyncio.sleep(AGAIN_S)
        yield
    finally:
        if door is not None:
            os.close(door)


def _is_locked(door: int) -> bool:
    """Whether we have it; without a lock, where there is none."""
    try:
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network's file system may lock files only
        return True
    return True
