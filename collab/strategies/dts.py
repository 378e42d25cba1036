"""DTS: delayed and temporally sparse updates, for high latency."""

import math
from dataclasses import replace

import numpy as np

from collab.averaging.base import Committed, Contribution, Outcome
from collab.strategies.base import Decision, OwnWindows, Replica, Stepped, Swarm, Target, Worker
from collab.strategies.rounds import RoundByRound
from collab.types import AnyVector


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

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        if replica.windows == 1:
            return await super().contribute(replica, swarm)
        ours = replica.begin_windows()
        contribution = Contribution(
            epoch=replica.epoch,
            lineage=replica.lineage,
            vector=ours.vector,
            weight=float(replica.samples),
            windows=_Rows(ours, replica.windows, swarm.worker),
        )
        return await swarm.averager.average(contribution)

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        held = replica.samples
        decision = await super().take(replica, swarm, outcome)
        if replica.windows == 1 or not isinstance(decision, Stepped) or not isinstance(outcome, Committed):
            return decision
        said = dict(outcome.record.contributors).get(swarm.peer_id, 0.0)
        if not said:
            return decision
        # what is said when a round begins is of its first window; the others' will have grown as ours
        return replace(decision, swarm_samples=decision.swarm_samples * (held - replica.samples) / said)

    def apply(self, replica: Replica, committed: Committed) -> None:
        if replica.windows > 1:
            rows = committed.mean.astype(np.float32, copy=False).reshape(replica.windows, -1)
            moved = np.zeros(rows.shape[1], np.float32)
            for row in rows:  # one after the other: a sum of any other order is another one
                moved += row
            replica.step(moved[: replica.num_elements], committed.lineage, committed.record.terms)
            return
        record, a_sample = committed.record, committed.mean.astype(np.float32, copy=False)
        contributors = dict(record.contributors)
        samples = np.full(len(a_sample) if record.gaps else 1, math.fsum(contributors.values()))
        for peer, start, stop in record.gaps:
            samples[start:stop] -= contributors[peer]
        replica.step(a_sample * (samples / len(contributors)).astype(np.float32), committed.lineage, record.terms)


class _Rows:
    """Implements the averager's ``Windows``."""

    def __init__(self, ours: OwnWindows, count: int, worker: Worker) -> None:
        self._ours, self._worker = ours, worker
        self.count = count

    async def close(self, row: int) -> None:
        await self._worker.beside(lambda: self._ours.close(row))

    def put(self, row: int, mean: AnyVector | None) -> None:
        self._ours.put(row, None if mean is None else mean.astype(np.float32, copy=False))
