"""Training alone: the baseline of every comparison."""

import hashlib

from collab.averaging.agreement import local_lineage
from collab.averaging.base import Committed, Outcome
from collab.strategies.base import Decision, Replica, Stepped, Swarm, Target, Waiting, clip_to_norm

ALONE = "a peer that trains alone takes no part in rounds"


class Solo:
    """Plain large-batch training on one machine; nothing is sent.

    Update rule: ``w <- optimiser(w, clip(g))`` as soon as the peer itself has the target batch of samples.

    A lost round cannot happen.
    """

    follows_swarm = False
    is_synchronous = True

    def __init__(self, *, target: Target, max_gradient_norm: float | None) -> None:
        self._target, self._max_norm = target, max_gradient_norm

    async def after_microbatch(self, replica: Replica, swarm: Swarm) -> Decision:
        if replica.samples < self._target(replica.epoch):
            return Waiting()
        ours = await swarm.worker.run(replica.hand_over)
        gradient = clip_to_norm(ours.mean, self._max_norm)
        lineage = local_lineage(replica.lineage, hashlib.sha256(gradient.tobytes()).hexdigest())
        await swarm.worker.run(lambda: replica.step(gradient, lineage))
        replica.settle(ours.everything)
        return Stepped(contributors=1, swarm_samples=float(ours.samples), was_ours_used=True)

    def patience_s(self, replica: Replica, usual_s: float) -> float:
        return usual_s  # no round is ever begun

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        raise ValueError(ALONE)

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        raise ValueError(ALONE)

    def apply(self, replica: Replica, committed: Committed) -> None:
        raise ValueError(ALONE)
