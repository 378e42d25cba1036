"""A backbone of a run with parameter servers: hands out units, takes pushes, makes checkpoints of what is stored."""

import logging
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
from collab.swarm.parameter_store.base import lineage_of
from collab.swarm.parameter_store.calls import StoreCalls
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.snapshots import PackedSnapshot, Snapshot, unpack
from collab.swarm.unit_scheduler import Plan, UnitScheduler
from collab.types import PeerId, Vector
from peers.company import Company
from peers.due import Due
from peers.keeping import StateKeeper
from peers.store_trouble import StoreTrouble
from peers.unit_ledger import UnitLedger
from peers.workshop import Workshop

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storeroom:
    """Where parameters are kept, and in which order."""

    stores: EraStores
    copied_names: tuple[str, ...]
    """As they follow each other in the vector."""
    trusts: Callable[[PeerId], bool]
    """Whose leases on units count, be they here or not."""


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
        fingerprint, stores, mandate = bundle.fingerprint, storeroom.stores, company.mandate
        plan = Plan(
            fingerprint=fingerprint,
            era=lambda: mandate.era,
            shards=section.shards,
            first_lease_s=section.first_lease_s,
            last_version=lambda: mandate.until_epoch,
        )
        rules = Rules(
            fingerprint=fingerprint,
            era=lambda: mandate.era,
            alpha=lambda number: alpha_of(section, number),
            max_staleness=section.max_staleness,
            is_scheduler=storeroom.trusts,
        )
        self.trouble = StoreTrouble(ports)
        self._stores, self._names, self._shards = stores, storeroom.copied_names, section.shards
        self._tidy_in: str | None = None
        """Era in which what is older than the one before it was erased."""
        self._every = bundle.run.checkpoints.every_epochs
        calls = StoreCalls(ports.compute, stores, self.trouble.note_failed_call)
        self._scheduler = UnitScheduler(ports, plan, calls, company.links.timeouts, self._in_charge)
        self._server = ParameterServer(ports, rules, calls, company.links.timeouts, self._scheduler.note_brought)

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

    @property
    def is_able(self) -> bool:
        return super().is_able and not self.trouble.is_there

    def _has_able_fellow(self) -> bool:
        """Whether another backbone says that it could go on; if none could, nothing is won by giving up."""
        me = self._ports.transport.peer_id
        return any(record.claim.is_able for record in self._records() if record.peer != me)

    def _in_charge(self) -> PeerId | None:
        if self._lease.tenure() is not None:
            return self._ports.transport.peer_id
        holder = self._lease.holder()
        return None if holder is None else holder.peer

    async def _follow(self) -> None:
        """See ``StateKeeper``; trainers have nothing that is not in the store."""
        is_ours = self._lease.tenure() is not None
        try:
            ledger, self.version = await self._ports.compute.beside(lambda: self._kept_since(self.era))
            if is_ours:
                await self._follow_store(ledger, self.version)
        except StateError as error:
            self.trouble.note(error)
        else:
            self.trouble.note_answer()
        if is_ours and self.trouble.is_lasting and self._has_able_fellow():
            self._lease.give_up()
        if not is_ours:
            await super()._follow()

    async def _follow_store(self, ledger: UnitLedger, version: int | None) -> None:
        packed = self.packed
        if packed is None:  # the checkpoint of a rollback is not here
            await self._fetch_and_adopt(Due(None, tuple(self._membership.donors())))
            return
        if version is None:
            await self._begin(ledger, packed)
        elif self._is_due(version):
            made = await self._ports.compute.beside(lambda: self._made_of(ledger, unpack(packed)))
            async with self._saving:
                due = await self._pack(made)
                await self._adopt(due, await self.evaluations.of(due))
        elif self.shelf.publication is None:
            async with self._saving:
                await self._adopt(packed, self.evaluations.now(self.epoch))

    def _kept_since(self, era: str) -> tuple[UnitLedger, int | None]:
        """The units of an era, and the version of its parameters; None: there are none yet. Blocks."""
        if era != self._tidy_in:
            eras = self._mandate.book.eras()
            self._tidy_in = era
            try:
                self._stores.erase(eras[: max(eras.index(era) - 1, 0)] if era in eras else ())
            except StateError as error:
                logger.warning("parameters that were given up stay: %s; %s", error.message, error.hint)
        store = self._stores.of(era)
        return UnitLedger(store, self._shards), store.version()

    async def _begin(self, ledger: UnitLedger, packed: PackedSnapshot) -> None:
        """Have something in the store: the run's first state, that of a rollback, or, if it was lost, a checkpoint."""
        snapshot = await self._ports.compute.run(lambda: unpack(packed))
        vector = await self._ports.compute.run(lambda: self._vector_of(snapshot))
        if not await self._ports.compute.beside(lambda: ledger.begin(snapshot, vector)):
            return
        self._scheduler.forget()
        if snapshot.epoch and snapshot.lineage == lineage_of(snapshot.epoch, snapshot.era):  # it was made of a store
            text = f"the parameter store was empty; it goes on from the checkpoint of push {snapshot.epoch}"
            self._warn(text, "what clients have pushed after that is lost, and those units are handed out again")

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

    def _made_of(self, ledger: UnitLedger, before: Snapshot) -> Snapshot:
        """The state with the parameters that are stored now; what is not in the vector stays as it was.

        Raises:
            StateError: there are none any more.
        """
        kept = ledger.kept()
        stored, tensors, start = kept.stored, dict(before.tensors), 0
        for name in self._names:
            shape = tensors[f"model.{name}"].shape
            stop = start + math.prod(shape)
            tensors[f"model.{name}"] = stored.values[start:stop].reshape(shape)
            start = stop
        return Snapshot(
            epoch=stored.version,
            lineage=lineage_of(stored.version, before.era),
            tensors=tensors,
            scalars=ledger.scalars(kept),
            era=before.era,
        )


class StorelessKeeper(StateKeeper):
    """A backbone that does not reach the run's store: it keeps what others publish, and never publishes itself."""

    @property
    def is_able(self) -> bool:
        return False

    async def restore(self) -> Tenure:
        """See ``StateKeeper``."""
        text = "this backbone has no parameter store: it takes no pushes, and keeps the checkpoints of the others"
        self._warn(text, "start it with the same --store as the others to make it a parameter server")
        return await super().restore()

    async def _follow_alone(self, epoch: int) -> None:
        """See ``StateKeeper``: what trainers have is nobody's but theirs."""
