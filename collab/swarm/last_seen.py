"""How far the swarm was when this machine last saw it: whoever comes back holding less may be the first one back."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from collab.durable import replace_file
from collab.ports import Compute

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Between two notes; what was seen since the last one is not missed."""
NEWER_WAIT_S = 20.0
"""How long somebody who holds less than was seen waits for others that hold more, where nobody has gone on yet.
Machines that were switched on together come within that; a run to which nobody comes back stands still no longer."""


class LastSeen:
    """An epoch in a small file. A disk that fails costs no more than the note."""

    def __init__(self, path: Path | None, compute: Compute) -> None:
        """
        Args:
            path: None: nothing is remembered.
        """
        self.path, self._compute = path, compute
        self._written = -1

    def read(self) -> int:
        """The epoch; -1: not known."""
        return seen_in(self.path) if self.path is not None else -1

    async def follow(self, epoch: Callable[[], int]) -> None:
        """Note what ``epoch`` says, until cancelled; -1: nothing."""
        while self.path is not None:
            await asyncio.sleep(LOOK_S)
            if (newest := epoch()) >= 0 and newest != self._written:
                self._written = newest
                await self._compute.beside(partial(_write, self.path, newest))


def seen_in(path: Path) -> int:
    """The epoch that was noted there; -1: none."""
    try:
        epoch = json.loads(path.read_bytes())["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        return -1
    return epoch if type(epoch) is int and epoch >= 0 else -1


def _write(path: Path, epoch: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"epoch": epoch}).encode(), is_synced=False)
    except OSError as error:
        logger.warning("how far the swarm is cannot be noted in %s: %s", path, error)
