"""The backbone role: bootstrap, leader of choice, reducer, keeper of state and checkpoints. Needs no GPU."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collab.averaging.assistant import Assistant, assisting_engine
from collab.checkpoints.local import load_newest, prune, save_checkpoint
from collab.checkpoints.rolled_back import begin_again
from collab.concurrency import run_until_first
from collab.errors import CheckpointFailed, CorruptState, NoDonor, StateError
from collab.metrics.records import CheckpointSaved, Notice, StateFetched, SwarmReport
from collab.ports import Ports
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.donation import StateServer
from collab.swarm.handover import Offer, serve_handover
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.order_exchange import OrderExchange
from collab.swarm.orders import Rollback
from collab.swarm.progress import ProgressBoard, SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack, unpack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.swarm.statutes import Statutes
from collab.swarm.time_sync import serve_time
from collab.types import Lineage, PeerId, Role
from peers.summary import newest_evaluation, swarm_loss

logger = logging.getLogger(__name__)

FOLLOW_S = 0.5
"""How often the backbone looks where the swarm stands."""
EVALUATION_WAIT_S = 15.0
"""How long a checkpoint waits for the evaluation that a trainer makes of its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSettings:
    """What the organiser decides on the machine."""

    name: str
    checkpoint_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a backbone needs of the task, without holding a model itself."""

    make_first_state: Callable[[], Snapshot]
    checkpoint_files: Callable[[], Mapping[str, bytes]]


class Backbone:
    """One backbone peer over the ports."""

    def __init__(
        self, ports: Ports, identity: Identity, bundle: Bundle, workshop: Workshop, settings: BackboneSettings
    ) -> None:
        self._ports, self._bundle, self._workshop, self._settings = ports, bundle, workshop, settings
        self._packed: PackedSnapshot | None = None
        self._state = PeerState.SERVING
        self._saved_epoch = -1
        self._era = ""
        self._free_from: int | None = None
        self._saving = asyncio.Lock()
        self._reported: tuple[int, Lineage] | None = None
        self.statutes = Statutes(ports, bundle)
        board = ProgressBoard(ports, identity, bundle.fingerprint, self.statutes)
        self.membership = Membership(board, ports.clock, self.record)
        self.assistant = Assistant(self.membership.knows)
        self._engine = assisting_engine(ports, self.statutes, self.membership, self.assistant)
        path = settings.checkpoint_dir.parent / "orders"
        self._orders = OrderExchange(ports, self.statutes.mandate, lambda: self.membership.view, path)

    async def begin(self) -> None:
        """Restore or make the run's state and begin to answer."""
        self._orders.restore()
        await self._restore()
        await self._orders.serve()
        transport, fingerprint = self._ports.transport, self._bundle.fingerprint
        await serve_time(transport, self._ports.clock)
        await serve_bundle(transport, self._bundle)
        await StateServer(transport, self._engine.links, fingerprint, self._provide).serve()
        await serve_handover(transport, fingerprint, self._take)
        await self._engine.serve()
        await self.membership.report()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; ``begin`` comes first."""
        await run_until_first(
            self.membership.keep_alive(),
            self.assistant.run(self._engine),
            self._orders.run(),
            self._follow(),
            stop.wait(),
        )
        await self._saving.acquire()  # a checkpoint under way is finished first
        self._free_from = self._engine.retire()
        self._state = PeerState.LEAVING if self._free_from is None else PeerState.LEFT
        await self.membership.report()

    # -- state -------------------------------------------------------------------------------------------------------

    async def _restore(self) -> None:
        root, fingerprint = self._settings.checkpoint_dir, self._bundle.fingerprint
        snapshot = await self._ports.compute.run(lambda: load_newest(root, fingerprint=fingerprint))
        if snapshot is None:
            first = await self._ports.compute.run(self._workshop.make_first_state)
            await self._save(first, {})
            self._packed = await self._ports.compute.run(lambda: pack(first, fingerprint=fingerprint))
        else:
            logger.info("resuming epoch=%d from=%s", snapshot.epoch, root)
            self._saved_epoch, self._era = snapshot.epoch, snapshot.era
            self._packed = await self._ports.compute.run(lambda: pack(snapshot, fingerprint=fingerprint))

    async def _provide(self, epoch: int | None) -> PackedSnapshot | None:
        packed = self._packed
        return packed if packed is not None and epoch in (None, packed.manifest.epoch) else None

    async def _take(self, peer: PeerId, offer: Offer) -> bool:
        """A trainer that leaves offers its state."""
        async with self._saving:
            if offer.epoch > self._saved_epoch:
                packed = await self._fetch(offer.epoch, [peer])
                if packed is not None:
                    told = {"eval_loss": offer.eval_loss} if math.isfinite(offer.eval_loss) else {}
                    await self._keep(packed, told or self._evaluation_now(offer.epoch))
            return self._packed is not None and self._packed.manifest.epoch >= offer.epoch

    async def _follow(self) -> None:
        """Watch where the swarm stands: report it, and fetch a checkpoint when one is due."""
        every = self._bundle.run.checkpoints.every_epochs
        is_told = False
        while True:
            await self._roll_back()
            until = self.statutes.mandate.until_epoch
            view = self.membership.view
            consensus = view.consensus()
            if consensus is not None:
                self._report(view, consensus)
                due = consensus[0] // every * every if until is None or consensus[0] < until else until
                if due > self._saved_epoch:
                    await self._checkpoint(due, [r.peer for r in view.all_trainers() if r.epoch >= due and r.lineage])
            if until is not None and self._saved_epoch >= until and not is_told:
                is_told = True
                text = f"the run is finished: epoch {until} is saved in {self._settings.checkpoint_dir}"
                self._notice(text, "press Ctrl+C to stop serving it")
            await asyncio.sleep(FOLLOW_S)

    async def _roll_back(self) -> None:
        """Serve the checkpoint that the organiser has gone back to; what came after it is set aside."""
        order = self.statutes.mandate.book.rollback()
        if order is None or not isinstance(what := order.what, Rollback) or self._era == order.mark:
            return
        root, fingerprint, mark = self._settings.checkpoint_dir, self._bundle.fingerprint, order.mark
        async with self._saving:
            self._packed, self._saved_epoch, self._era = None, -1, mark  # nobody must go on from what we have
            begin = partial(begin_again, root, what, mark, fingerprint=fingerprint)
            try:
                begun = await self._ports.compute.run(begin)
                if begun is None:
                    raise StateError(
                        f"the organiser has gone back to epoch {what.to_epoch}, of which there is no checkpoint here",
                        hint="another backbone may have it; else roll back to another epoch",
                    )
                await self._save(begun, {})
                self._packed = await self._ports.compute.run(lambda: pack(begun, fingerprint=fingerprint))
            except StateError as error:
                self._notice(error.message, error.hint, is_problem=True)
        await self.membership.report()

    async def _checkpoint(self, epoch: int, donors: list[PeerId]) -> None:
        packed = await self._fetch(epoch, donors)
        if packed is None:
            return
        evaluation = await self._evaluation_of(epoch)
        async with self._saving:
            if epoch > self._saved_epoch:
                await self._keep(packed, evaluation)

    async def _fetch(self, epoch: int, donors: list[PeerId]) -> PackedSnapshot | None:
        """The snapshot of ``epoch``, verified; None when nobody can give it now."""
        started_s = self._ports.clock.monotonic()
        try:
            packed, gave = await fetch_state(
                self._ports.transport,
                self._engine.links,
                donors,
                fingerprint=self._bundle.fingerprint,
                wanted=Wanted(epoch=epoch),
            )
        except NoDonor as error:
            logger.info("no snapshot of epoch %d yet: %s", epoch, error.message)
            return None
        now, seconds = self._ports.clock.now(), self._ports.clock.monotonic() - started_s
        fetched = StateFetched(at_s=now, donors=gave, epoch=epoch, num_bytes=packed.manifest.num_bytes, seconds=seconds)
        self._ports.observer.observe(fetched)
        return packed

    async def _keep(self, packed: PackedSnapshot, evaluation: Mapping[str, float]) -> None:
        """Serve a snapshot from now on, and write it to the disk."""
        self._packed = packed
        try:
            snapshot = await self._ports.compute.run(lambda: unpack(packed))
            await self._save(snapshot, evaluation)
        except (CheckpointFailed, CorruptState) as error:
            self._notice(error.message, error.hint, is_problem=True)

    def _evaluation_now(self, epoch: int) -> dict[str, float]:
        """What trainers say they measured at ``epoch``."""
        losses = [record.eval_loss for record in self.membership.view.records if record.eval_epoch == epoch]
        return {"eval_loss": losses[0]} if losses else {}

    async def _evaluation_of(self, epoch: int) -> dict[str, float]:
        """The same, but waits for the trainer that is measuring."""
        give_up_s = self._ports.clock.monotonic() + EVALUATION_WAIT_S
        while not (evaluation := self._evaluation_now(epoch)) and self._ports.clock.monotonic() < give_up_s:
            await asyncio.sleep(FOLLOW_S)
        return evaluation

    async def _save(self, snapshot: Snapshot, metrics: Mapping[str, float]) -> None:
        started_s = self._ports.clock.monotonic()
        root, run = self._settings.checkpoint_dir, self._bundle.run

        def write() -> CheckpointSaved:
            saved = save_checkpoint(
                root,
                snapshot,
                fingerprint=self._bundle.fingerprint,
                files=self._workshop.checkpoint_files(),
                metrics=metrics,
            )
            prune(root, run.checkpoints.keep)
            return CheckpointSaved(
                at_s=self._ports.clock.now(),
                epoch=saved.epoch,
                path=str(saved.path),
                num_bytes=saved.num_bytes,
                seconds=0.0,
            )

        event = await self._ports.compute.run(write)
        self._saved_epoch = snapshot.epoch
        self._ports.observer.observe(replace(event, seconds=self._ports.clock.monotonic() - started_s))
        await self.membership.report()

    # -- telling -----------------------------------------------------------------------------------------------------

    def _report(self, view: SwarmView, consensus: tuple[int, Lineage]) -> None:
        if consensus == self._reported:
            return
        self._reported = consensus
        trainers = view.all_trainers()
        self._ports.observer.observe(
            SwarmReport(
                at_s=view.at_s,
                epoch=consensus[0],
                lineage=consensus[1],
                loss=swarm_loss(view),
                eval_loss=newest_evaluation(view)[1],
                eval_epoch=newest_evaluation(view)[0],
                samples_per_s=sum(record.samples_per_s for record in trainers),
                trainers=len(trainers),
                peers=len(view.records),
            )
        )

    def _notice(self, text: str, hint: str, *, is_problem: bool = False) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=is_problem))

    def record(self) -> PeerRecord:
        """Our word to the swarm, as of now."""
        manifest = self._packed.manifest if self._packed else None
        return PeerRecord(
            peer=self._ports.transport.peer_id,
            fingerprint=self._bundle.fingerprint,
            name=self._settings.name,
            role=Role.BACKBONE,
            state=self._state,
            epoch=self._free_from if self._free_from is not None else manifest.epoch if manifest else 0,
            lineage=manifest.lineage if manifest else Lineage(""),
            can_be_dialled=True,
            checkpoint_epoch=self._saved_epoch,
            era=self._era,
            said_at=self._ports.clock.now(),
        )
