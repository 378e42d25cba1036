"""Whether the swarm has its batch: what a trainer asks after every microbatch."""

import asyncio
import math

from collab.averaging.standing import History, Standing, Word
from collab.swarm.membership import REPORT_S, SHORTEST_WAIT_S, Membership
from collab.swarm.records import PeerRecord, PeerState


class BatchWatch:
    """Implements the strategies' ``Progress``: through the leader when it hears us, through the directory otherwise."""

    def __init__(self, membership: Membership, standing: Standing) -> None:
        self._membership, self._standing = membership, standing
        self._called: History | None = None
        self._heeded: History | None = None
        """Whose call has ended a wait for something to compute."""
        self._call_came = asyncio.Event()
        self._asked_s = -math.inf
        """When the directory was asked beside a leader, by the loop's clock."""

    def tell(self) -> PeerRecord:
        """Let the leader know where we stand; our record as of now."""
        record = self._membership.our_record()
        samples, speed, is_syncing = float(record.samples), record.samples_per_s, record.state is PeerState.SYNCING
        self._standing.report(Word(record.epoch, record.lineage, samples, speed, record.microbatch_s, is_syncing))
        return record

    def note_call(self, history: History) -> None:
        """A leader has called us to the round of ``history``: the swarm has its batch."""
        self._called = history
        self._call_came.set()

    async def called(self) -> None:
        """Returns when a leader has called us to what follows our history, and we have something to bring.

        Once for each history; for whoever waits for samples, while the others wait for what it has.
        """
        while True:
            self._call_came.clear()
            record = self._membership.our_record()
            history = record.epoch, record.lineage
            if record.samples and self._called == history != self._heeded:
                self._heeded = history
                return
            await self._call_came.wait()

    async def has_reached(self, target_samples: float, *, is_patient: bool = True) -> bool:
        """See ``Progress``. Waits for the leader's call when it should come before half a microbatch is computed."""
        record = self.tell()
        history = (record.epoch, record.lineage)
        if self._called == history:
            return True
        if not self._standing.is_connected:
            return await self._membership.has_reached(target_samples)
        self._membership.speak()
        due_s = self._standing.due_s
        if due_s is None or due_s > record.microbatch_s / 2:
            return False
        within_s = max(due_s, 0.0) + max(record.microbatch_s / 2, SHORTEST_WAIT_S)
        if is_patient and await self._wait_for_call(history, within_s):
            return True
        return due_s <= 0 and await self._is_known_elsewhere(target_samples)

    async def _is_known_elsewhere(self, target_samples: float) -> bool:
        """The leader may have missed it. In the directory nobody speaks more often than each ``REPORT_S``, so that it
        need not be read more often.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s < REPORT_S:
            return False
        self._asked_s = now_s
        return await self._membership.has_reached(target_samples)

    async def _wait_for_call(self, history: History, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._called != history:
                    self._call_came.clear()
                    await self._call_came.wait()
        except TimeoutError:
            return False
        return True
