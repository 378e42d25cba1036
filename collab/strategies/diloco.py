"""DiLoCo: many inner steps between two exchanges, for links of a few Mbit/s."""

import numpy as np

from collab.averaging.base import Committed
from collab.strategies.base import HandedOver, Replica, Target
from collab.strategies.rounds import RoundByRound
from collab.types import Vector


class Diloco(RoundByRound):
    """Each peer steps by itself until the swarm's phase is over; then all take one step on how far they have gone.

    Peer i begins at the parameters W that all share, takes as many steps of its own optimiser as it can until all
    together have trained on the target number of samples, and stands at w_i after s_i samples. One round averages the
    displacements, by samples (for a language model by tokens), and the outer step is Nesterov's, in float32::

        u = sum_i s_i (w_i - W) / sum_i s_i            (the negative of the pseudo-gradient)
        v <- mu v + u        W <- W + eta (u + mu v)        w_i <- W

    With ``delay`` 1 the round goes on beside the next phase: what a peer steps meanwhile stays, on top of the new W, so
    that the outer step comes one phase late for it. W and v are the same bytes on all peers, and a newcomer gets both;
    inner optimisers are private.

    A lost round: nothing moves, and each peer's displacement is part of the next one, with the samples behind it.
    Whoever missed a committed round takes the outer step as soon as it has the round's mean.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), algorithm 1;
    overlap: "Streaming DiLoCo" (2025).
    """

    def __init__(self, *, target: Target, delay: int = 0) -> None:
        """
        Args:
            target: samples of the inner steps of all peers together.
            delay: 0: rounds are waited for; 1: they go on beside the next phase.
        """
        super().__init__(target=target)
        self.is_synchronous = delay == 0

    def sent(self, ours: HandedOver) -> Vector:
        """The displacement itself: whoever has stepped further counts by its samples, not by their square."""
        if ours.weights is None:
            return ours.mean * np.float32(ours.samples)
        return ours.mean * ours.weights.dense(0, len(ours.mean)).astype(np.float32)

    def apply(self, replica: Replica, committed: Committed) -> None:
        replica.step(committed.mean.astype(np.float32, copy=False), committed.lineage, committed.record.terms)
