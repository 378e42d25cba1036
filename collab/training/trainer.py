"""A trainer: one coroutine over the ports. The same object trains on a volunteer's machine and in the simulation."""

import asyncio
import logging
from dataclasses import dataclass

from collab.averaging.round import RoundEngine, RoundSettings
from collab.data.sampling import SampleSampler
from collab.metrics.records import (
    EpochFinished,
    EvaluationDone,
    MicrobatchDone,
    MicrobatchSkipped,
    Notice,
    Phase,
    PhaseReached,
)
from collab.ports import Ports
from collab.strategies.base import OutOfStep, Stepped, Swarm, Waiting
from collab.strategies.registry import build_strategy
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.handover import offer_state
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.progress import ProgressBoard
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.state_transfer import StateServer
from collab.swarm.time_sync import serve_time
from collab.tasks.base import Task
from collab.training.replica import MicrobatchReport, Replica, Used
from collab.training.state_sync import StateSync
from collab.training.vitals import Vitals
from collab.types import Lineage, Role

logger = logging.getLogger(__name__)

LEAVE_GRACE_S = 2.0
"""A microbatch or a round that ends within this time after Ctrl+C is still finished."""
URGENT_HANDOVER_S = 2.0
"""For the last trainer to hand its state to a backbone when it is asked to leave."""
FINAL_HANDOVER_S = 120.0
"""The same when the run is finished and nobody is in a hurry."""
SKIPS_BEFORE_RENEWAL = 8
"""Microbatches in a row that are not finite before the replica itself is suspected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What is this machine's own business."""

    name: str
    microbatch_size: int
    can_be_dialled: bool = True
    max_epochs: int | None = None
    """Leave after contributing to this many steps."""


