"""DTS: delayed and temporally sparse updates, for high latency."""

import math

import numpy as np

from collab.averaging.base import Committed
from collab.strategies.base import Replica, Target
from collab.strategies.rounds import RoundByRound


class Dts(RoundByRound):
    """Every step is a local one; what the swarm's steps have in common arrives later, and seldom.

    Peer i takes a step of its own after each microbatch. The steps since its last window are the next *window*; U_i is
    the displacement of the parameters by them. As soon as the windows of all peers together have the target batch of
    samples, they are averaged in one round, while everybody steps on. When the round commits::

        anchor <- anchor + (1 / n) sum_i U_i            over the n contributors, the same bytes everywhere
        w_i    <- anchor + own displacements that no committed round has used

    so that the swarm's mean takes the place of the peer's own window, up to ``delay`` steps later. For plain SGD and
    windows of one step this is the source's rule, with g_k the peer's own gradient of step k and t the delay::

        w <- w - eta (g_n - g_(n-t) + (1 / n) sum_j g_(n-t, j))

    Replicas differ by their own pending windows only. With ``delay`` 0 and windows of one step it is synchronous SGD.
    An inner optimiser that is linear in its gradients (SGD, with or without momentum, at whatever rates) makes the
    anchor move as one optimiser would with the mean gradients; others, as their displacements say.

    Under a lossy encoding the whole window leaves the peer's own displacements, and what was not sent of it is owed by
    its encodings: it comes to the anchor with a later round, once, and until then is in nobody's parameters.

    A lost round: the window stays pending, in the peer's own parameters, and is part of the next one. Whoever missed a
    committed round adds its mean to the anchor as soon as it has it.

    Source: Zhu et al., "Distributed Training Across the World" (2020), and "Delayed Gradient Averaging" (NeurIPS 2021).
    """

    is_synchronous = False

    def __init__(self, *, target: Target, delay: int | None) -> None:
        """
        Args:
            target: samples of the windows of all peers together.
            delay: steps that a peer may take while its window is on its way; None: as many as that takes.
        """
        super().__init__(target=target)
        self._delay = delay

    def patience_s(self, replica: Replica, usual_s: float) -> float:
        is_late = self._delay is not None and replica.microbatches_beside >= self._delay
        return math.inf if is_late else 0.0

    def apply(self, replica: Replica, committed: Committed) -> None:
        record, a_sample = committed.record, committed.mean.astype(np.float32, copy=False)
        contributors = dict(record.contributors)
        samples = np.full(len(a_sample) if record.gaps else 1, math.fsum(contributors.values()))
        for peer, start, stop in record.gaps:
            samples[start:stop] -= contributors[peer]
        replica.step(a_sample * (samples / len(contributors)).astype(np.float32), committed.lineage, record.terms)
