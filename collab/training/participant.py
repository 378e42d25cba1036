"""A peer that holds a replica: everything a trainer does but computing gradients.

``Trainer`` adds a task and the training loop; ``collab.join`` puts the user's own loop in its place.
"""

import asyncio
import logging
import math

from collab.averaging.base import Aborted, Committed, Outcome
from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.round import RoundEngine
from collab.averaging.settings import RoundSettings
from collab.averaging.standing import Standing
from collab.concurrency import run_until_first
from collab.errors import Dismissed
from collab.ports import Ports
from collab.strategies.base import Decision, OutOfStep, Ready, Stepped, Swarm, Waiting
from collab.strategies.registry import build_strategy
from collab.swarm.batch_watch import BatchWatch
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.donation import StateServer
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.order_exchange import OrderExchange
from collab.swarm.records import PeerState
from collab.swarm.statutes import Statutes
from collab.swarm.time_sync import serve_time
from collab.training.aims import aims_of
from collab.training.beside import Beside, Patience
from collab.training.departure import Departure
from collab.training.disk_copy import DiskCopy
from collab.training.dismissal import dismissal, until_dismissed
from collab.training.fresh_epoch import FreshEpoch
from collab.training.participant_settings import ParticipantSettings
from collab.training.replica import MicrobatchReport, Replica
from collab.training.standstill import Remedy, Standstill
from collab.training.state_shelf import StateShelf
from collab.training.state_sync import StateSync
from collab.training.teller import Teller
from collab.training.update import Update
from collab.types import Lineage, PeerId, Reachability

logger = logging.getLogger(__name__)

STALE_EPOCHS = 4
"""Whoever is further behind the swarm computes nothing until it has its state: such gradients lead nowhere."""