class Trainer:
    """Joins, trains until stopped or finished, and leaves without losing anybody's work."""

    def __init__(
        self, ports: Ports, identity: Identity, bundle: Bundle, task: Task, replica: Replica, settings: TrainerSettings
    ) -> None:
        self._ports, self._bundle, self._task, self._replica, self._settings = ports, bundle, task, replica, settings
        self.vitals = Vitals()
        self._strategy = build_strategy(bundle.run.strategy)
        self.membership = Membership(ProgressBoard(ports, identity, bundle.fingerprint), ports.clock, self.record)
        self._engine = self._build_engine()
        self._sync = StateSync(
            ports, replica, self._strategy, self.membership, self._engine.history, bundle.fingerprint
        )
        self._swarm = Swarm(
            peer_id=ports.transport.peer_id, progress=self.membership, averager=self._engine, worker=ports.compute
        )
        self._sampler = SampleSampler(task.num_samples, seed=bundle.run.seed, peer_id=ports.transport.peer_id)
        self._last_step_s = 0.0

    def _build_engine(self) -> RoundEngine:
        run, now_s = self._bundle.run, self._ports.clock.monotonic
        settings = RoundSettings.of(run, self._bundle.fingerprint, can_reduce=self._settings.can_be_dialled)
        return RoundEngine(
            self._ports,
            settings,
            leaders=self.membership.leaders,
            roster=self.membership.roster,
            attend=lambda epoch, lineage, _: self._attend(epoch, lineage, now_s()),
        )

    def _attend(self, epoch: int, lineage: Lineage, now_s: float) -> float | None:
        """Answer a leader's call; a peer whose gradients are not finite at the moment sits the round out."""
        if self.vitals.skipped_in_a_row:
            return None
        return self.membership.attend(epoch, lineage, self.vitals.busy_for_s(now_s))

    # -- the training loop -------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        await self.synchronise()
        while not self.is_finished:
            sample_ids = self._sampler.next(self._settings.microbatch_size)
            report = await self._accumulate(sample_ids)
            if await self.after_microbatch(report):
                await self._after_step()

    async def _accumulate(self, sample_ids: tuple[int, ...]) -> MicrobatchReport:
        """One forward and backward on the worker."""
        self._observe_phase(Phase.ACCUMULATE)
        started_s = self._ports.clock.monotonic()
        self.vitals.begin_microbatch(started_s)
        report = await self._ports.compute.run(
            lambda: self._replica.accumulate(self._task.batch(sample_ids), self._task.loss), samples=len(sample_ids)
        )
        self.note_microbatch(report, self._ports.clock.monotonic() - started_s)
        return report

    async def after_microbatch(self, report: MicrobatchReport) -> bool:
        """Let the strategy decide and follow it; whether the replica took a step."""
        if report.skipped:
            await self._sit_out()
            return False
        decision = await self._strategy.after_microbatch(self._replica, self._swarm)
        if isinstance(decision, Waiting) and decision.reason:
            logger.info("round lost epoch=%d reason=%s", self._replica.epoch, decision.reason)
        if isinstance(decision, Stepped):
            self._note_step(decision)
        if isinstance(decision, OutOfStep) or (self._strategy.follows_swarm and self.membership.is_out_of_step()):
            await self.synchronise()
        return isinstance(decision, Stepped)

    async def _sit_out(self) -> None:
        """A microbatch was not finite. One is bad luck; many in a row are a broken replica, so its state is renewed."""
        if self.vitals.skipped_in_a_row % SKIPS_BEFORE_RENEWAL == 0:
            text = f"{self.vitals.skipped_in_a_row} microbatches in a row were not finite; taking over the swarm's state"
            hint = "if this goes on, check this machine's memory and drivers; the swarm never sees these gradients"
            self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=True))
            self._replica.lineage = Lineage("")  # whatever we hold is not the swarm's history any more
            await self.synchronise()

    async def _after_step(self) -> None:
        """Duties at the epochs that the run file names: a copy for the backbone, an evaluation by one of us."""
        run, epoch = self._bundle.run, self._replica.epoch
        is_last = run.until_epoch is not None and epoch >= run.until_epoch
        if epoch % run.checkpoints.every_epochs and not is_last:
            return
        await self._sync.keep()
        trainers = sorted(record.peer for record in self.membership.view.all_trainers())
        turn = (epoch // run.checkpoints.every_epochs) % max(1, len(trainers))
        if is_last or not trainers or trainers[turn] == self._ports.transport.peer_id:
            await self.evaluate()

    async def evaluate(self) -> float:
        """Loss on the held-out split; told to the swarm."""
        started_s, epoch = self._ports.clock.monotonic(), self._replica.epoch
        loss = await self._ports.compute.run(lambda: self._task.evaluate(self._replica.model))
        self.vitals.eval_epoch, self.vitals.eval_loss = epoch, loss
        seconds = self._ports.clock.monotonic() - started_s
        self._ports.observer.observe(EvaluationDone(at_s=self._ports.clock.now(), epoch=epoch, loss=loss, seconds=seconds))
        await self.membership.report()
        return loss

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Train until ``stop`` is set, the run is finished, or this machine has given what it offered."""
        await self.begin()
        heartbeat = asyncio.create_task(self.membership.keep_alive())
        training = asyncio.create_task(self._train())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((heartbeat, training, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await asyncio.wait((training,), timeout=LEAVE_GRACE_S)
            elif training.done():
                training.result()
                await self.leave(is_urgent=False)
        finally:
            for task in (heartbeat, training, stopping):
                task.cancel()
            results = await asyncio.gather(heartbeat, training, stopping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        await self.leave(is_urgent=True)

    async def begin(self) -> None:
        """Begin to answer other peers; joins no round yet."""
        transport = self._ports.transport
        await serve_time(transport, self._ports.clock)
        await serve_bundle(transport, self._bundle)
        await StateServer(transport, self._bundle.fingerprint, self._sync.provide).serve()
        await self._engine.serve()

    async def synchronise(self) -> None:
        """Take over the swarm's state, and say so."""
        self.vitals.state = PeerState.SYNCING
        await self._sync.synchronise()
        self.vitals.state = PeerState.TRAINING
        self._last_step_s = self._ports.clock.monotonic()
        await self.membership.report()

    async def leave(self, *, is_urgent: bool) -> None:
        """Say goodbye; when the newest state would leave with us, a backbone takes it first. Leaving twice is fine."""
        if self.vitals.state is PeerState.LEFT:
            return
        if self.vitals.state is PeerState.TRAINING and (self.is_finished or self.membership.is_last_trainer()):
            epoch = self._replica.epoch
            behind = [record.peer for record in self.membership.backbones() if record.checkpoint_epoch < epoch]
            timeout_s = URGENT_HANDOVER_S if is_urgent else FINAL_HANDOVER_S
            await offer_state(self._ports.transport, behind, self._bundle.fingerprint, epoch, timeout_s)
        self.vitals.state = PeerState.LEFT
        await self.membership.report()

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do for this machine."""
        until, mine = self._bundle.run.until_epoch, self._settings.max_epochs
        return (until is not None and self._replica.epoch >= until) or (
            mine is not None and self.vitals.epochs_contributed >= mine
        )

    # -- telling -----------------------------------------------------------------------------------------------------

    def record(self) -> PeerRecord:
        """Our word to the swarm, as of now."""
        vitals, replica = self.vitals, self._replica
        return PeerRecord(
            peer=self._ports.transport.peer_id,
            fingerprint=self._bundle.fingerprint,
            name=self._settings.name,
            role=Role.TRAINER,
            state=vitals.state,
            epoch=replica.epoch,
            lineage=replica.lineage,
            samples=replica.samples,
            samples_per_s=vitals.samples_per_s,
            microbatch_s=vitals.microbatch_s,
            loss=vitals.loss,
            total_samples=vitals.total_samples,
            epochs_contributed=vitals.epochs_contributed,
            can_be_dialled=self._settings.can_be_dialled,
            eval_epoch=vitals.eval_epoch,
            eval_loss=vitals.eval_loss,
            said_at=self._ports.clock.now(),
        )

    def note_microbatch(self, report: MicrobatchReport, seconds: float) -> None:
        """Book one microbatch that took ``seconds``."""
        self.vitals.end_microbatch(report, seconds)
        now, epoch = self._ports.clock.now(), self._replica.epoch
        if report.skipped:
            logger.warning("microbatch left out epoch=%d reason=%s", epoch, report.skipped)
            event = MicrobatchSkipped(at_s=now, epoch=epoch, samples=report.samples, reason=report.skipped)
            self._ports.observer.observe(event)
            return
        done = MicrobatchDone(at_s=now, epoch=epoch, samples=report.samples, loss=report.loss, seconds=seconds)
        self._ports.observer.observe(done)

    def _note_step(self, decision: Stepped) -> None:
        used = self._replica.used if decision.was_ours_used else Used()
        if decision.was_ours_used:
            self.vitals.end_epoch(used)
        now_s = self._ports.clock.monotonic()
        finished = EpochFinished(
            at_s=self._ports.clock.now(),
            epoch=self._replica.epoch,
            lineage=self._replica.lineage,
            loss=used.loss,
            own_samples=len(used.sample_ids),
            sample_ids=used.sample_ids,
            swarm_samples=decision.swarm_samples,
            contributors=decision.contributors,
            learning_rate=self._replica.learning_rate,
            seconds=now_s - self._last_step_s,
        )
        self._last_step_s = now_s
        self._ports.observer.observe(finished)

    def _observe_phase(self, phase: Phase) -> None:
        self._ports.observer.observe(PhaseReached(at_s=self._ports.clock.now(), phase=phase, epoch=self._replica.epoch))
