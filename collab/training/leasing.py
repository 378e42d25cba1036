"""A trainer's leases, from its first question to its goodbye: what was trained, asked for, kept and told."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.data.blocks import BlockId, BlockPlan
from collab.data.coverage import Coverage, keep_coverage, load_coverage
from collab.data.coverage_exchange import ASKED, ask_for_coverage, merge, serve_coverage
from collab.data.lease_board import LeaseBoard
from collab.data.leased_samples import LeasedSamples
from collab.data.leases import Leases
from collab.data.ledger import Ledger, contributions
from collab.data.surroundings import Surroundings
from collab.errors import NetworkError, StateError
from collab.metrics.records import BlockTrained, Notice
from collab.swarm.records import PeerState
from collab.training.participant import Participant
from collab.training.shard_stream import ShardStream

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 10.0
"""Between two times that others are asked what was trained: who misses many rounds takes over a state after each."""
SAVE_S = 15.0
"""How often what was trained is written to the disk."""
TELL_S = 60.0
"""How often the coverage is told while a pass lasts."""
COMPARE_S = 60.0
"""How often we look whether all that we have computed is accumulated still: a rollback throws it away."""
GOODBYE_S = 1.0
"""For giving up leases; they end by themselves if it takes longer."""
COVERAGE_FILE = "coverage.json"


@dataclass(slots=True)
class _Working:
    """What there is as soon as it is known which data this is."""

    coverage: Coverage
    leases: Leases
    samples: LeasedSamples


class LeasedSupply:
    """Blocks of the pass that all peers with this data are in. Implements ``Supply``, and listens to the teller."""

    def __init__(
        self, participant: Participant, make_plan: Callable[[], BlockPlan], stream: ShardStream | None = None
    ) -> None:
        """
        Args:
            make_plan: reads samples, on the worker, or asks where the shards of ``stream`` are; called once.
            stream: opens the shards that are the blocks; None: the blocks are cut from samples that are all here.
        """
        self._stream = stream
        self._participant, self._ports, self._make_plan = participant, participant.ports, make_plan
        self._fingerprint = participant.bundle.fingerprint
        target = participant.bundle.run.strategy.target_batch_size
        self._ledger = Ledger.for_batches_of(target)
        self._surroundings = Surroundings(
            view=lambda: participant.membership.view,
            look=participant.membership.look,
            target_samples=target,
            is_behind=self._is_behind,
            note_trained=self._note_trained,
        )
        root = participant.settings.state_dir
        self._path = root / COVERAGE_FILE if root is not None else None
        self._plan: BlockPlan | None = None
        self._working: _Working | None = None
        self._is_ready, self._should_ask, self._is_asking = asyncio.Event(), asyncio.Event(), False
        self._told_s = self._compared_s = participant.ports.clock.monotonic()
        participant.teller.listener = self
        participant.teller.data = self._where

    # -- Supply --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self._stream is None:
            plan = await self._ports.compute.run(self._make_plan)
        else:
            text = "looking for the shards of the dataset, to read the first one; nothing is trained until it is here"
            self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text))
            plan = await self._ports.compute.apart(self._make_plan)  # which asks a server
        coverage = Coverage(plan)
        await self._restore(coverage)
        ports = self._ports
        await serve_coverage(ports.transport, ports.errands, self._fingerprint, self._known, ports.clock.now)
        self._plan = plan
        await self._participant.membership.report()  # nobody believes a claim of a peer that does not seem to be there
        await self._ask(coverage)
        board = LeaseBoard(self._ports, self._fingerprint, plan)
        leases = Leases(board, coverage, self._ledger, self._surroundings)
        self._working = _Working(coverage, leases, LeasedSamples(leases, self._next_block, self._release))
        self._is_ready.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(leases.run())
            if self._stream is not None:
                tasks.create_task(self._stream.run(leases))
            tasks.create_task(self._keep(coverage))
            tasks.create_task(self._ask_again(coverage))

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        await self._is_ready.wait()
        if self._ports.clock.monotonic() - self._compared_s >= COMPARE_S:
            self._compared_s = self._ports.clock.monotonic()
            self._ours.samples.lost(self._participant.replica.sample_ids)
        return await self._ours.samples.next(microbatch_size)

    def skipped(self, sample_ids: tuple[int, ...]) -> None:
        self._ours.samples.skipped(sample_ids)

    async def close(self) -> None:
        """Give our leases up, so that others need not wait for their end."""
        if self._working is None:
            return
        await keep_coverage(self._ports.compute, self._path, self._working.coverage, self._ledger)
        with suppress(TimeoutError, NetworkError):
            async with asyncio.timeout(GOODBYE_S):
                await self._working.leases.close()
        if self._stream is not None and self._participant.is_finished:
            await self._stream.drop()

    # -- Listener ------------------------------------------------------------------------------------------------------

    def note_used(self, sample_ids: tuple[int, ...]) -> None:
        if self._working is not None:
            self._working.samples.used(sample_ids)

    def note_round(self, record: CommitRecord) -> None:
        self._ledger.note_round(record.round_id, contributions(record), self._ports.clock.now())

    def note_state(self) -> None:
        self._should_ask.set()

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _ours(self) -> _Working:
        if self._working is None:
            raise ValueError("samples are asked for before it is known which data this is")
        return self._working

    def _where(self) -> tuple[str, int]:
        """For our record."""
        newest = self._working.leases.newest if self._working is not None else 0
        return (self._plan.data, newest) if self._plan is not None else ("", 0)

    def _known(self) -> tuple[Coverage, Ledger] | None:
        """For whoever asks; nothing while we have to ask ourselves: others would take our word for what most know."""
        return (self._working.coverage, self._ledger) if self._working is not None and not self._has_to_ask else None

    @property
    def _has_to_ask(self) -> bool:
        return self._should_ask.is_set() or self._is_asking

    def _is_behind(self) -> bool:
        return self._has_to_ask or self._participant.vitals.state is PeerState.SYNCING

    def _note_trained(self, block: BlockId, was_leased: bool) -> None:
        plan = self._ours.coverage.plan
        event = BlockTrained(
            at_s=self._ports.clock.now(),
            data=plan.data,
            pass_number=block.pass_number,
            block=block.block,
            samples=plan.samples_in(block.block) if plan.num_samples is not None else 0,
            was_leased=was_leased,
        )
        self._ports.observer.observe(event)

    def _release(self, block: BlockId) -> None:
        if self._stream is not None:
            self._stream.close(block)

    async def _next_block(self) -> tuple[BlockId, tuple[int, ...]]:
        if self._stream is not None:
            return await self._stream.next_block()
        block = await self._ours.leases.next_block()
        return block, self._ours.coverage.plan.sample_ids(block)

    async def _restore(self, coverage: Coverage) -> None:
        path = self._path
        if path is None:
            return
        try:
            await self._ports.compute.beside(lambda: load_coverage(path, coverage, self._ledger))
        except StateError as error:
            self._say(f"what this machine knew of the data that was trained cannot be used: {error.message}")

    async def _ask(self, coverage: Coverage) -> None:
        """Others know what was trained while we were not here."""
        membership, me = self._participant.membership, self._ports.transport.peer_id
        records = [r for r in membership.view.records if r.peer != me and r.can_be_dialled]
        peers = [r.peer for r in records if r in membership.backbones() or r.data == coverage.plan.data]
        self._ports.rng.shuffle(peers)
        words = await ask_for_coverage(self._ports.transport, self._ports.errands, self._fingerprint, peers[:ASKED])
        merge(words, coverage, self._ledger, self._ports.clock.now())

    async def _ask_again(self, coverage: Coverage) -> None:
        """Whenever a state was taken over: we have not seen whose samples are in it."""
        while True:
            await self._should_ask.wait()
            self._should_ask.clear()
            self._is_asking = True
            try:
                await self._ask(coverage)
            finally:
                self._is_asking = False
            await asyncio.sleep(ASK_AGAIN_S)

    async def _keep(self, coverage: Coverage) -> None:
        """Write down and tell how far we are, now and then."""
        complete = {number for number in coverage.passes if coverage.is_complete(number)}
        while True:
            await asyncio.sleep(SAVE_S)
            await keep_coverage(self._ports.compute, self._path, coverage, self._ledger)
            for number in sorted(set(coverage.passes) - complete):
                if coverage.is_complete(number):
                    complete.add(number)
                    self._observe(coverage, number)
            if self._ports.clock.monotonic() - self._told_s >= TELL_S:
                self._told_s = self._ports.clock.monotonic()
                self._observe(coverage, self._ours.leases.newest)

    def _observe(self, coverage: Coverage, pass_number: int) -> None:
        now, unleased = self._ports.clock.now(), self._ours.leases.unleased
        self._ports.observer.observe(coverage.report(pass_number, now, unleased_blocks=unleased))

    def _say(self, text: str) -> None:
        hint = "others are asked what was trained; what they do not know may be trained again"
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=True))