class Participant:
    """Keeps one replica in the swarm: rounds, state, records, goodbye."""

    def __init__(
        self, ports: Ports, identity: Identity, bundle: Bundle, replica: Replica, settings: ParticipantSettings
    ) -> None:
        self.ports, self.bundle, self.replica, self.settings = ports, bundle, replica, settings
        self.teller = Teller(ports, bundle.fingerprint, settings.name, replica, settings.reach)
        self.teller.wants_credit, self.vitals = settings.wants_credit, self.teller.vitals
        self.statutes = Statutes(ports, bundle)
        mandate, is_direct = self.statutes.mandate, settings.reach is Reachability.DIRECT
        replica.rate_factor = mandate.rate_factor
        rounds = RoundSettings.of(bundle.run, bundle.fingerprint, mandate, can_reduce=is_direct)

        def batch_size(epoch: int) -> float:
            return rounds.batch_size(epoch, self.membership.view.num_trainers)

        self._strategy = build_strategy(bundle.run.strategy, batch_size, settings.allowed_modules)
        board, root = ProgressBoard(ports, identity, bundle.fingerprint, self.statutes), settings.state_dir
        self.membership = Membership(board, ports.clock, self.teller.record)
        leaders, roster, ask = self.membership.leaders, self.membership.roster, self.membership.ask
        engine = RoundEngine(ports, rounds, leaders=leaders, roster=roster, attend=self._attend, prepare=ask)
        self._engine, self.teller.has_seat, self.membership.maker = engine, engine.has_seat, engine.leading_to
        self.membership.known_records = engine.known_records
        self._standing = Standing(ports, engine.fingerprint, leaders, engine.attend, engine.links.timeouts)
        self._watch = BatchWatch(self.membership, self._standing)
        self._sync = StateSync(ports, replica, self._strategy, self.membership, engine, root)
        self._standing.catches_up, self._sync.tell = self._sync.pursuit.hurry, settings.tell_download
        self._shelf = StateShelf(ports, replica, engine.fingerprint)
        self._copy = DiskCopy(ports, replica, root and root / "copies", bundle.fingerprint)
        self._sync.pursuit.fresh = FreshEpoch(ports, self.membership, self._engine.links, bundle.run, replica, mandate)
        self._orders = OrderExchange(ports, mandate, lambda: self.membership.view, root and root / "orders")
        self._sync.orders, self._is_measured, self._patience = self._orders, False, Patience()
        self._departure = Departure(
            ports=ports, replica=replica, teller=self.teller, membership=self.membership, engine=engine,
            copy=self._copy, mandate=mandate,
        )
        self.swarm = Swarm(peer_id=ports.transport.peer_id, progress=self._watch, averager=engine, worker=ports.compute)
        self._round, self._renewal = Beside(self._contribute, ports.clock), Beside(self._sync.gather, ports.clock)
        aims = aims_of(self._strategy, self.membership, replica, batch_size)
        self.standstill = Standstill(ports, self.membership, aims, lambda: self._round.is_under_way)
        self.standstill.help, self.standstill.skipped = self._help, lambda: self.vitals.skipped_in_a_row
        self.membership.is_stuck, self.membership.trusts = self.standstill.is_stuck, self.statutes.trusts_backbone

    def _attend(self, call: Call, _leader: PeerId) -> Reply:
        """Answer a leader's call; a peer whose gradients are not finite at the moment sits the round out.

        When our microbatch ends too late for the others, we come at once with what we have accumulated before it; so we
        do always where rounds go on beside microbatches, but for the last one, and after one that may have used that.
        """
        free_in_s = self.vitals.busy_for_s(self.ports.clock.monotonic())
        if self.vitals.skipped_in_a_row or not self.membership.is_training_at(call.epoch, call.lineage):
            return NOT_COMING
        waits = free_in_s <= call.patience_s and (self._strategy.is_synchronous or self._is_last_step)
        if waits or (isinstance(lost := self._round.untaken, Aborted) and (lost.rounds or self.replica.windows > 1)):
            self._watch.note_call((call.epoch, call.lineage))
            return Reply(is_coming=True, comes_in_s=free_in_s, free_in_s=free_in_s)
        self._round.let_go(Aborted)
        if self._round.is_under_way or not self.replica.samples:
            return Reply(is_coming=False, free_in_s=free_in_s)
        self._round.begin()
        return Reply(is_coming=True, free_in_s=free_in_s)

    # -- training ----------------------------------------------------------------------------------------------------

    async def after_microbatch(self, report: MicrobatchReport) -> bool:
        """Let the strategy decide and follow it; whether the replica took a step.

        A round that takes longer than usual, and a state that is long on its way, go on beside the next microbatch.
        """
        await self._adopt()
        has_stepped = await self._end_round()
        if self.is_finished or self._round.is_under_way or self._renewal.is_under_way:
            return has_stepped
        is_rolled_back = self.replica.era != self.statutes.mandate.era and self._strategy.follows_swarm
        if is_rolled_back or report.skipped:
            await (self.synchronise() if is_rolled_back else self._sit_out())
            return has_stepped
        decision = await self._strategy.after_microbatch(self.replica, self.swarm)
        if isinstance(decision, Ready):
            self._round.begin()
            return await self._end_round() or has_stepped
        return await self._follow(decision) or has_stepped

    @property
    def is_undisturbed(self) -> bool:
        """Whether ``after_microbatch`` would do nothing: a round goes on that nobody waits for. Any thread may ask."""
        return self._round.goes_on and not self._renewal.is_under_way and self._patience_s <= 0.0

    async def news(self) -> None:
        """Returns when there is something to do but compute: the others wait for us, or what we wait for is here."""
        await run_until_first(self._watch.called(), self._round.over(), self._renewal.over())

    async def conclude(self) -> None:
        """No microbatch follows: the round that is still under way is seen to its end."""
        await self._end_round(waits=True)
        if self.is_finished:
            await self.ports.compute.run(self.replica.rest)

    async def _contribute(self) -> Outcome:
        """One round, beside the training loop."""
        began_s = self.ports.clock.monotonic()
        outcome = await self._strategy.contribute(self.replica, self.swarm)
        if isinstance(outcome, Committed):
            self._patience.add(self.ports.clock.monotonic() - began_s)
            self.teller.note_round(outcome.record)
        return outcome

    @property
    def _patience_s(self) -> float:
        """For a round; the last one is waited for, since nobody could use what is computed beside it."""
        if self._is_last_step:
            return math.inf
        return self._strategy.patience_s(self.replica, self._patience.limit_s())

    @property
    def _is_last_step(self) -> bool:
        return self.replica.epoch + 1 == self.statutes.mandate.until_epoch

    async def _end_round(self, *, waits: bool = False) -> bool:
        """Act on the round that was begun, if it is over in time; whether the replica took a step."""
        news = self.replica.advanced if self.replica.windows > 1 else None
        outcome = await self._round.result_or_news(lambda: math.inf if waits else self._patience_s, news)
        if outcome is None:
            if self.replica.has_news:
                await self.ports.compute.run(self.replica.catch_up)
            return False
        return await self._follow(await self._strategy.take(self.replica, self.swarm, outcome))

    async def _follow(self, decision: Decision) -> bool:
        """Do what a decision asks for; whether the replica took a step."""
        if isinstance(decision, Waiting) and decision.reason:
            logger.info("round lost epoch=%d reason=%s", self.replica.epoch, decision.reason)
            self.standstill.failure = decision.reason
        if isinstance(decision, Stepped):
            self.membership.note_step()
            self.teller.note_step(decision)
            if self.is_checkpoint_due:
                await self._shelf.keep()
            self._copy.note_step()
        is_astray = self._strategy.follows_swarm and self.membership.is_out_of_step()
        if isinstance(decision, OutOfStep) or (is_astray and not self._round.is_under_way):
            self.vitals.state = PeerState.SYNCING
            self._watch.tell()
            self._renewal.begin()
            await self._adopt()
        return isinstance(decision, Stepped)

    async def _sit_out(self) -> None:
        """A microbatch was not finite; after many of them the replica's state is renewed, by the next unit if any."""
        if (suspicion := self.vitals.suspicion(self.ports.clock.now())) is not None:
            self.ports.observer.observe(suspicion)
            if self.swarm.units is None:
                self.replica.lineage = Lineage("")  # whatever we hold is not the swarm's history any more
                await self.synchronise()

    # -- life --------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin to answer other peers; joins no round yet."""
        self._orders.restore()
        await self._copy.restore()
        await self._orders.serve()
        await serve_time(self.ports.transport, self.ports.clock)
        await serve_bundle(self.ports.transport, self.bundle)
        engine, provide = self._engine, self._shelf.provide
        await StateServer(self.ports.transport, engine.links, self.bundle.fingerprint, provide).serve()
        await engine.serve()

    async def keep_alive(self) -> None:
        """Heartbeat, and a stream to whoever leads, until cancelled."""
        own = (self.membership.keep_alive, self._standing.run, self._round.run, self._renewal.run, self._copy.run)
        async with asyncio.TaskGroup() as tasks:
            for run in (*own, self._orders.run, self._sync.note_progress, self.standstill.run):
                tasks.create_task(run())

    def _help(self, remedy: Remedy) -> None:
        """The epoch has not grown for long."""
        is_busy = self._round.is_under_way or self._renewal.is_under_way
        if remedy is Remedy.REJOIN:
            self._standing.let_go()
            self.membership.ask(anew=True)
        elif remedy is Remedy.RESYNC and self._strategy.follows_swarm and not is_busy:  # else others' is of no use
            self.vitals.state = PeerState.SYNCING
            self._renewal.begin()

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a backbone will want the state of this epoch."""
        return self.is_finished or self.replica.epoch % self.bundle.run.checkpoints.every_epochs == 0

    async def measure_link(self) -> None:
        """Find out what our link carries, before the first round is planned with it; nothing if nobody is there."""
        await self.membership.look()
        if peers := self.membership.dialable():
            self._is_measured = True  # or nobody had time
            await self._engine.probe.measure(peers)

    async def synchronise(self) -> None:
        """Take over the swarm's state, and say so. Nothing may be computed meanwhile."""
        self.vitals.state = PeerState.SYNCING
        self._watch.tell()  # so that whoever leads knows that we are on our way
        await self._take_over(await self._sync.gather())
        if self._strategy.is_synchronous:  # else a round is put off for us as soon as we can bring something
            await self.membership.report()
            if (missed := await self._sync.missed(waits=False)).rounds:  # that began before our word was out
                await self._take_over(missed)
                await self.membership.report()
        if not self._is_measured:  # whoever gave us the state is there now
            await self.measure_link()

    async def _adopt(self) -> None:
        """Take over the state that is on its way, as soon as it is here.

        That is worth waiting for half a microbatch; longer if what we would compute is of little use to anybody.
        """
        is_far_behind = self.membership.epochs_behind() > STALE_EPOCHS or not self.replica.lineage
        patience_s = math.inf if is_far_behind else self.vitals.microbatch_s / 2
        if (update := await self._renewal.result(patience_s)) is not None:
            await self._take_over(update)

    async def _take_over(self, update: Update) -> None:
        await self._sync.apply(update)
        self.vitals.state = PeerState.TRAINING
        self.membership.note_step()
        for missed in update.rounds:
            self.teller.note_round(missed.record)
        self.teller.note_state(is_whole=update.snapshot is not None)
        self.teller.note_late_use()
        self._watch.tell()
        self.membership.speak()

    async def leave(self, *, is_urgent: bool) -> None:
        """Say goodbye, and let a backbone take the newest state when it would leave with us. Leaving twice is fine."""
        await self._departure.leave(is_finished=self.is_finished, is_urgent=is_urgent)

    def unwanted(self) -> Dismissed | None:
        """Why this peer must stop; None: it may go on."""
        return dismissal(self.ports, self.statutes, self.membership, self.replica.epoch)

    async def dismissed(self) -> None:
        """Returns when this peer must stop, whatever it is waiting for."""
        await until_dismissed(self.unwanted, self.ports, self.statutes)

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do for this machine."""
        until, mine = self.statutes.mandate.until_epoch, self.settings.max_epochs
        has_given = mine is not None and self.vitals.epochs_contributed >= mine
        return has_given or (until is not None and self.replica.epoch >= until)
