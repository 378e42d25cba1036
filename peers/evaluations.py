"""What checkpoints are worth: as trainers say, or as this backbone measures."""

import asyncio
import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one state is worth. After a rollback the same epoch is another state."""

    epoch: int
    era: str
    digest: str
    found: "Evaluation"


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
        self._newest: Measured | None = None
        self.on_measured: Callable[[Measured], None] = lambda _measured: None

    def newest(self, era: str) -> "tuple[int, Evaluation] | None":
        """Epoch and worth of what was measured here last, if that was of ``era``."""
        known = self._newest
        return (known.epoch, known.found) if known is not None and known.era == era else None

    def now(self, epoch: int) -> float:
        """The loss of the state of ``epoch`` since the last rollback, the middle one that is said; NaN: nobody has."""
        told = [r for r in self._membership.view.records if r.era == self._membership.era]
        losses = [r.eval_loss for r in told if r.eval_epoch == epoch and math.isfinite(r.eval_loss)]
        return statistics.median(losses or [math.nan])

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
        epoch, digest, clock = packed.manifest.epoch, packed.manifest.digest, self._ports.clock
        if self._newest is not None and self._newest.digest == digest:
            return self._newest.found.loss
        started_s = clock.monotonic()

        def measure() -> "tuple[str, Evaluation]":
            snapshot = unpack(packed)
            return snapshot.era, evaluate(snapshot)

        try:
            era, found = await self._ports.compute.apart(measure)
        except CollabError as error:
            logger.warning("not evaluated epoch=%d reason=%s", epoch, error)
            return math.nan
        seconds = clock.monotonic() - started_s
        event = EvaluationDone(at_s=clock.now(), epoch=epoch, loss=found.loss, accuracy=found.accuracy, seconds=seconds)
        self._ports.observer.observe(event)
        self._newest = Measured(epoch=epoch, era=era, digest=digest, found=found)
        self.on_measured(self._newest)
        return found.loss
