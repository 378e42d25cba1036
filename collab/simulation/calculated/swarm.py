"""A swarm of which only the trainers are played: no messages, no directory, no votes. A thousand of them in minutes."""

import asyncio
import math
from collections.abc import Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Self

import torch

from collab import config
from collab.averaging.base import Committed
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.compression.base import codec_by_name
from collab.concurrency import run_until_first
from collab.data.sampling import SampleSampler
from collab.simulation.account import Account
from collab.simulation.attendance import JOIN_S
from collab.simulation.calculated.rounds import KEPT, RoundRules, Rounds
from collab.simulation.calculated.servers import Servers, UnitSamples
from collab.simulation.calculated.trainer import Around, OwnSamples, Samples, Trainer
from collab.simulation.calculated.ways import Ways
from collab.simulation.links import Access
from collab.simulation.residents import Resident, Session
from collab.simulation.round_forecast import RoundForecast
from collab.simulation.virtual_time import OWNER, VirtualClock, VirtualLoop
from collab.strategies.base import Strategy
from collab.strategies.registry import build_strategy
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import Kept
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.tasks.base import Task
from collab.training.genesis import build_replica, make_genesis
from collab.training.replica import Replica
from collab.training.supply import is_small
from collab.training.unit_desk import UnitDesk
from collab.training.unit_replica import UnitReplica
from collab.types import PeerId

CPU = torch.device("cpu")


