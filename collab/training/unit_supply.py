"""Samples of work units: where a client of parameter servers gets what it trains on."""

import asyncio
import logging
from dataclasses import replace

from collab import config
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.data.unit_samples import check_can_be_cut, sample_ids_of
from collab.errors import NetworkError
from collab.metrics.records import Notice, UnitBegun
from collab.swarm.duties import Duty
from collab.swarm.parameter_store.base import Stored
from collab.swarm.unit_client import UnitClient
from collab.tasks.base import Task
from collab.training.participant import Participant
from collab.training.unit_desk import AGAIN_S, UnitDesk, Work
from collab.training.unit_replica import UnitReplica
from collab.types import PeerId

logger = logging.getLogger(__name__)


class UnitSupply:
    """One unit after the other. Implements ``Supply``; the replica begins each with the servers' parameters."""

    def __init__(self, participant: Participant, task: Task, section: config.VcAsgd) -> None:
        """
        Raises:
            DataError: the task has fewer samples here than the run has units.
        """
        check_can_be_cut(task.num_samples, section.shards)
        if not isinstance(replica := participant.replica, UnitReplica):
            raise ValueError("units need a UnitReplica")
        self._ports, self._replica, self._section = participant.ports, replica, section
        self._membership, self._vitals = participant.membership, participant.vitals
        self._vitals.remedy = "giving this unit back"
        self._seed, self._num_samples = participant.bundle.run.seed, task.num_samples
        elements = replica.copy_layout.num_elements
        timeouts = MeasuredTimeouts(self._ports.clock.monotonic, FIRST)
        mandate, fingerprint = participant.statutes.mandate, participant.bundle.fingerprint
        client = UnitClient(self._ports, fingerprint, elements, self._servers, timeouts, lambda: mandate.era)
        at_once = section.units_at_once
        self._desk = UnitDesk(client, self._ports.clock, self._is_computed, at_once=at_once, say=self._tell)
        participant.swarm = replace(participant.swarm, units=self._desk)
        self._left: tuple[int, ...] = ()
        """Of the present unit."""

    async def run(self) -> None:
        await self._desk.run()

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        """See ``Supply``; the last ones of a unit may be fewer. None: something is to be pushed, or the run is over.

        A unit that gives nothing finite goes back, and the next one begins with the servers' parameters; so does the
        next one after a rollback, and what was computed before is in nothing.
        """
        if self._vitals.is_suspicious or self._desk.is_given_up:
            self._left = ()
        if not self._left:
            if self._desk.is_over and self._replica.samples:
                return ()
            work = await self._desk.next()
            self._left = self._samples(work)
            stored, era = await self._final() if work is None else (work.stored, work.granted.era)
            await self._ports.compute.run(lambda: self._replica.restart(stored, len(self._left), era))
            if work is not None:
                self._say(work)
        ids, self._left = self._left[:microbatch_size], self._left[microbatch_size:]
        return ids

    def skipped(self, sample_ids: tuple[int, ...]) -> None:
        """The unit goes on without them."""

    async def close(self) -> None:
        await self._desk.close()

    def _is_computed(self) -> bool:
        return self._replica.is_unit_over

    def _say(self, work: Work) -> None:
        granted = work.granted
        begun = UnitBegun(
            at_s=self._ports.clock.now(),
            pass_number=granted.unit.pass_number,
            shard=granted.unit.shard,
            samples=len(self._left),
            version=work.stored.version,
            lease_s=granted.seconds,
        )
        self._ports.observer.observe(begun)

    def _tell(self, text: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text))

    def _samples(self, work: Work | None) -> tuple[int, ...]:
        if work is None:
            return ()
        shards, number = self._section.shards, self._num_samples
        return sample_ids_of(work.granted.unit, shards=shards, num_samples=number, seed=self._seed)

    async def _final(self) -> tuple[Stored, str]:
        """The parameters that the run ends with, and their era."""
        while True:
            era = self._desk.era
            try:
                if (stored := await self._desk.newest(era, is_last=True)) is not None:
                    return stored, era
            except NetworkError as error:
                logger.info("the run is over, and nobody gives its parameters reason=%s", error)
            await asyncio.sleep(AGAIN_S)

    def _servers(self) -> list[PeerId]:
        return [record.peer for record in self._membership.view.backbones(Duty.PARAMETERS)]
