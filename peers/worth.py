"""What the model of a simulated swarm is worth: a look that costs no virtual time."""

import math
from collections.abc import Sequence

import torch

from collab.simulation.synthetic import SyntheticTask
from collab.swarm.parameter_store.base import Stored
from collab.tasks.base import Evaluation, Task
from collab.training.copy_layout import CopyLayout
from collab.training.judging import evaluate_state
from collab.training.replica import Replica


def worth_of(task: Task, stored: Stored | None, replicas: Sequence[Replica]) -> Evaluation:
    """Of the model that the swarm shares: the servers', or else that of the replica that is furthest.

    Returns:
        NaN, where nothing is learnt or there is nothing yet.
    """
    if isinstance(task, SyntheticTask):
        return Evaluation(math.nan)
    if stored is not None:
        model = task.build_model()
        CopyLayout(model).scatter(torch.tensor(stored.values))
        return task.evaluate(model)
    with_state = [replica for replica in replicas if replica.lineage]
    if not with_state:
        return Evaluation(math.nan)
    return evaluate_state(task, max(with_state, key=lambda replica: replica.epoch).snapshot())
