"""The swarm in a few numbers, from what its peers say."""

import math

from collab.swarm.progress import SwarmView


def swarm_loss(view: SwarmView) -> float:
    """Mean of the trainers' losses, weighted by their speeds; NaN when none has one."""
    known = [(r.loss, max(r.samples_per_s, 1e-9)) for r in view.all_trainers() if math.isfinite(r.loss)]
    total = sum(weight for _, weight in known)
    return sum(loss * weight for loss, weight in known) / total if known else math.nan


def newest_evaluation(view: SwarmView) -> tuple[int, float]:
    """Epoch and loss of the newest evaluation that any peer tells of; (-1, NaN) when there is none."""
    told = [(record.eval_epoch, record.eval_loss) for record in view.records if record.eval_epoch >= 0]
    return max(told, default=(-1, math.nan))
