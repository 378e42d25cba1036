"""What a backbone knows of the data: it trains nothing, and remembers what was trained when all trainers have gone."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from collab.averaging.agreement import CommitRecord
from collab.data.blocks import BlockPlan
from collab.data.coverage import Coverage, keep_coverage, load_coverage
from collab.data.coverage_exchange import ask_for_coverage, merge, serve_coverage
from collab.data.holders import Holders
from collab.data.lease_board import LeaseBoard
from collab.data.ledger import Ledger, contributions
from collab.data.pace import Pace
from collab.errors import NetworkError, StateError
from collab.metrics.records import DataCovered
from collab.ports import Ports
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView

logger = logging.getLogger(__name__)

PAGES_A_LOOK, PAGE_S = 64, 1.0
"""How many of the pages that are not complete are read at a time, those that were read longest ago; and how long none
is read after each of them: so many are 64 look-ups a minute, and a dataset of few pages is known as of now.
"""
LEAST_S = 10.0
"""Between two looks: trainers say no more often what they have trained (``page_talk.MARKS_S``)."""
TELL_S = 60.0
"""Between two words to people about the same pass."""
LOOKED_AT_PASSES = 2
"""The newest, and the one before."""


class CoverageKeeper:
    """Follows the data that most trainers share, and answers who asks what was trained."""

    def __init__(self, ports: Ports, bundle: Bundle, view: Callable[[], SwarmView], path: Path | None) -> None:
        """
        Args:
            path: of the file that keeps it for this peer's next life; None: nowhere.
        """
        self._ports, self._bundle, self._view, self._path = ports, bundle, view, path
        target = bundle.run.strategy.target_batch_size
        self._ledger = Ledger.for_batches_of(target)
        self._coverage: Coverage | None = None
        self._holders: Holders | None = None
        self._pages_read = 0
        """In the last look."""
        self._told: tuple[int, bool] | None = None
        """The pass that people were told of last, and whether it was complete."""
        self._told_s = -math.inf

    def note_round(self, record: CommitRecord) -> None:
        """A round has committed."""
        self._ledger.note_round(record.round_id, contributions(record), self._ports.clock.now())

    async def serve(self) -> None:
        """Answer whoever asks."""
        fingerprint = self._bundle.fingerprint
        ports = self._ports
        await serve_coverage(ports.transport, ports.errands, fingerprint, self._known, ports.clock.now)

    async def run(self) -> None:
        """Look how far the swarm is, until cancelled."""
        while True:
            await asyncio.sleep(max(LEAST_S, PAGE_S * self._pages_read))
            try:
                await self._look()
            except NetworkError as error:
                logger.info("coverage: the directory does not answer: %s", error)

    def _known(self) -> tuple[Coverage, Ledger] | None:
        return (self._coverage, self._ledger) if self._coverage is not None else None

    async def _look(self) -> None:
        """Read what has changed, keep it and tell it."""
        self._pages_read = 0
        trainers = [record for record in self._view().all_trainers() if record.data]
        shared = Counter(record.data for record in trainers)
        if not shared:
            return
        name = max(sorted(shared), key=lambda name: shared[name])
        passes = sorted(record.data_pass for record in trainers if record.data == name)
        coverage, holders = await self._following(name)
        if coverage is None or holders is None:
            return
        claimed = {record.peer: record.samples_per_s for record in trainers if record.data == name}
        now = self._ports.clock.now()
        holders.look(Pace.believed(claimed, self._ledger.rates(now)), now)
        newest = passes[(len(passes) - 1) // 2]
        board = LeaseBoard(self._ports, self._bundle.fingerprint, coverage.plan)
        followed = range(max(newest - LOOKED_AT_PASSES + 1, 0), newest + 1)
        keys = [(number, page) for number in followed for page in self._incomplete(coverage, number)]
        for key in sorted(keys, key=holders.read_at_s)[:PAGES_A_LOOK]:
            self._pages_read += 1
            holders.take_in(key, await board.read(key, roughly=True), self._ports.clock.now())
        holders.forget(min(coverage.passes), self._ports.clock.now())
        await keep_coverage(self._ports.compute, self._path, coverage, self._ledger)
        self._tell(coverage.report(newest, self._ports.clock.now()))

    def _tell(self, covered: DataCovered) -> None:
        """People hear of it once a minute, and when a pass begins or is complete."""
        now_s, told = self._ports.clock.monotonic(), (covered.pass_number, covered.is_complete)
        if told != self._told or now_s - self._told_s >= TELL_S:
            self._told, self._told_s = told, now_s
            self._ports.observer.observe(covered)

    def _incomplete(self, coverage: Coverage, pass_number: int) -> Iterator[int]:
        trained = coverage.of(pass_number).trained
        for page in range(coverage.plan.num_pages):
            if trained[page] != coverage.plan.full_page(page):
                yield page

    async def _following(self, name: str) -> tuple[Coverage | None, Holders | None]:
        """What we know of the data of this name; at first what we knew in an earlier life, and what trainers say."""
        if self._coverage is not None and self._coverage.plan.data == name:
            return self._coverage, self._holders
        run = self._bundle.run
        try:
            plan = BlockPlan.read(name, seed=run.seed, microbatch_size=run.microbatch_size)
        except ValueError as error:
            logger.info("coverage: %s", error)
            return None, None
        coverage = Coverage(plan)
        if (path := self._path) is not None:
            try:
                await self._ports.compute.beside(lambda: load_coverage(path, coverage, self._ledger))
            except StateError as error:
                logger.info("coverage of earlier is not used: %s", error.message)
        able = [record.peer for record in self._view().all_trainers() if record.can_be_dialled]
        words = await ask_for_coverage(self._ports.transport, self._ports.errands, self._bundle.fingerprint, able)
        merge(words, coverage, self._ledger, self._ports.clock.now())
        self._coverage = coverage
        self._holders = Holders(self._ports.transport.peer_id, coverage, self._ledger)
        return coverage, self._holders
