"""Trainers of a simulated swarm that lease blocks of one dataset, train in name only, and commit in rounds."""

import asyncio
from collections import Counter
from contextlib import suppress

from collab.averaging.agreement import CommitRecord
from collab.data.blocks import BlockId, BlockPlan
from collab.data.coverage import Coverage
from collab.data.coverage_exchange import ask_for_coverage, merge, serve_coverage
from collab.data.coverage_keeper import CoverageKeeper
from collab.data.lease_board import LeaseBoard
from collab.data.leases import Leases
from collab.data.ledger import Ledger, contributions
from collab.data.surroundings import Surroundings
from collab.errors import NetworkError
from collab.ports import Ports
from collab.swarm.bundle import Bundle
from collab.swarm.membership import Membership
from collab.types import Lineage, PeerId

MICROBATCH = 8
FIRST_RECORDS_S = 5.0
"""After which a newcomer of the benchmark asks others what was trained: it has seen who is there."""


class Lessee:
    """One trainer."""

    def __init__(self, data: "LeasedData", ports: Ports, membership: Membership, speed: float) -> None:
        self._data, self._ports, self._membership, self._speed = data, ports, membership, speed
        self._ledger = Ledger.for_batches_of(data.target)
        self.coverage = Coverage(data.plan)
        around = Surroundings(
            view=lambda: membership.view, look=membership.look, target_samples=data.target, note_trained=data.note
        )
        board = LeaseBoard(ports, data.bundle.fingerprint, data.plan)
        self.leases = Leases(board, self.coverage, self._ledger, around)
        self._computed: list[BlockId] = []
        self._began_s, self._samples = 0.0, 0.0
        """Of the block that is being trained; samples that are in no step, less those of it that are in one."""
        self.waited_s = 0.0

    async def live(self) -> None:
        """Train until cancelled; then give up what is held."""
        ports, fingerprint = self._ports, self._data.bundle.fingerprint
        known = (self.coverage, self._ledger)
        await serve_coverage(ports.transport, ports.errands, fingerprint, lambda: known, ports.clock.now)
        await asyncio.sleep(FIRST_RECORDS_S)
        others = [r.peer for r in self._membership.view.records if r.peer != ports.transport.peer_id]
        ports.rng.shuffle(others)
        words = await ask_for_coverage(ports.transport, ports.errands, fingerprint, others)
        merge(words, self.coverage, self._ledger, ports.clock.now())
        self.leases.newest = max(self.coverage.passes)
        runner = asyncio.create_task(self.leases.run())
        try:
            while True:
                await self._train_one()
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
            with suppress(NetworkError):
                await self.leases.close()

    async def _train_one(self) -> None:
        clock = self._ports.clock
        asked_s = clock.monotonic()
        block = await self.leases.next_block()
        self._began_s = clock.monotonic()
        self.waited_s += self._began_s - asked_s
        samples = self._data.plan.samples_in(block.block)
        await asyncio.sleep(samples / self._speed)
        self._samples += samples
        self._began_s = 0.0
        self._computed.append(block)

    def contribution(self) -> float:
        """Samples that are ready for a step; they are in it then."""
        running = (self._ports.clock.monotonic() - self._began_s) * self._speed if self._began_s else 0.0
        ready, self._samples = self._samples + running, -running
        return ready

    def commit(self, record: CommitRecord) -> None:
        """A round has ended."""
        self._ledger.note_round(record.round_id, contributions(record), self._ports.clock.now())
        computed, self._computed = self._computed, []
        for block in computed:
            self.leases.done(block)


class LeasedData:
    """The data, and everybody who leases blocks of it."""

    def __init__(self, bundle: Bundle, *, samples: int, target: int) -> None:
        self.bundle, self.target = bundle, target
        self.plan = BlockPlan.of(samples, digest="d" * 32, seed=0, microbatch_size=MICROBATCH)
        self.lessees: dict[PeerId, Lessee] = {}
        self._keepers: list[CoverageKeeper] = []
        self._trained: Counter[BlockId] = Counter()
        self._rounds = 0

    def note(self, block: BlockId, _: bool) -> None:
        """All samples of a block are in steps."""
        self._trained[block] += 1

    def newest(self, peer: PeerId) -> int:
        """The pass that a peer is in."""
        lessee = self.lessees.get(peer)
        return lessee.leases.newest if lessee is not None else 0

    async def train(self, ports: Ports, membership: Membership, speed: float) -> None:
        """Be a trainer until cancelled."""
        peer = ports.transport.peer_id
        lessee = self.lessees[peer] = Lessee(self, ports, membership, speed)
        try:
            await lessee.live()
        finally:
            del self.lessees[peer]

    async def keep(self, ports: Ports, membership: Membership) -> None:
        """Be a backbone that follows what is trained, until cancelled."""
        keeper = CoverageKeeper(ports, self.bundle, lambda: membership.view, None)
        self._keepers.append(keeper)
        await keeper.serve()
        await keeper.run()

    def commit(self) -> None:
        """A round of all trainers."""
        self._rounds += 1
        ready = tuple((peer, lessee.contribution()) for peer, lessee in sorted(self.lessees.items()))
        record = CommitRecord(
            round_id=f"{self._rounds:032x}", epoch=self._rounds, lineage=Lineage(f"{self._rounds:064}"),
            contributors=tuple((peer, samples) for peer, samples in ready if samples > 0), members=(),
            pieces=((PeerId("all"), 0, 1),), digests=("",),
        )  # fmt: skip
        for lessee in self.lessees.values():
            lessee.commit(record)
        for keeper in self._keepers:
            keeper.note_round(record)

    def figures(self, seconds: float) -> dict[str, float]:
        """What became of the blocks so far."""
        waited = sum(lessee.waited_s for lessee in self.lessees.values())
        return {
            "blocks_trained": len(self._trained),
            "trained_again": sum(self._trained.values()) - len(self._trained),
            "without_lease": sum(lessee.leases.unleased for lessee in self.lessees.values()),
            "share_of_time_waited": round(waited / max(len(self.lessees), 1) / seconds, 4),
        }


def lease_figures(counted: Counter[str], peers: int, seconds: float) -> dict[str, float]:
    """What the pages of blocks have cost each of so many peers."""
    return {
        "leases_bytes_per_s_mean": round(counted["bytes"] / peers / seconds),
        "lease_reads_per_minute": round(60.0 * counted["reads"] / peers / seconds, 2),
        "lease_writes_per_minute": round(60.0 * counted["writes"] / peers / seconds, 2),
        "entries_a_read": round(counted["entries"] / max(counted["reads"], 1), 1),
    }