class CalculatedSwarm:
    """All machines of one contender; what happens is told to an account."""

    def __init__(
        self,
        bundle: Bundle,
        task: Task,
        residents: Sequence[Resident],
        account: Account,
        *,
        thinned: int = 1,
        equal_shares: bool = False,
    ) -> None:
        """
        Args:
            thinned: elements of the real vector for each one here.
            equal_shares: rounds are planned as if all links were alike.
        """
        self._bundle, self._run, self._task, self._account, self._thinned = bundle, bundle.run, task, account, thinned
        self._loop = VirtualLoop()
        self._failed: BaseException | None = None
        self._ways, self._accesses, self._servers_here = Ways(self._loop), dict[str, Access](), dict[str, Access]()
        self._residents = {resident.name: resident for resident in residents}
        self._numbers = {resident.name: number for number, resident in enumerate(residents)}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.trainers: dict[str, Trainer] = {}
        """Those that are there, by name."""
        self.keeper = build_replica(bundle, task, CPU)
        """Takes every step of all at once, as a backbone that follows."""
        self._last = self.keeper
        """Of those that have gone, whose got furthest: where everybody trains alone, that is the newest."""
        first = make_genesis(bundle, task)
        self.keeper.load(first)
        self._first = first
        terms = FixedTerms(float(self._run.strategy.target_batch_size))
        self._batch_size = RoundSettings.of(self._run, bundle.fingerprint, terms, can_reduce=True).batch_size
        rules = RoundRules(
            averaging=self._run.averaging,
            num_elements=thinned * self.keeper.exchanged_elements,
            is_synchronous=config.waits_for_rounds(self._run.strategy),
            equal_shares=equal_shares,
            batch_size=self._batch_size,
        )
        self._rounds = Rounds(self._loop, rules, self._here, self._note_round, first.lineage)
        self._strategy, self._mean_bytes = self._new_strategy(), 0.0
        self.store = InProcessStore()
        self._servers = self._new_servers()
        self._sampler = SampleSampler(task.num_samples, seed=self._run.seed, peer_id="")
        self._around = Around(
            loop=self._loop, rounds=self._rounds, account=account, task=task,
            microbatch_size=self._run.microbatch_size,
            until_epoch=self._run.until_epoch if self._servers is None else None,
            fetch_s=self._fetch_s, renew=self._renew,
        )  # fmt: skip
        for resident in residents:
            for session in resident.sessions:
                self._loop.call_at(session.joins_s, self._come, resident, session)

    # -- running -----------------------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        """Virtual seconds since it began."""
        return self._loop.time()

    @property
    def epoch(self) -> int:
        """Steps of whoever is furthest; pushes, where there are parameter servers."""
        if self._servers is not None:
            return self._servers.version
        return max(replica.epoch for replica in self.replicas)

    @property
    def held_samples(self) -> int:
        """In the hands of those that are there."""
        return sum(trainer.samples for trainer in self.trainers.values())

    @property
    def replicas(self) -> list[Replica]:
        """Of all that hold a state."""
        present = (trainer.replica for trainer in self.trainers.values())
        return [self.keeper, self._last, *(replica for replica in present if replica.lineage)]

    def run(self, *, until_s: float) -> None:
        """Go on until then.

        Raises:
            BaseException: what a trainer's task, model or strategy raised.
        """
        timer = self._loop.call_at(until_s, self._loop.stop)
        self._loop.run_forever()
        timer.cancel()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.shut_down()

    def digest(self) -> str:
        """SHA-256 over all steps of all, when each was taken, and what everybody holds."""
        trace = self._rounds.trace.copy()
        if (stored := self.store.read()) is not None:
            trace.update(f"{stored.version}".encode() + stored.values.tobytes())
        for name, trainer in self.trainers.items():
            trace.update(f"{name}:{trainer.epoch}:{trainer.samples}".encode())
        return trace.hexdigest()

    # -- who is there ------------------------------------------------------------------------------------------------

    def _come(self, resident: Resident, session: Session) -> None:
        before, context = self._lives.get(resident.name), copy_context()
        context.run(OWNER.set, self._numbers[resident.name])
        life = self._loop.create_task(self._live(resident, session, before), name=resident.name, context=context)
        self._lives[resident.name] = life
        life.add_done_callback(self._ended)
        if math.isfinite(session.ends_s):
            self._loop.call_at(session.ends_s, self._end, resident, session, life)

    def _end(self, resident: Resident, session: Session, life: asyncio.Task[None]) -> None:
        if life.done() or life is not self._lives[resident.name]:
            return
        trainer = self.trainers.get(resident.name)
        if session.is_killed or trainer is None or not trainer.replica.lineage:
            for task in self._loop.tasks_of(self._numbers[resident.name]):
                task.cancel()
        else:
            trainer.leave()

    def _ended(self, life: asyncio.Task[None]) -> None:
        error = None if life.cancelled() else life.exception()
        if error is not None:
            self._failed = self._failed or error
        if error is not None or (self._has_all_epochs and not self.trainers):
            self._loop.stop()

    @property
    def _has_all_epochs(self) -> bool:
        return self._run.until_epoch is not None and self.epoch >= self._run.until_epoch

    async def _live(self, resident: Resident, session: Session, before: asyncio.Task[None] | None) -> None:
        """One stay of a machine; it comes when it has left that was there before."""
        if before is not None:
            await asyncio.wait((before,))
        if self.time_s >= session.ends_s or self._has_all_epochs:
            return
        access = self._accesses[resident.name] = Access(resident.link)
        if resident.role == "backbone":
            self._servers_here[resident.name] = access
        self._account.follow(resident.name, access)
        self._rounds.look()
        try:
            if resident.role == "trainer":
                await self._train(resident, access, is_first=session.joins_s == 0)
            else:
                await asyncio.Event().wait()
        finally:
            del self._accesses[resident.name]
            self._servers_here.pop(resident.name, None)

    async def _train(self, resident: Resident, access: Access, *, is_first: bool) -> None:
        """Get the state, if that is there already, and train until it is to leave."""
        replica = build_replica(self._bundle, self._task, CPU)
        samples, desk = self._samples_of(resident, replica, access)
        trainer = Trainer(self._around, resident, replica, self._new_strategy(), samples, desk)
        self.trainers[resident.name] = trainer
        try:
            if not is_first:
                await asyncio.sleep(JOIN_S)
                await asyncio.sleep(self._carry_s(access, self._state_bytes))
            self._renew(replica)
            self._rounds.come(trainer)
            own = (trainer.train(), trainer.rounds(), trainer.left())
            await run_until_first(*own, *([] if desk is None else [desk.run()]))
            if desk is not None:
                await desk.close()
        finally:
            del self.trainers[resident.name]
            self._rounds.go(trainer.peer)
            if trainer.epoch > self._last.epoch:
                self._last = replica

    def _samples_of(self, resident: Resident, replica: Replica, access: Access) -> tuple[Samples, UnitDesk | None]:
        section, number, seed = self._run.strategy, self._task.num_samples, self._run.seed
        if self._servers is not None and isinstance(section, config.VcAsgd) and isinstance(replica, UnitReplica):
            client = self._servers.client(PeerId(resident.name), access)
            desk = UnitDesk(
                client, VirtualClock(self._loop), lambda: replica.is_unit_over, at_once=section.units_at_once,
                say=lambda _: None,  # nobody reads there
            )  # fmt: skip
            return UnitSamples(desk, replica, section, num_samples=number, seed=seed), desk
        is_alone = isinstance(section, config.Solo) or config.placement_of(self._run.task) == "local"
        if is_alone or is_small(self._run, number):
            return OwnSamples(SampleSampler(number, seed=seed, peer_id=resident.name)), None
        return OwnSamples(self._sampler), None

    # -- what goes between them --------------------------------------------------------------------------------------

    def _here(self) -> list[Resident]:
        return [self._residents[name] for name in self._accesses]

    def _note_round(self, committed: Committed, plan: RoundForecast) -> None:
        self._strategy.apply(self.keeper, committed)
        self._mean_bytes = float(codec_by_name(plan.codecs[-1]).encoded_bytes(self._thinned * len(committed.mean)))
        for name, (sent, received) in plan.bytes_of.items():
            if name in self._accesses:
                self._ways.count(self._accesses[name], sent, received)

    @property
    def _state_bytes(self) -> float:
        if self._servers is not None:
            return 0.0  # a unit brings it
        return float(self._thinned * sum(tensor.nbytes for tensor in self.keeper.snapshot().tensors.values()))

    def _fetch_s(self, trainer: Trainer) -> float:
        missed = self._rounds.epoch - trainer.epoch
        access = self._accesses[trainer.resident.name]
        return self._carry_s(access, missed * self._mean_bytes if missed <= KEPT else self._state_bytes)

    def _carry_s(self, access: Access, num_bytes: float) -> float:
        """From whoever has it there soonest."""
        others = [other for name, other in self._accesses.items() if other is not access and self._has_state(name)]
        if not (others and num_bytes):
            return 0.0
        donor = min(others, key=lambda one: max(one.up_free_s, self.time_s) + num_bytes / one.link.up_bytes_per_s)
        return self._ways.carry_s(donor, access, num_bytes)

    def _has_state(self, name: str) -> bool:
        trainer = self.trainers.get(name)
        return bool(trainer.replica.lineage) if trainer is not None else self._residents[name].role == "backbone"

    def _renew(self, replica: Replica) -> None:
        replica.load(self._first if isinstance(self._run.strategy, config.Solo) else self.keeper.snapshot())

    # -- what the run file says --------------------------------------------------------------------------------------

    def _new_strategy(self) -> Strategy:
        return build_strategy(self._run.strategy, lambda epoch: self._batch_size(epoch, len(self.trainers)))

    def _new_servers(self) -> Servers | None:
        if not (isinstance(self._run.strategy, config.VcAsgd) and isinstance(self.keeper, UnitReplica)):
            return None
        layout = self.keeper.copy_layout
        self.store.begin(Kept.at_first(layout.vector()))
        return Servers(
            self._loop,
            self._run,
            self.store,
            self._ways,
            self._servers_here,
            num_elements=self._thinned * layout.num_elements,
        )
