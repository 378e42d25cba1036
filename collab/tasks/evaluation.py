"""Looking at a model without touching it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from collab.tasks.base import Evaluation, Task


class _LeftOff(Exception):
    """Somebody wants the device back."""


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; each module's own mode is put back at the end.

    Yields:
        The device that the model's parameters are on.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for module, was_training in modes:
            module.training = was_training


def evaluate_unless(task: Task, model: torch.nn.Module, is_to_stop: Callable[[], bool]) -> Evaluation | None:
    """What the model is worth; None: it was to stop before that was known.

    Args:
        is_to_stop: asked before each batch: whenever the model is called, whatever the task.
    """

    def look(*_: object) -> None:
        if is_to_stop():
            raise _LeftOff

    watch = model.register_forward_pre_hook(look)
    try:
        return task.evaluate(model)
    except _LeftOff:
        return None
    finally:
        watch.remove()
