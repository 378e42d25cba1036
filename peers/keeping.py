"""What a backbone keeps of the run's state: the newest snapshot, on its disk and for newcomers.

Whoever holds the publishing lease fetches what is due from trainers, publishes it, and says so; the others fetch the
same bytes from there. What nobody has published yet is kept, too, when it might be lost otherwise.
"""

import asyncio
import logging
import math

from collab.checkpoints.aside import SET_ASIDE
from collab.checkpoints.base import Order
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import CheckpointFailed, ConfigError, CorruptState
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.backbone_records import BackboneRecord, Publication
from collab.swarm.bundle import Bundle
from collab.swarm.duties import PUBLISHING, Duty
from collab.swarm.handover import Offer
from collab.swarm.last_seen import NEWER_WAIT_S
from collab.swarm.lease import Tenure
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack, unpack
from collab.swarm.statements import Rollback
from collab.types import PeerId
from peers.company import Company
from peers.due import Due, due_snapshot
from peers.evaluations import FOLLOW_S, Evaluations
from peers.fetching import Fetcher
from peers.left_behind import LeftBehind
from peers.shelf import MemoryShelf, Shelf
from peers.workshop import Workshop

logger = logging.getLogger(__name__)


class StateKeeper:
    """Of one backbone."""

    def __init__(
        self, ports: Ports, bundle: Bundle, workshop: Workshop, publisher: LocalPublisher, company: Company
    ) -> None:
        self._ports, self._bundle, self._workshop = ports, bundle, workshop
        self._membership, self._lease, self._mandate = company.membership, company.lease, company.mandate
        self.fetcher = Fetcher(ports, bundle.fingerprint, company, workshop.model_forms)
        self.evaluations = Evaluations(ports, bundle.run, company.membership, workshop.evaluate)
        self._off, self._last_seen, self._rounds = company.off, company.last_seen, company.rounds
        self.shelf = MemoryShelf(ports, publisher) if Duty.CHECKPOINTS in self._off else Shelf(ports, publisher)
        self.version: int | None = None
        """Of what is stored, where parameters are, as we last looked; None: nothing is, or we have not looked yet."""
        self.packed: PackedSnapshot | None = None
        """What newcomers get; None: nothing yet."""
        self.era = ""
        """Of that: mark of the rollback that it comes from."""
        self._waits_until_s, self._seen_epoch = -math.inf, -1
        """For a peer that comes back with a state as new as what an earlier life of ours has seen."""
        self._left_behind = LeftBehind()
        self._saving = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Of what newcomers get; -1: nothing yet."""
        return self.packed.manifest.epoch if self.packed is not None else -1

    @property
    def is_able(self) -> bool:
        """Whether we could publish: we may, there is something, and the disk takes it as far as we know."""
        return self.packed is not None and not self.shelf.is_resting and not self._off & PUBLISHING

    async def finish(self) -> None:
        """A checkpoint under way is finished; then no other one begins."""
        await self._saving.acquire()
        await self.shelf.finish()

    # -- beginning ---------------------------------------------------------------------------------------------------

    async def restore(self) -> Tenure:
        """Begin with our newest checkpoint, or with the run's first state if the run has none; else fetch one later.

        Returns:
            The highest tenure that our disk has heard of.
        """
        held, seen_epoch = await self.shelf.newest(), max(self._last_seen.read(), self.shelf.damaged_epoch)
        if held is not None:
            logger.info("resuming epoch=%d from=%s", held.snapshot.epoch, self.shelf.root)
            self.packed, self.era = await self._pack(held.snapshot), held.snapshot.era
            if not held.is_newest:
                text = f"our newest checkpoint is damaged; the one of epoch {self.epoch} is whole"
                self._warn(text, "we go on from there, unless another peer holds a later state")
            self._waits_until_s, self._seen_epoch = self._ports.clock.monotonic() + NEWER_WAIT_S, seen_epoch
        elif seen_epoch > 0:
            text = f"no checkpoint in {self.shelf.root} can be read, and the run had reached epoch {seen_epoch}"
            hint = f"waiting for a peer that holds its state; to begin anew, move that and {self._last_seen.path} away"
            self._warn(text, hint)
        elif self._workshop.make_first_state is not None and (await self._membership.look()).newest() is None:
            if Duty.STATE in self._off:
                text = "nobody has a state of this run, and this backbone is to give none"
                raise ConfigError(text, hint=f"leave '{Duty.STATE}' out of --without, or start another backbone first")
            first = await self._ports.compute.run(self._workshop.make_first_state)
            await self._keep(await self._pack(first), math.nan)
        return await self.shelf.highest()

    async def provide(self, epoch: int | None) -> PackedSnapshot | None:
        """Our snapshot for somebody else; while somebody may come back who holds a newer one, only for other backbones,
        who ask for this very epoch.
        """
        packed, is_early = self.packed, self._ports.clock.monotonic() < self._waits_until_s
        if packed is None or (epoch is None and is_early and self.epoch < self._seen_epoch):
            return None
        return packed if epoch in (None, packed.manifest.epoch) else None

    # -- following the swarm -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep what should be kept, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.shelf.is_on_disk:
                tasks.create_task(self._last_seen.follow(self._swarm_epoch))
            while True:
                if not self.shelf.is_resting and await self._has_rolled_back():
                    await self._leave_behind()
                    await self._follow()
                await asyncio.sleep(FOLLOW_S)

    async def take(self, peer: PeerId, offer: Offer) -> bool:
        """A trainer that leaves offers its state; whether it is safe with us."""
        async with self._saving:
            is_wanted = offer.epoch > self.shelf.saved_epoch and self.era == self._mandate.era
            if is_wanted and (packed := await self.fetcher.fetch_offered(peer, offer.epoch)) is not None:
                told = offer.eval_loss if math.isfinite(offer.eval_loss) else self.evaluations.now(offer.epoch)
                await self._adopt(packed, told)
            return self.epoch >= offer.epoch

    async def _follow(self) -> None:
        """One look, and what follows from it."""
        holder, epoch = self._lease.holder(), max(self.shelf.saved_epoch, self.epoch)
        if self._lease.tenure() is not None:
            is_done = await self._fetch_due(epoch) or self.packed is None
            if not is_done and (self.shelf.publication is None or self.shelf.saved_epoch < self.epoch):
                await self._adopt_ours()
        elif holder is not None and (published := self._lacking(holder)) is not None:
            await self._mirror(published, holder)
        elif self.packed is None:
            await self._fetch_and_adopt(Due(None, tuple(self._membership.donors())))
        elif holder is None and self._off & PUBLISHING:
            await self._follow_alone(epoch)

    async def _follow_alone(self, epoch: int) -> None:
        await self._fetch_due(epoch)  # nobody publishes, and we may not: have what would be due

    async def _fetch_due(self, epoch: int) -> bool:
        """What is due beyond ``epoch``; whether anything is."""
        others, every = self._membership.others(), self._bundle.run.checkpoints
        until, trusts = self._mandate.until_epoch, self._membership.trusts
        found = due_snapshot(others, self._records(), every, until, rounds=self._rounds(), trusts=trusts)
        if found is None or found[0] <= epoch:
            return False
        await self._fetch_and_adopt(found[1])
        return True

    def _lacking(self, holder: BackboneRecord) -> Publication | None:
        """What the holder of the lease has published, if we should have it and do not."""
        theirs, ours = holder.published, self.shelf.publication
        if theirs is None or holder.claim.tenure < self._lease.seen or theirs.epoch < self.epoch:
            return None
        is_here = ours is not None and (ours.digest, ours.tenure) == (theirs.digest, theirs.tenure)
        return None if is_here else theirs

    async def _mirror(self, published: Publication, holder: BackboneRecord) -> None:
        """Have on our disk what the lease's holder has published: its bytes, from it or from others that have them.

        When nobody gives them, what trainers have of that epoch is kept until somebody does.
        """
        async with self._saving:
            packed = self.packed
            if packed is None or packed.manifest.digest != published.digest:
                same = [r.peer for r in self._records() if r.published and r.published.digest == published.digest]
                donors = dict.fromkeys([holder.peer, *same])
                donors.pop(self._ports.transport.peer_id, None)
                packed = await self.fetcher.fetch(Due(published.epoch, tuple(donors), published))
            if packed is None and self.epoch < published.epoch:
                trainers = self._membership.others().all_trainers()
                donors = dict.fromkeys(record.peer for record in trainers if record.epoch >= published.epoch)
                packed = await self.fetcher.fetch(Due(published.epoch, tuple(donors)))
            if packed is None:
                return
            if packed.manifest.digest == published.digest:
                await self._publish(packed, Order(publication=published, authority=holder.claim.tenure))
            else:
                await self._keep(packed, published.eval_loss)

    async def _leave_behind(self) -> None:
        """Put away what we hold of later epochs, when the trainers have gone on from an earlier one without it."""
        others, now_s = self._membership.others(), self._ports.clock.monotonic()
        if (epoch := self._left_behind.epoch(others, self.epoch, now_s)) is not None:
            async with self._saving:
                self.packed = None
                number = await self.shelf.set_aside_after(epoch)
                text = f"trainers have gone on from epoch {epoch}; our {number} later checkpoints are put aside"
                self._warn(text, f"they lie in {self.shelf.root / SET_ASIDE}")
                await self.restore()

    async def _has_rolled_back(self) -> bool:
        """Go on from the organiser's checkpoint, with ours set aside; whether that is done, and new ones may come."""
        order = self._mandate.book.rollback()
        if order is None or not isinstance(what := order.what, Rollback) or self.era == order.mark:
            return True
        async with self._saving:
            self.packed = None  # nobody must go on from what we have
            try:
                begun = await self.shelf.begin_again(what, order.mark)
            except CheckpointFailed:
                return False  # it is tried again
            self.era, self.version = order.mark, None
            if begun is not None:
                await self._adopt(await self._pack(begun), math.nan)
                return True
        text = f"the organiser has gone back to epoch {what.to_epoch}, of which there is no checkpoint here"
        self._warn(text, "another backbone may have it, and it is fetched from there; else roll back to another epoch")
        return True

    # -- fetching and keeping ----------------------------------------------------------------------------------------

    async def _fetch_and_adopt(self, due: Due) -> None:
        if (packed := await self.fetcher.fetch(due)) is None:
            return
        eval_loss = due.published.eval_loss if due.published is not None else await self.evaluations.of(packed)
        async with self._saving:
            if packed.manifest.epoch > max(self.shelf.saved_epoch, self.epoch):
                await self._adopt(packed, eval_loss)

    async def _adopt(self, packed: PackedSnapshot, eval_loss: float) -> None:
        """Publish a snapshot if that is up to us, else keep it."""
        tenure = self._lease.tenure()
        if tenure is None:
            await self._keep(packed, eval_loss)
            return
        said = packed.manifest
        publication = Publication(
            epoch=said.epoch, lineage=said.lineage, digest=said.digest, term=tenure.term, holder=tenure.holder,
            eval_loss=eval_loss,
        )  # fmt: skip

        def still_holds() -> bool:
            return self._lease.tenure() == tenure

        await self._publish(packed, Order(publication=publication, authority=tenure, may_finish=still_holds))

    async def _adopt_ours(self) -> None:
        async with self._saving:
            if self.packed is not None:
                await self._adopt(self.packed, self.evaluations.now(self.epoch))

    async def _publish(self, packed: PackedSnapshot, order: Order) -> None:
        snapshot = await self._serve(packed)
        if snapshot is not None:
            await self._told(await self.shelf.publish(snapshot, order))

    async def _keep(self, packed: PackedSnapshot, eval_loss: float) -> None:
        snapshot = await self._serve(packed)
        if snapshot is not None and snapshot.epoch > self.shelf.saved_epoch:
            await self._told(await self.shelf.keep(snapshot, packed.manifest.digest, eval_loss))

    async def _serve(self, packed: PackedSnapshot) -> Snapshot | None:
        """Give it to newcomers from now on; None: it cannot be read."""
        try:
            snapshot = await self._ports.compute.run(lambda: unpack(packed))
        except CorruptState as error:
            self._warn(error.message, error.hint)
            return None
        if snapshot.era != self._mandate.era:
            return None  # it was rolled back, and whoever gave it has not heard of that yet
        self.packed, self.era = packed, snapshot.era
        self.fetcher.note(packed)
        return snapshot

    async def _told(self, is_saved: bool) -> None:
        """Others hear of what became of it."""
        if self.shelf.is_resting:
            self._lease.give_up()
        self._lease.speak()
        if is_saved:
            await self.evaluations.look_at(self.packed)
            await self._membership.report()

    # -- looking around ----------------------------------------------------------------------------------------------

    def _records(self) -> list[BackboneRecord]:
        return list(self._lease.records.values())

    def _swarm_epoch(self) -> int:
        return (self._membership.others().consensus() or (-1,))[0]

    async def _pack(self, snapshot: Snapshot) -> PackedSnapshot:
        packed = await self._ports.compute.run(lambda: pack(snapshot, fingerprint=self._bundle.fingerprint))
        self.fetcher.note(packed)
        return packed

    def _warn(self, text: str, hint: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=True))
