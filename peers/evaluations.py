"""What trainers say they measured of a checkpoint's epoch."""

import asyncio
import math

from collab.ports import Ports
from collab.swarm.membership import Membership

EVALUATION_WAIT_S = 15.0
"""How long a checkpoint waits for the evaluation that a trainer makes of its epoch."""
FOLLOW_S = 0.5
"""How often the backbone looks where the swarm stands."""


class Evaluations:
    """As one backbone hears of them."""

    def __init__(self, ports: Ports, membership: Membership) -> None:
        self._ports, self._membership = ports, membership

    def now(self, epoch: int) -> float:
        """The loss of the state of ``epoch``; NaN: nobody has said."""
        losses = [record.eval_loss for record in self._membership.view.records if record.eval_epoch == epoch]
        return losses[0] if losses else math.nan

    async def of(self, epoch: int) -> float:
        """The same, but waits for the trainer that is measuring."""
        give_up_s = self._ports.clock.monotonic() + EVALUATION_WAIT_S
        while math.isnan(loss := self.now(epoch)) and not self._membership.others().is_at_rest():
            if self._ports.clock.monotonic() >= give_up_s:
                break
            await asyncio.sleep(FOLLOW_S)
        return loss
