"""The swarm in a few numbers, from what its peers say."""

import math

from collab.swarm.progress import SwarmView


def swarm_loss(view: SwarmView) -> float:
    """Mean of the trainers' losses, weighted by their speeds; NaN when none has one."""
    known = [(r.loss, max(r.samples_per_s, 1e-9)) for r in view.all_trainers() if math.isfinite(r.loss)]
    total = sum(weight for _, weight in known)
    return sum(loss * weight for loss, weight in known) / total if known else math.nan


def newest_evaluation(view: SwarmView) -> tuple[int, float, float]:
    """Epoch, loss and accuracy of the newest evaluation that any peer tells of; (-1, NaN, NaN) when there is none."""
    told = [record for record in view.records if record.eval_epoch >= 0]
    newest = max(told, key=lambda record: record.eval_epoch, default=None)
    return (-1, math.nan, math.nan) if newest is None else (newest.eval_epoch, newest.eval_loss, newest.eval_accuracy)


def told(figure: float) -> float | None:
    """As JSON has it: nothing for NaN."""
    return figure if math.isfinite(figure) else None
