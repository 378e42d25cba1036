"""A trainer's state for others: newcomers take the present one, backbones that of an epoch."""

import asyncio

from collab.ports import Ports
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack
from collab.training.replica import Replica


class StateShelf:
    """Hands on the state of one replica, and keeps a copy of one epoch's."""

    def __init__(self, ports: Ports, replica: Replica, fingerprint: str) -> None:
        self._ports, self._replica, self._fingerprint = ports, replica, fingerprint
        self._kept: Snapshot | None = None
        self._packed: PackedSnapshot | None = None
        self._packing = asyncio.Lock()

    async def keep(self) -> None:
        """Keep a copy of the present state until the next one is kept: a backbone will ask for it by its epoch."""
        self._kept = await self._ports.compute.beside(self._replica.snapshot)

    async def provide(self, epoch: int | None) -> PackedSnapshot | None:
        """Snapshot of ``epoch`` (None: the present one); None when there is no such copy."""
        async with self._packing:
            if self._packed is not None and self._is_wanted(
                self._packed.manifest.epoch, self._packed.manifest.lineage, epoch
            ):
                return self._packed
            kept, fingerprint = self._kept, self._fingerprint
            if kept is not None and kept.epoch == epoch:
                self._packed = await self._ports.compute.beside(lambda: pack(kept, fingerprint=fingerprint))
            elif epoch in (None, self._replica.epoch) and self._replica.lineage:
                self._packed = await self._ports.compute.beside(lambda: self._replica.packed(fingerprint))
            else:
                return None
            return self._packed

    def _is_wanted(self, epoch: int, lineage: str, wanted: int | None) -> bool:
        return epoch == wanted if wanted is not None else lineage == self._replica.lineage
