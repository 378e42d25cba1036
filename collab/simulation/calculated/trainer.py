"""One trainer of a swarm of which the rest is calculated: strategy, replica and optimiser are the real ones."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collab.averaging.base import Aborted, Contribution, Outcome
from collab.averaging.encodings import Encodings
from collab.data.sampling import SampleSampler
from collab.simulation.account import Account
from collab.simulation.calculated.rounds import Rounds
from collab.simulation.residents import Resident
from collab.simulation.virtual_time import VirtualClock, VirtualCompute, VirtualLoop
from collab.strategies.base import Decision, Ready, Stepped, Strategy, Swarm, Units
from collab.tasks.base import Task
from collab.training.beside import Beside, Patience
from collab.training.replica import MicrobatchReport, Replica
from collab.training.trainer import LEAVE_GRACE_S
from collab.types import PeerId


class Samples(Protocol):
    """Where a trainer's samples come from."""

    @property
    def is_over(self) -> bool:
        """Whether there never will be any more."""
        ...

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        """Empty: there is something else to do first."""
        ...


class OwnSamples:
    """Implements ``Samples``: those of a sampler, which others may draw from as well."""

    is_over = False

    def __init__(self, sampler: SampleSampler) -> None:
        self._sampler = sampler

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        return self._sampler.next(microbatch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What all trainers of a swarm have in common."""

    loop: VirtualLoop
    rounds: Rounds
    account: Account
    task: Task
    microbatch_size: int
    until_epoch: int | None
    fetch_s: Callable[["Trainer"], float]
    """Seconds that a trainer needs for the means that it has missed, or for the state; counts their bytes."""
    renew: Callable[[Replica], None]
    """Gives a replica the swarm's newest state."""


class Trainer:
    """Implements ``Attendant``: computes, lets its strategy decide, and does what ``Participant`` does with that."""

    def __init__(
        self,
        around: Around,
        resident: Resident,
        replica: Replica,
        strategy: Strategy,
        samples: Samples,
        units: Units | None,
    ) -> None:
        self.peer, self.resident, self.replica = PeerId(resident.name), resident, replica
        self.encodings, self._leaves = Encodings(), asyncio.Event()
        self.microbatch_s = around.microbatch_size / resident.samples_per_s
        self._around, self._strategy, self._samples = around, strategy, samples
        self._ends_s: float | None = None
        """When the present microbatch is over."""
        clock = VirtualClock(around.loop)
        self._compute = VirtualCompute(around.loop, samples_per_s=resident.samples_per_s)
        self._swarm = Swarm(peer_id=self.peer, progress=self, averager=self, worker=self._compute, units=units)
        self._round, self._patience = Beside(self._contribute, clock), Patience()

    # -- as rounds see it ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.replica.epoch

    @property
    def samples(self) -> int:
        return self.replica.samples

    @property
    def busy_s(self) -> float | None:
        return None if self._ends_s is None else self._ends_s - self._around.loop.time()

    def attend(self) -> bool:
        if self._round.is_under_way or not self.replica.samples:
            return False
        self._round.begin()
        return True

    # -- as its strategy sees the swarm --------------------------------------------------------------------------------

    async def has_reached(self, target_samples: float, *, is_patient: bool = True) -> bool:
        """See ``Progress``."""
        return await self._around.rounds.has_reached(self, target_samples, is_patient=is_patient)

    async def average(self, contribution: Contribution) -> Outcome:
        """See ``Averager``."""
        return await self._around.rounds.average(self.peer, contribution)

    # -- training ------------------------------------------------------------------------------------------------------

    async def rounds(self) -> None:
        """Do what is begun beside the microbatches, until cancelled."""
        await self._round.run()

    def leave(self) -> None:
        """Is asked to; what is over within two seconds still counts."""
        self._leaves.set()

    async def left(self) -> None:
        """Returns when it does not wait any longer for what it has begun."""
        await self._leaves.wait()
        await asyncio.sleep(LEAVE_GRACE_S)

    async def train(self) -> None:
        """Compute until it is to leave or the run is over; a round that is under way is seen to its end."""
        while not (self._leaves.is_set() or self._is_finished or self._samples.is_over):
            is_sound = True
            if ids := await self._samples.next(self._around.microbatch_size):
                is_sound = await self._microbatch(ids)
            if not self._samples.is_over:
                await self._decide(is_sound=is_sound)
        await self._end_round(math.inf)

    @property
    def _is_finished(self) -> bool:
        return self._around.until_epoch is not None and self.epoch >= self._around.until_epoch

    async def _microbatch(self, ids: tuple[int, ...]) -> bool:
        """Whether it was finite, and counts."""
        task, seconds = self._around.task, len(ids) / self.resident.samples_per_s
        self._ends_s = self._around.loop.time() + seconds

        def accumulate() -> MicrobatchReport:
            return self.replica.accumulate(task.batch(ids), task.loss)

        report = await self._compute.run(accumulate, samples=len(ids))
        self._ends_s = None
        if report.skipped:
            return False
        now_s = self._around.loop.time()
        self._around.account.microbatch(
            self.resident.name, at_s=now_s, samples=report.samples, loss=report.loss, busy_s=seconds
        )
        self._around.rounds.note(self)
        return True

    async def _decide(self, *, is_sound: bool) -> None:
        """As ``Participant.after_microbatch``."""
        await self._end_round()
        if self._round.is_under_way or self._is_finished:
            return
        if not is_sound:
            self._around.rounds.decline(self.peer)
            return
        if self._strategy.follows_swarm and self.epoch < self._around.rounds.epoch:
            await self._catch_up()
        decision = await self._strategy.after_microbatch(self.replica, self._swarm)
        if isinstance(decision, Ready):
            self._round.begin()
            await self._end_round()
        else:
            self._around.rounds.decline(self.peer)
            self._follow(decision)

    async def _contribute(self) -> Outcome:
        began_s = self._around.loop.time()
        outcome = await self._strategy.contribute(self.replica, self._swarm)
        seconds = self._around.loop.time() - began_s
        if not isinstance(outcome, Aborted):
            self._patience.add(seconds)
        self._around.account.round(None if isinstance(outcome, Aborted) else seconds)
        return outcome

    async def _end_round(self, patience_s: float | None = None) -> None:
        if not self._round.is_under_way:
            return
        if patience_s is None:
            patience_s = self._strategy.patience_s(self.replica, self._patience.limit_s())
        is_last = self.epoch + 1 == self._around.until_epoch
        outcome = await self._round.result(math.inf if is_last else patience_s)
        if outcome is not None:
            self._follow(await self._strategy.take(self.replica, self._swarm, outcome))
            self._around.rounds.note(self)

    def _follow(self, decision: Decision) -> None:
        self._around.account.used(self.replica.take_used().weight)
        if isinstance(decision, Stepped):
            self._around.account.step((self.epoch, self.replica.lineage), at_s=self._around.loop.time())

    async def _catch_up(self) -> None:
        """The swarm went on without us: the means that were missed, or the state if these are gone."""
        rounds = self._around.rounds
        await asyncio.sleep(self._around.fetch_s(self))
        while self.epoch < rounds.epoch:
            missed = next((one for one in rounds.history if one.record.epoch == self.epoch), None)
            if missed is None:
                self._around.renew(self.replica)
            else:
                self._strategy.apply(self.replica, missed)
        rounds.note(self)
