"""DeDLOC: synchronous training with a global target batch."""

import numpy as np

from collab.averaging.base import Committed
from collab.strategies.base import Replica, Target, clip_to_norm
from collab.strategies.rounds import RoundByRound


class Dedloc(RoundByRound):
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

    With ``delay`` 1 nobody waits for a round: the next batch is computed beside it, at the parameters before its step.
    Every gradient is one step stale then, and never more, since the next round begins when this one is over::

        w_(k+1) <- optimiser(w_k, clip(g(w_(k-1))))

    Source: Diskin et al., "Distributed Deep Learning in Open Collaborations" (NeurIPS 2021), section 3;
    delayed parameter updates: Ren et al., "ZeRO-Offload" (2021).
    """

    def __init__(self, *, target: Target, max_gradient_norm: float | None, delay: int = 0) -> None:
        """
        Args:
            target: samples of the swarm's batch.
            delay: 0: rounds are waited for; 1: they go on beside the next batch.
        """
        super().__init__(target=target)
        self.is_synchronous = delay == 0
        self._max_norm = max_gradient_norm

    def apply(self, replica: Replica, committed: Committed) -> None:
        gradient = clip_to_norm(committed.mean.astype(np.float32, copy=False), self._max_norm)
        replica.step(gradient, committed.lineage, committed.record.terms)
