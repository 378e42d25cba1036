"""DeDLOC: synchronous training with a global target batch."""

import numpy as np

from collab.averaging.base import Aborted, Committed, Contribution, Outcome
from collab.strategies.base import (
    NOTHING,
    Decision,
    OutOfStep,
    Ready,
    Replica,
    Stepped,
    Swarm,
    Target,
    Waiting,
    clip_to_norm,
)


class Dedloc:
    """Accumulate until the swarm has its target batch of samples, average, take one step.

    Update rule, with s_i samples and mean gradient g_i on peer i::

        g = sum_i s_i g_i / sum_i s_i        w <- optimiser(w, clip(g))        as soon as sum_i s_i >= target

    which is large-batch training, whatever the number and speed of the peers.

    A lost round: nothing is applied and nothing is forgotten. The peer computes on, and brings everything it has
    accumulated to the next attempt. A peer that missed a committed round takes over the swarm's state and brings its
    gradient, now one step stale, to the next round; what of it that round has used stays behind. A peer whose
    microbatch would end too late for a round brings what it has, and takes the step when the microbatch has ended; that
    one's gradient is a step stale, too. So are those of microbatches that are computed while a round takes much longer
    than rounds usually do.

    Source: Diskin et al., "Distributed Deep Learning in Open Collaborations" (NeurIPS 2021), section 3.
    """

    follows_swarm = True

    def __init__(self, *, target: Target, max_gradient_norm: float | None) -> None:
        self._target, self._max_norm = target, max_gradient_norm

    async def after_microbatch(self, replica: Replica, swarm: Swarm) -> Decision:
        if not await swarm.progress.has_reached(self._target(replica.epoch)) or replica.samples == 0:
            return Waiting()
        return Ready()

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        epoch, lineage = replica.epoch, replica.lineage
        gradient = await swarm.worker.beside(replica.hand_over)
        return await swarm.averager.average(
            Contribution(
                epoch=epoch,
                lineage=lineage,
                vector=gradient.mean,
                weight=float(gradient.samples),
                weights=gradient.weights,
            )
        )

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        if isinstance(outcome, Aborted):
            await swarm.worker.run(lambda: replica.doubt(outcome.rounds))
            return Waiting(outcome.text)
        record = outcome.record
        used, round_id = (record.used_of(swarm.peer_id), record.round_id) if record is not None else (NOTHING, "")
        if not isinstance(outcome, Committed):
            await swarm.worker.run(lambda: replica.settle(used, round_id))
            return OutOfStep(outcome.text)
        await swarm.worker.run(lambda: self.apply(replica, outcome))
        await swarm.worker.run(lambda: replica.settle(used, round_id))
        return Stepped(
            contributors=len(outcome.record.contributors), swarm_samples=outcome.record.weight, was_ours_used=bool(used)
        )

    def apply(self, replica: Replica, committed: Committed) -> None:
        gradient = clip_to_norm(committed.mean.astype(np.float32, copy=False), self._max_norm)
        replica.step(gradient, committed.lineage, committed.record.terms)
