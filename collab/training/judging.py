"""What a state is worth, where no replica is."""

import numpy as np
import torch

from collab.errors import ShapeMismatch
from collab.swarm.snapshots import Snapshot
from collab.tasks.base import Evaluation, Task
from collab.tasks.evaluation import evaluate
from collab.training.shared_state import model_tensors


def evaluate_state(task: Task, snapshot: Snapshot) -> Evaluation:
    """Of the model with the parameters and buffers of ``snapshot``, on the CPU.

    Raises:
        ShapeMismatch: they are those of another model.
        TaskFailed: the task cannot say what it is worth.
    """
    model = task.build_model()
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            theirs = snapshot.tensors.get(f"model.{name}")
            if theirs is None or theirs.shape != tuple(tensor.shape):
                raise ShapeMismatch(f"the state has no {name} of shape {tuple(tensor.shape)}", hint="of another model?")
            tensor.copy_(torch.from_numpy(np.array(theirs)))
    return evaluate(task, model)
