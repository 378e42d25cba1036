"""A trainer's dealings with the swarm's state: taking it over, keeping copies of it, handing it on."""

import asyncio
import logging

from collab.averaging.round import RoundEngine
from collab.errors import CorruptState, NoDonor
from collab.metrics.records import Notice, Phase, PhaseReached, StateFetched
from collab.ports import Ports
from collab.strategies.base import Strategy
from collab.swarm.membership import Membership
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack, unpack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.training.replica import Replica

logger = logging.getLogger(__name__)

SYNC_PAUSE_S = 1.0
"""Between two attempts to find somebody who has the run's state."""
ATTEMPTS_BEFORE_WORDS = (5, 60)
"""After so many failed attempts a person is told."""


class StateSync:
    """Keeps one replica in step with the swarm."""

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        strategy: Strategy,
        membership: Membership,
        engine: RoundEngine,
        fingerprint: str,
    ) -> None:
        self._ports, self._replica, self._strategy = ports, replica, strategy
        self._membership, self._engine, self._fingerprint = membership, engine, fingerprint
        self._kept: Snapshot | None = None
        self._packed: PackedSnapshot | None = None
        self._packing = asyncio.Lock()

    async def synchronise(self) -> None:
        """Take over the swarm's state: step by step through the rounds we missed, else as a whole.

        Tries until it has it; after a while it says what is missing.
        """
        self._ports.observer.observe(
            PhaseReached(at_s=self._ports.clock.now(), phase=Phase.FETCH_STATE, epoch=self._replica.epoch)
        )
        attempts = 0
        await self._membership.report()
        while not (self._replica.lineage and await self.catch_up() > 0):
            try:
                await self._ask_what_followed()
                await self._fetch()
                await self.catch_up()
                return
            except (NoDonor, CorruptState) as error:
                attempts += 1
                if attempts in ATTEMPTS_BEFORE_WORDS:
                    notice = Notice(at_s=self._ports.clock.now(), text=error.message, hint=error.hint, is_problem=True)
                    self._ports.observer.observe(notice)
                await asyncio.sleep(SYNC_PAUSE_S)
                await self._membership.report()

    async def catch_up(self) -> int:
        """Apply the rounds that followed our state; returns how many there were."""
        replica, strategy, caught_up = self._replica, self._strategy, 0
        while True:
            peers = self._membership.trainers_ahead(replica.epoch)
            committed = await self._engine.history.fetch(
                peers, replica.epoch, replica.lineage, replica.layout.num_elements
            )
            if committed is None:
                return caught_up
            missed = committed
            used = missed.record.used_of(self._ports.transport.peer_id)
            await self._ports.compute.run(lambda: replica.disown(used))  # noqa: B023 - awaited before it changes
            await self._ports.compute.run(lambda: strategy.apply(replica, missed))  # noqa: B023 - the same
            caught_up += 1

    async def _ask_what_followed(self) -> None:
        """Before we leave our history for another state: has the round after it used what we still hold?"""
        replica = self._replica
        peers = self._membership.trainers_ahead(replica.epoch)
        if replica.lineage and replica.samples and peers:
            record = await self._engine.what_followed(peers, replica.epoch, replica.lineage)
            if record is not None:
                used = record.used_of(self._ports.transport.peer_id)
                await self._ports.compute.run(lambda: replica.disown(used))

    async def _fetch(self) -> None:
        started_s = self._ports.clock.monotonic()
        packed, donor = await fetch_state(
            self._ports.transport, self._membership.donors(), fingerprint=self._fingerprint, wanted=Wanted()
        )
        await self._ports.compute.run(lambda: self._replica.load(unpack(packed)))
        fetched = StateFetched(
            at_s=self._ports.clock.now(),
            donor=donor,
            epoch=packed.manifest.epoch,
            num_bytes=packed.manifest.num_bytes,
            seconds=self._ports.clock.monotonic() - started_s,
        )
        self._ports.observer.observe(fetched)

    async def keep(self) -> None:
        """Keep a copy of the present state until the next one is kept: a backbone will ask for it by its epoch."""
        self._kept = await self._ports.compute.run(self._replica.snapshot)

    async def provide(self, epoch: int | None) -> PackedSnapshot | None:
        """Snapshot of ``epoch`` (None: the present one); None when there is no such copy."""
        async with self._packing:
            if self._packed is not None and self._is_wanted(
                self._packed.manifest.epoch, self._packed.manifest.lineage, epoch
            ):
                return self._packed
            if self._kept is not None and self._kept.epoch == epoch:
                snapshot = self._kept
            elif epoch in (None, self._replica.epoch) and self._replica.lineage:
                snapshot = await self._ports.compute.run(self._replica.snapshot)
            else:
                return None
            self._packed = await self._ports.compute.run(lambda: pack(snapshot, fingerprint=self._fingerprint))
            return self._packed

    def _is_wanted(self, epoch: int, lineage: str, wanted: int | None) -> bool:
        return epoch == wanted if wanted is not None else lineage == self._replica.lineage
