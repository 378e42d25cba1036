"""What checkpoints are worth: as trainers say, or as this backbone measures."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from collab import config
from collab.config import Run
from collab.errors import CollabError
from collab.metrics.records import EvaluationDone
from collab.ports import Ports
from collab.swarm.membership import Membership
from collab.swarm.snapshots import PackedSnapshot, Snapshot, unpack

if TYPE_CHECKING:
    from collab.tasks.base import Evaluation

logger = logging.getLogger(__name__)

EVALUATION_WAIT_S = 15.0
"""How long a checkpoint waits for the evaluation that a trainer makes of its epoch."""
FOLLOW_S = 0.5
"""How often the backbone looks where the swarm stands."""
Evaluate = Callable[[Snapshot], "Evaluation"]


class Evaluations:
    """As one backbone hears of them, or makes them.

    It measures by itself where the run ends with what is measured, since nobody else's word counts then, and with
    parameter servers, since no client holds what is stored.
    """

    def __init__(self, ports: Ports, run: Run, membership: Membership, evaluate: Evaluate | None) -> None:
        """
        Args:
            evaluate: None: this backbone cannot measure.
        """
        self._ports, self._membership = ports, membership
        self._has_goal = run.until_loss is not None or run.until_accuracy is not None
        self._evaluate = evaluate if self._has_goal or isinstance(run.strategy, config.VcAsgd) else None
        self.newest: tuple[int, Evaluation] | None = None
        """Epoch and worth of what was measured here last."""
        self._newest_digest = ""
        """Of that: after a rollback the same epoch is another state."""
        self.on_measured: Callable[[int, Evaluation], None] = lambda _epoch, _found: None

    def now(self, epoch: int) -> float:
        """The loss of the state of ``epoch``; NaN: nobody has said."""
        losses = [record.eval_loss for record in self._membership.view.records if record.eval_epoch == epoch]
        return losses[0] if losses else math.nan

    async def of(self, packed: PackedSnapshot) -> float:
        """The loss of a state that is about to be published: measured here, or by the trainer that is at it."""
        epoch = packed.manifest.epoch
        if self._evaluate is not None:
            return await self._measured(packed, self._evaluate)
        give_up_s = self._ports.clock.monotonic() + EVALUATION_WAIT_S
        while math.isnan(loss := self.now(epoch)) and not self._membership.others().is_at_rest():
            if self._ports.clock.monotonic() >= give_up_s:
                break
            await asyncio.sleep(FOLLOW_S)
        return loss

    async def look_at(self, packed: PackedSnapshot | None) -> None:
        """A state is on our disk, whoever has published it: the run may end with it."""
        if packed is not None and self._has_goal and self._evaluate is not None:
            await self._measured(packed, self._evaluate)

    async def _measured(self, packed: PackedSnapshot, evaluate: Evaluate) -> float:
        epoch, clock = packed.manifest.epoch, self._ports.clock
        if self.newest is not None and self._newest_digest == packed.manifest.digest:
            return self.newest[1].loss
        started_s = clock.monotonic()
        try:
            found = await self._ports.compute.beside(lambda: evaluate(unpack(packed)))
        except CollabError as error:
            logger.warning("not evaluated epoch=%d reason=%s", epoch, error)
            return math.nan
        seconds = clock.monotonic() - started_s
        event = EvaluationDone(at_s=clock.now(), epoch=epoch, loss=found.loss, accuracy=found.accuracy, seconds=seconds)
        self._ports.observer.observe(event)
        self.newest, self._newest_digest = (epoch, found), packed.manifest.digest
        self.on_measured(epoch, found)
        return found.loss
