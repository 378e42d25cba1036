"""The newest state on this peer's own disk: whoever is killed and comes back need not fetch what it had."""

import asyncio
from pathlib import Path

from collab.checkpoints.local import forget_after, load_newest, prune, save_checkpoint
from collab.errors import CheckpointFailed, StateError
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.training.replica import Replica
from collab.types import Lineage

REST = 49.0
"""Times as long as writing a copy took, until the next one: a fiftieth of the time goes into copies."""
REST_AFTER_FAILURE_S = 600.0
"""A full disk is not tried with every step."""
KEPT = 2
"""Copies; the one before the newest is whole when a power cut ends the newest."""


class DiskCopy:
    """Of one replica."""

    def __init__(self, ports: Ports, replica: Replica, root: Path | None, fingerprint: str) -> None:
        """
        Args:
            root: of the copies; None: there are none.
        """
        self._ports, self._replica, self._root, self._fingerprint = ports, replica, root, fingerprint
        self._saved: tuple[int, Lineage] | None = None
        self._rests_until_s = ports.clock.monotonic()
        self._wanted, self._saving = asyncio.Event(), asyncio.Lock()

    async def restore(self) -> None:
        """Begin where the last life of this peer ended, if it left a copy."""
        if (root := self._root) is None:
            return
        try:
            snapshot = await self._ports.compute.beside(lambda: load_newest(root, fingerprint=self._fingerprint))
            if snapshot is not None:
                await self._ports.compute.run(lambda: self._replica.load(snapshot))
                self._saved = self._history
                self._say(f"this machine has kept the state of epoch {snapshot.epoch}, and goes on from there")
        except StateError as error:
            hint = "the state comes from the swarm instead, and takes this copy's place"
            self._say(f"our own copy of the state cannot be used: {error.message}", hint, is_problem=True)

    def note_step(self) -> None:
        """The replica has changed."""
        if self._ports.clock.monotonic() >= self._rests_until_s:
            self._wanted.set()

    async def run(self) -> None:
        """Write copies, until cancelled."""
        while True:
            await self._wanted.wait()
            await self.save()
            self._wanted.clear()

    async def save(self) -> None:
        """Copy the present state to the disk. A failure is told, and costs nothing else."""
        async with self._saving:
            if self._root is not None and self._replica.lineage and self._history != self._saved:
                await self._save(self._root)

    async def _save(self, root: Path) -> None:
        clock = self._ports.clock
        began_s = clock.monotonic()
        snapshot = await self._ports.compute.beside(self._replica.snapshot)

        def write() -> None:
            save_checkpoint(root, snapshot, fingerprint=self._fingerprint, files={}, metrics={})
            forget_after(root, snapshot.epoch)  # of a history that the swarm has left
            prune(root, KEPT)

        try:
            await self._ports.compute.beside(write)
            self._saved = snapshot.epoch, snapshot.lineage
            self._rests_until_s = clock.monotonic() + REST * (clock.monotonic() - began_s)
        except CheckpointFailed as error:
            self._rests_until_s = clock.monotonic() + REST_AFTER_FAILURE_S
            self._say(f"there is no copy of the state on this machine: {error.message}", error.hint, is_problem=True)

    @property
    def _history(self) -> tuple[int, Lineage]:
        return self._replica.epoch, self._replica.lineage

    def _say(self, text: str, hint: str = "", *, is_problem: bool = False) -> None:
        notice = Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=is_problem)
        self._ports.observer.observe(notice)
