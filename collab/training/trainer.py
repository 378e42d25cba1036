"""A trainer: the training loop over a participant. The same object trains on real machines and in simulations."""

import asyncio
import math
from typing import Any

import torch

from collab.concurrency import end, first_of, run_until_first
from collab.metrics.guest_records import Paused
from collab.metrics.records import Notice, Phase, PhaseReached
from collab.tasks.base import Task
from collab.training.device_memory import device_full, is_full, room_for
from collab.training.evaluating import Evaluating
from collab.training.microbatch import SHARE, MicrobatchSize
from collab.training.participant import Participant
from collab.training.pausing import HAND_IN_S, Pause, can_hand_in
from collab.training.replica import MicrobatchReport
from collab.training.standstill import LOOK_S
from collab.training.supply import build_supply

NOTHING_COMPUTED = MicrobatchReport(samples=0, loss=math.nan, skipped="")
FLOAT32_FROM_NOW_ON = "this machine computes in float32 from now on"
LEAVE_GRACE_S = 2.0
"""A microbatch or a round that ends within this time after Ctrl+C is still finished."""


class Trainer:
    """Joins, trains until stopped or finished, and leaves without losing anybody's work."""

    def __init__(
        self, participant: Participant, task: Task, *, microbatch_size: int, may_grow: bool = False
    ) -> None:
        """
        Args:
            may_grow: larger microbatches are tried, and kept where they bring more samples a second.
        """
        self.participant, self._task = participant, task
        ports, run = participant.ports, participant.bundle.run
        self._ports, self._run, self._replica = ports, run, participant.replica
        self._supply, self._evaluating = build_supply(participant, task), Evaluating(participant, task)
        most = max(run.strategy.target_batch_size // SHARE, 1)
        self._size = MicrobatchSize(microbatch_size, most=most, grows=may_grow)
        self._left: tuple[int, ...] = ()
        """Samples that were too many at once."""
        self._coming: asyncio.Task[tuple[int, ...]] | None = None
        """Samples that we wait for."""
        self._pause, self._can_hand_in = Pause(), can_hand_in(run.strategy)
        participant.standstill.waits = run.when_alone == "wait"

    async def run(self, stop: asyncio.Event, pause: Pause | None = None) -> None:
        """Train until ``stop`` is set, the run is finished, or this machine has given what it offered.

        Args:
            pause: when it is wanted the device is freed at once; what was computed goes into the swarm's next step, and
                then we leave. Whoever comes back comes as another trainer over the same directory. None: never.

        Raises:
            Dismissed: this peer is banned or too old, or nobody runs the run any more; it has left in good order.
            DeviceFull: the device's memory is too small for this run, or other programs have it.
            Exception: training has failed with it. The peer has said its goodbye, too.
        """
        self._pause = pause or self._pause
        with room_for("the state that this peer has kept does not fit"):
            await self.participant.begin()
        beside = [asyncio.create_task(run) for run in (self.participant.keep_alive(), self._supply.run())]
        try:
            await asyncio.sleep(0)  # they begin before training does
            await self._train_and_leave(stop, beside)
        finally:
            await end(*beside)

    async def _train_and_leave(self, stop: asyncio.Event, beside: list[asyncio.Task[None]]) -> None:
        """
        Args:
            beside: what training cannot do without; the goodbye can.
        """
        training = asyncio.create_task(self._train(stop))
        stopping = asyncio.create_task(stop.wait())
        dismissing = asyncio.create_task(self.participant.dismissed())
        pausing = asyncio.create_task(self._pause.wanted.wait())
        ends = training, stopping, dismissing, *beside
        failure: BaseException | None = None
        try:
            await asyncio.wait((*ends, pausing), return_when=asyncio.FIRST_COMPLETED)
            others = (task.done() for task in ends if task is not training)
            if self._pause.wanted.is_set() and not any(others) and self._may_step_aside(training):
                await self._step_aside(ends)
            if not training.done():
                await asyncio.wait((training,), timeout=LEAVE_GRACE_S)
            failure = _failure_of(training, *beside)
        finally:
            for task in (training, stopping, dismissing, pausing):
                task.cancel()
            if self._coming is not None:
                self._coming.cancel()
                await asyncio.gather(self._coming, return_exceptions=True)
            await asyncio.gather(training, stopping, dismissing, pausing, return_exceptions=True)
        await self._supply.close()
        if failure is not None and is_full(failure):
            failure = device_full("a step of this run does not fit", failure)
        reason = failure or (None if self.participant.is_finished else self.participant.unwanted())
        try:
            await self.participant.leave(is_urgent=stop.is_set() or failure is not None)
        finally:
            if reason is not None:
                raise reason

    def _may_step_aside(self, training: asyncio.Task[None]) -> bool:
        """With nothing to hand in training may have heard of the pause before us, and have ended."""
        is_over = self.participant.is_finished or self.participant.unwanted() is not None
        return not training.done() or (_failure_of(training) is None and not is_over)

    async def _step_aside(self, ends: tuple[asyncio.Task[Any], ...]) -> None:
        """Free the device after the microbatch that is under way, then wait for the step that uses what we have.

        The worker takes one thing after the other, and the training loop begins no microbatch any more: whatever a
        round asks of the replica from now on happens in the machine's own memory.
        """
        clock, began_s = self._ports.clock, self._ports.clock.monotonic()

        def make_room() -> None:
            self._replica.move_to(torch.device("cpu"))
            self._pause.release()

        await self._ports.compute.run(make_room)
        self.participant.vitals.stop()
        self._pause.has_made_room.set()
        samples = self._replica.samples if self._can_hand_in else 0
        seconds = clock.monotonic() - began_s
        self._ports.observer.observe(
            Paused(at_s=clock.now(), reason=self._pause.reason, seconds=seconds, samples=samples)
        )
        if samples and not self.participant.standstill.is_alone:
            self.participant.membership.speak()
            await asyncio.wait(ends, timeout=HAND_IN_S, return_when=asyncio.FIRST_COMPLETED)

    @property
    def _is_aside(self) -> bool:
        """Whether a pause is wanted, and there is nothing to hand in."""
        return self._pause.wanted.is_set() and not (self._can_hand_in and self._replica.samples)

    async def _train(self, stop: asyncio.Event) -> None:
        await self.participant.measure_link()
        await self.participant.synchronise()
        is_over = self.participant.unwanted
        while not (stop.is_set() or self.participant.is_finished or is_over() or self._is_aside):
            if self.participant.standstill.waits and self.participant.standstill.is_alone:
                await asyncio.sleep(LOOK_S)
                continue
            report = NOTHING_COMPUTED
            if sample_ids := await self._samples_or_news():
                report = await self._accumulate(sample_ids)
            if report.skipped:
                self._supply.skipped(sample_ids)
            if await self.participant.after_microbatch(report) and self.participant.is_checkpoint_due:
                await self._evaluating.in_turn(self._pause)
        await self.participant.conclude()
        is_evaluated = self.participant.vitals.evaluation_in(self._replica.era)[0] == self._replica.epoch
        if self.participant.is_finished and not is_evaluated:  # the last step was caught up with
            await self._evaluating.in_turn(self._pause)

    async def _samples_or_news(self) -> tuple[int, ...]:
        """What to compute next; empty: nothing yet, and something else is to be done: others may wait for us."""
        wanted = self._pause.wanted
        if wanted.is_set():
            await run_until_first(self.participant.news(), asyncio.sleep(LOOK_S))
            return ()
        if self._left:
            ids, self._left = self._left[: self._size.size], self._left[self._size.size :]
            return ids
        if self._coming is None:
            self._coming = asyncio.create_task(self._supply.next(self._size.size))
            await asyncio.sleep(0)  # mostly they are there
        if not self._coming.done():
            await run_until_first(self.participant.news(), asyncio.wait((self._coming,)), wanted.wait())
        if not self._coming.done() or wanted.is_set():
            return ()
        came, self._coming = self._coming, None
        return came.result()

    async def _accumulate(self, sample_ids: tuple[int, ...]) -> MicrobatchReport:
        """One forward and backward on the worker."""
        clock = self._ports.clock
        self._ports.observer.observe(PhaseReached(at_s=clock.now(), phase=Phase.ACCUMULATE, epoch=self._replica.epoch))
        started_s = clock.monotonic()
        self.participant.vitals.begin_microbatch(started_s)

        def accumulate() -> MicrobatchReport | None:
            try:
                return self._replica.accumulate(self._task.batch(sample_ids), self._task.loss)
            except RuntimeError as error:
                if not is_full(error):
                    raise
                return None  # and with the error goes all that it holds

        precision = self._replica.precision
        report = await self._ports.compute.run(accumulate, samples=len(sample_ids))
        if self._replica.precision is not precision:
            self._say(f"{FLOAT32_FROM_NOW_ON}, which is slower: this model needs numbers beyond {precision}'s")
        if report is None:
            await self._take_less(sample_ids)
            return NOTHING_COMPUTED
        self._size.note(len(sample_ids), clock.monotonic() - started_s)
        self.participant.teller.note_microbatch(report, clock.monotonic() - started_s)
        return report

    async def _take_less(self, sample_ids: tuple[int, ...]) -> None:
        """So many samples at once did not fit into the device's memory; they are computed in smaller pieces.

        Raises:
            DeviceFull: not even one fits.
        """

        def make_room() -> None:
            self._replica.abandon()
            self._pause.release()

        await self._ports.compute.run(make_room)
        self.participant.vitals.pause()
        if not self._size.too_large(len(sample_ids)):
            raise device_full("not one sample of this run fits")
        self._left = sample_ids + self._left
        self._say(
            f"{len(sample_ids)} samples at once are too many for the device's memory: {self._size.size} from now on"
        )

    def _say(self, text: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text))


def _failure_of(*tasks: asyncio.Task[None]) -> BaseException | None:
    """What one of them has raised, the first ones first."""
    errors = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((first_of(error) for error in errors if error is not None), None)
