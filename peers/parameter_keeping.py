"""A backbone of a run with parameter servers: hands out units, takes pushes, makes checkpoints of what is stored."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collab import config
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import StateError
from collab.ports import Ports
from collab.strategies.vc_asgd import alpha_of
from collab.swarm.bundle import Bundle
from collab.swarm.lease import Tenure
from collab.swarm.parameter_server import ParameterServer, Rules
from collab.swarm.parameter_store.base import ParameterStore, lineage_of
from collab.swarm.snapshots import Snapshot, unpack
from collab.swarm.unit_scheduler import Plan, UnitScheduler
from collab.types import PeerId, Vector
from peers.keeping import Company, StateKeeper
from peers.workshop import Workshop


@dataclass(frozen=True, slots=True, kw_only=True)
class Storeroom:
    """Where parameters are kept, and in which order."""

    store: ParameterStore
    parameter_names: tuple[str, ...]
    """As they follow each other in the vector."""
    is_vouched: Callable[[PeerId], bool]
    """Whose leases on units count."""


class ParameterKeeper(StateKeeper):
    """Whoever holds the publishing lease hands out units, and makes the checkpoints; every one takes pushes."""

    def __init__(
        self,
        ports: Ports,
        bundle: Bundle,
        workshop: Workshop,
        publisher: LocalPublisher,
        company: Company,
        storeroom: Storeroom,
    ) -> None:
        super().__init__(ports, bundle, workshop, publisher, company)
        if not isinstance(section := bundle.run.strategy, config.VcAsgd):
            raise ValueError("only runs with vc_asgd have parameter servers")
        fingerprint, store = bundle.fingerprint, storeroom.store
        plan = Plan(
            fingerprint=fingerprint,
            shards=section.shards,
            first_lease_s=section.first_lease_s,
            last_version=lambda: company.mandate.until_epoch,
        )
        rules = Rules(
            fingerprint=fingerprint,
            alpha=lambda number: alpha_of(section, number),
            max_staleness=section.max_staleness,
            is_scheduler=storeroom.is_vouched,
        )
        self._trouble = ""
        """What the store complained of last."""
        self._store, self._names = store, storeroom.parameter_names
        self._every = bundle.run.checkpoints.every_epochs
        self._scheduler = UnitScheduler(ports, plan, store, company.links.timeouts, self._in_charge)
        self._server = ParameterServer(ports, rules, store, company.links.timeouts)

    @property
    def pushes_taken(self) -> int:
        """Mixed in by this server."""
        return self._server.taken

    async def restore(self) -> Tenure:
        """See ``StateKeeper``; whoever comes from now on is answered."""
        tenure = await super().restore()
        await self._scheduler.serve()
        await self._server.serve()
        return tenure

    def _in_charge(self) -> PeerId | None:
        if self._lease.tenure() is not None:
            return self._ports.transport.peer_id
        holder = self._lease.holder()
        return None if holder is None else holder.peer

    async def _follow(self) -> None:
        """See ``StateKeeper``; trainers have nothing that is not in the store."""
        if self._lease.tenure() is None:
            await super()._follow()
            return
        try:
            await self._follow_store()
        except StateError as error:
            if error.message != self._trouble:
                self._warn(error.message, error.hint)
            self._trouble = error.message
        else:
            self._trouble = ""

    async def _follow_store(self) -> None:
        packed, version = self.packed, await self._ports.compute.beside(self._store.version)
        if packed is None:
            return
        if version is None:
            first = await self._ports.compute.run(lambda: self._vector_of(unpack(packed)))
            await self._ports.compute.beside(lambda: self._store.begin(first))
        elif self._is_due(version):
            made = await self._ports.compute.run(lambda: self._made_of(unpack(packed)))
            async with self._saving:
                await self._adopt(await self._pack(made), self._evaluations.now(made.epoch))
        elif self.shelf.publication is None:
            async with self._saving:
                await self._adopt(packed, self._evaluations.now(self.epoch))

    def _is_due(self, version: int) -> bool:
        """Whether ``every_epochs`` pushes have come since the last checkpoint, or the last one of the run has."""
        saved, until = max(self.shelf.saved_epoch, self.epoch), self._mandate.until_epoch
        is_last = until is not None and version >= until
        return version > saved and (is_last or version // self._every > saved // self._every)

    def _vector_of(self, snapshot: Snapshot) -> Vector:
        """Raises ``StateError`` when it is that of another model."""
        try:
            pieces = [snapshot.tensors[f"model.{name}"].reshape(-1) for name in self._names]
        except KeyError as error:
            raise StateError(f"the state lacks {error}", hint="it belongs to another model") from error
        return np.concatenate(pieces).astype(np.float32)

    def _made_of(self, before: Snapshot) -> Snapshot:
        """The state with the parameters that are stored now; what is not in the vector stays as it was.

        Raises:
            StateError: there are none any more.
        """
        if (stored := self._store.read()) is None:
            raise StateError("the parameter store was emptied", hint="who else uses it?")
        tensors, start = dict(before.tensors), 0
        for name in self._names:
            shape = tensors[f"model.{name}"].shape
            stop = start + math.prod(shape)
            tensors[f"model.{name}"] = stored.values[start:stop].reshape(shape)
            start = stop
        return Snapshot(
            epoch=stored.version, lineage=lineage_of(stored.version), tensors=tensors, scalars={}, era=before.era
        )
