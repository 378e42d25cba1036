"""Whether the swarm has its batch: what a trainer asks after every microbatch."""

from collab.averaging.standing import Standing, Word
from collab.swarm.membership import Membership

SHORTEST_WAIT_S = 0.05
"""For a call that must be on its way: some round trips of a near swarm."""


class BatchWatch:
    """Implements the strategies' ``Progress``: through the leader when it hears us, through the directory otherwise."""

    def __init__(self, membership: Membership, standing: Standing) -> None:
        self._membership, self._standing = membership, standing

    async def has_reached(self, target_samples: int) -> bool:
        """See ``Progress``. Waits for the leader's call when it should come before half a microbatch is computed."""
        record = self._membership.our_record()
        history = (record.epoch, record.lineage)
        self._standing.report(Word(record.epoch, record.lineage, float(record.samples), record.samples_per_s))
        if self._standing.is_called(history):
            return True
        if not self._standing.is_connected:
            return await self._membership.has_reached(target_samples)
        self._membership.speak()
        wait_s = self._standing.seconds_to(target_samples)
        if wait_s is None or wait_s > record.microbatch_s / 2:
            return False
        limit_s = wait_s + max(record.microbatch_s / 2, SHORTEST_WAIT_S)
        if await self._standing.wait_for_call(history, limit_s):
            return True
        return wait_s == 0.0 and await self._membership.has_reached(target_samples)  # the leader may have missed it
