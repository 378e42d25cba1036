"""The backbone role: bootstrap, leader of choice, reducer, keeper of state and checkpoints. Needs no GPU."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from collab.averaging.agreement import CommitRecord
from collab.averaging.assistant import Assistant, assisting_engine
from collab.checkpoints.local_publisher import LocalPublisher
from collab.concurrency import run_until_first
from collab.config import VcAsgd
from collab.data.coverage_keeper import CoverageKeeper
from collab.errors import Dismissed
from collab.metrics.backbone_events import RolledBack
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.address_book import live_addresses
from collab.swarm.backbone_records import MAX_ADDRESSES, BackboneRecord
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.donation import StateServer
from collab.swarm.duties import PUBLISHING, Duty, duties_in_words
from collab.swarm.handover import Offer, serve_handover
from collab.swarm.identity import Identity
from collab.swarm.last_seen import LastSeen
from collab.swarm.lease import Claim, Tenure
from collab.swarm.lease_keeper import LeaseKeeper
from collab.swarm.membership import Membership
from collab.swarm.order_exchange import OrderExchange
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.swarm.time_sync import serve_time
from collab.swarm.vouching import contributors_of, serve_vouching
from collab.training.dismissal import turned_away, until_dismissed
from collab.types import Lineage, PeerId, Role
from peers.backbone_settings import BackboneSettings
from peers.company import Company
from peers.credible import Credible
from peers.evaluations import FOLLOW_S
from peers.goal import Goal
from peers.keeping import StateKeeper
from peers.outdated import Outdated
from peers.parameter_keeping import ParameterKeeper, StorelessKeeper, Storeroom
from peers.reporting import Reporter
from peers.summary import shares_of
from peers.ungiven import Ungiven
from peers.workshop import Workshop

BEFORE_GOODBYE_S = 2.5
"""From when it is asked to leave, for all that comes first: after 4.5 s the process ends in any case."""


class Backbone:
    """One backbone peer over the ports. Of several, one at a time publishes; all others are there for everything."""

    def __init__(
        self, ports: Ports, identity: Identity, bundle: Bundle, workshop: Workshop, settings: BackboneSettings
    ) -> None:
        self._ports, self._bundle, self._settings = ports, bundle, settings
        self._state = PeerState.SERVING
        self._free_from: int | None = None
        self._since = ports.clock.now()
        self.own_addresses: tuple[str, ...] = ()
        """Under which newcomers get in through us; none where that is switched off."""
        self.last_errand: Callable[[float], Awaitable[None]] | None = None
        """Done before it gives up its lease, when the newest state is saved, in so many seconds; None: nothing."""
        self._told_era = ""
        """Mark of the last rollback that was told of."""
        self.statutes, ports.entrance.contributors = Statutes(ports, bundle), self.contributors
        board = ProgressBoard(ports, identity, bundle.fingerprint, self.statutes)
        self.membership = Membership(board, ports.clock, self.record)
        self.membership.trusts = self.statutes.trusts_backbone
        self.assistant = Assistant(self.membership.knows)
        kept = settings.data_dir.coverage if self._does(Duty.CHECKPOINTS) else None
        self._coverage = CoverageKeeper(ports, bundle, lambda: self.membership.view, kept)
        self.assistant.on_round = self._note_round
        self._engine = assisting_engine(
            ports, self.statutes, self.membership, self.assistant, can_reduce=self._does(Duty.REDUCER)
        )
        mandate, orders, rounds = self.statutes.mandate, settings.data_dir.orders, self._engine.known_records
        credible = Credible(
            bundle.run, lambda: mandate.era, rounds, trusts=self._is_vouched, version=self._version
        )
        self.reporter = Reporter(ports.observer, mandate, self.membership, credible)
        self.orders = OrderExchange(ports, mandate, lambda: self.membership.view, orders)
        self.lease = LeaseKeeper(ports, identity, bundle.fingerprint, self, self._is_vouched)
        last_seen, links = LastSeen(settings.data_dir.last_seen, ports.compute), self._engine.links
        company = Company(self.membership, links, self.lease, mandate, last_seen, rounds, settings.off)
        self.keeper = self._keeper(workshop, company)
        self.outdated = Outdated(ports, company, self.reporter, is_owners=settings.owner is not None)
        self._ungiven = Ungiven(ports, self.keeper, bundle.run.checkpoints.every_epochs)
        self._goal = Goal(ports, bundle.run, self.statutes.mandate, settings.owner)
        self.keeper.evaluations.on_measured = self._goal.note_measured

    def _keeper(self, workshop: Workshop, company: Company) -> StateKeeper:
        bundle, fingerprint = self._bundle, self._bundle.fingerprint
        keep = bundle.run.checkpoints.keep
        place = self._settings.data_dir
        tell = self._settings.tell_writing
        publisher = LocalPublisher(place.checkpoints, fingerprint, workshop.checkpoint_files, keep, tell)
        if not isinstance(bundle.run.strategy, VcAsgd):
            return StateKeeper(self._ports, bundle, workshop, publisher, company)
        if self._settings.stores is None:
            return StorelessKeeper(self._ports, bundle, workshop, publisher, company)
        storeroom = Storeroom(
            stores=self._settings.stores, copied_names=workshop.copied_names(), trusts=self._trusts_signed_by
        )
        return ParameterKeeper(self._ports, bundle, workshop, publisher, company, storeroom)

    def _is_vouched(self, peer: PeerId) -> bool:
        """Whether the word of a backbone counts."""
        return peer == self._ports.transport.peer_id or self.statutes.trusts_backbone(peer)

    def _trusts_signed_by(self, peer: PeerId) -> bool:
        return peer == self._ports.transport.peer_id or self.statutes.trusts_signed_by(peer)

    def _does(self, duty: Duty) -> bool:
        return duty not in self._settings.off

    async def begin(self) -> None:
        """Restore or make the run's state and begin to answer."""
        self.orders.restore()
        await self.orders.serve()
        self.lease.begin(await self.keeper.restore())
        noted = self._settings.noted_era
        self._told_era = noted if noted is not None else self.keeper.era
        transport, fingerprint = self._ports.transport, self._bundle.fingerprint
        if self._does(Duty.BOOTSTRAP):
            self.own_addresses = (await transport.addresses())[:MAX_ADDRESSES]
            await serve_time(transport, self._ports.clock)
            await serve_bundle(transport, self._bundle)
        if self._does(Duty.STATE):
            await StateServer(transport, self._engine.links, fingerprint, self.keeper.provide).serve()
        if not self._settings.off & PUBLISHING:
            await serve_handover(transport, self._engine.links.timeouts, fingerprint, self._take)
        await serve_vouching(transport, self._ports.errands, self._engine.known_records)
        await self._engine.serve()
        await self._coverage.serve()
        await self.membership.report()
        await self.lease.turn()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; ``begin`` comes first.

        Raises:
            Dismissed: we are banned, not invited any more, or too old and not needed.
        """
        await run_until_first(
            self.membership.keep_alive(),
            self.assistant.run(self._engine),
            self.lease.run(),
            self.keeper.run(),
            self.orders.run(),
            self._coverage.run(),
            self._watch(),
            until_dismissed(self._unwanted, self._ports, self.statutes, is_backbone=True),
            stop.wait(),
        )
        asked_s = self._ports.clock.monotonic()
        async with asyncio.TaskGroup() as tasks:
            finishing = tasks.create_task(self.keeper.finish())
            await asyncio.wait((finishing,), timeout=BEFORE_GOODBYE_S)
            left_s = BEFORE_GOODBYE_S - (self._ports.clock.monotonic() - asked_s)
            if self.last_errand is not None and left_s > 0:
                await self.last_errand(left_s)
            self._free_from = self._engine.retire()
            self._state = PeerState.LEAVING if self._free_from is None else PeerState.LEFT
            await self.membership.report()
            await self.lease.leave()
        if (why := self._unwanted()) is not None:
            raise why

    def _unwanted(self) -> Dismissed | None:
        """Why we must stop; None: we may go on, as the owner's own backbone always may."""
        if self._settings.owner is not None:
            return None
        return turned_away(self._ports, self.statutes, is_backbone=True) or self.outdated.dismissal()

    # -- what others hear of us --------------------------------------------------------------------------------------

    def backbone_record(self, term: int, seen: Tenure) -> BackboneRecord:
        """See ``Speaker``."""
        claim = Claim(
            peer=self._ports.transport.peer_id,
            said_at=self._ports.clock.now(),
            term=term,
            seen_term=seen.term,
            seen_holder=seen.holder,
            is_able=self.keeper.is_able and self._state is PeerState.SERVING,
            epoch=self.keeper.shelf.saved_epoch,
            since=self._since,
        )
        return BackboneRecord(
            fingerprint=self._bundle.fingerprint,
            claim=claim,
            addresses=self.own_addresses,
            published=self.keeper.shelf.publication if self._does(Duty.STATE) else None,
        )

    def problem(self) -> str:
        """Why we cannot do our work just now, in words; empty: we can."""
        if self.keeper.packed is None:
            return "no state of the run is here yet"
        return self.not_saved()[0]

    def not_saved(self) -> tuple[str, str]:
        """Why what is trained is not in our store or on this disk, and what to do, in words; both empty: it is."""
        if isinstance(self.keeper, ParameterKeeper) and self.keeper.trouble.is_there:
            return self.keeper.trouble.problem
        on_shelf = self.keeper.shelf.problem
        return on_shelf if on_shelf[0] else self._ungiven.problem(self._epoch_of(self.membership.view))

    def _epoch_of(self, view: SwarmView) -> int:
        """That trainers are at; -1: none is here."""
        return self.reporter.epoch(view)

    def all_addresses(self) -> tuple[str, ...]:
        """Of all backbones that are alive, our own first; for an invite."""
        others = [record for peer, record in self.lease.records.items() if peer != self._ports.transport.peer_id]
        return (*self.own_addresses, *live_addresses(others))

    async def remember(self, seen: Tenure) -> bool:
        """See ``Speaker``."""
        return await self.keeper.shelf.remember(seen)

    def record(self) -> PeerRecord:
        """Our word to the swarm, as of now."""
        does_give = self._does(Duty.STATE)  # what nobody can get here is no word about the run's state
        manifest = self.keeper.packed.manifest if self.keeper.packed and does_give else None
        eval_epoch, found = self.keeper.evaluations.newest(self.keeper.era) or (-1, None)
        return PeerRecord(
            peer=self._ports.transport.peer_id,
            fingerprint=self._bundle.fingerprint,
            name=self._settings.name,
            role=Role.BACKBONE,
            state=self._state,
            epoch=self._free_from if self._free_from is not None else manifest.epoch if manifest else 0,
            lineage=manifest.lineage if manifest else Lineage(""),
            can_be_dialled=True,
            checkpoint_epoch=self.keeper.shelf.saved_epoch if does_give else -1,
            eval_epoch=eval_epoch,
            eval_loss=found.loss if found is not None else math.nan,
            eval_accuracy=found.accuracy if found is not None else math.nan,
            era=self.keeper.era,
            said_at=self._ports.clock.now(),
            has_seat=self._engine.has_any_seat,
            without=duties_in_words(self._settings.off).replace(" ", ""),
        )

    # -- what people hear --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Report where the swarm stands, and say when the run is finished."""
        is_told = False
        while True:
            until = self.statutes.mandate.until_epoch
            view = self.membership.view
            self._tell(view)
            self._ungiven.tell(self._epoch_of(view))
            self.outdated.look()
            if until is not None and self.keeper.shelf.saved_epoch >= until and not is_told:
                is_told = True
                where = str(self._settings.data_dir.checkpoints) if self._does(Duty.CHECKPOINTS) else "memory only"
                text = f"the run is finished: epoch {until} is saved in {where}"
                self._notice(text, "press Ctrl+C to stop serving it")
            await asyncio.sleep(FOLLOW_S)

    async def _take(self, peer: PeerId, offer: Offer) -> bool:
        """See ``StateKeeper``; of the last step nobody would hear any more when all trainers have left."""
        self._tell(await self.membership.look())
        return await self.keeper.take(peer, offer)

    def _tell(self, view: SwarmView) -> None:
        """Report where the swarm stands, if it has gone on; before anything of it, that the run was rolled back."""
        mandate, before = self.statutes.mandate, self._told_era
        undone = mandate.book.undone_since(before) if before != mandate.era else None
        if undone is not None:
            if self.keeper.era != mandate.era:
                return  # something of the old history may be under way here
            self._told_era = mandate.era
            self._ports.observer.observe(RolledBack(at_s=self._ports.clock.now(), epoch=undone, era=mandate.era))
        history = self.reporter.report(view)
        if history is not None:
            self._goal.note_epoch(history[0], len(view.all_trainers()))

    def _version(self) -> int | None:
        """That is stored of the present history, where parameters are."""
        return self.keeper.version if self.keeper.era == self.statutes.mandate.era else None

    def contributors(self) -> frozenset[PeerId]:
        """To the last rounds that we know of."""
        return frozenset(contributors_of(self._engine.known_records()))

    def _note_round(self, record: CommitRecord) -> None:
        self._coverage.note_round(record)
        self._ports.observer.observe(shares_of(record, self.membership.view))

    def _notice(self, text: str, hint: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint))
