"""Looking at a model without touching it."""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from collab.errors import CollabError, TaskFailed
from collab.tasks.base import Evaluation, Task
from collab.training.device_memory import first_line, is_of_device

logger = logging.getLogger(__name__)


class _LeftOff(Exception):
    """Somebody wants the device back."""


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; each module's own mode is put back at the end.

    Yields:
        The device that the model's parameters are on.
    """
    with _left_as_it_was(model), torch.no_grad():
        model.eval()
        yield next(model.parameters()).device


@contextmanager
def _left_as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Whatever is done meanwhile: each module's mode, and whether gradients are computed."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training


@contextmanager
def blaming_task(deed: str) -> Iterator[None]:
    """For code of a task, which may be anybody's, and raise anything.

    Args:
        deed: what it is to do.

    Raises:
        TaskFailed: it has raised something; what the error's frames hold is let go. Errors of ours, and of the device,
            stay what they are.
    """
    try:
        yield
    except (CollabError, _LeftOff):
        raise
    except Exception as error:
        if is_of_device(error):
            raise
        logger.info("the task could not %s", deed, exc_info=True)
        traceback.clear_frames(error.__traceback__)
        text = f"the task could not {deed}: {type(error).__name__}: {first_line(error)}"
        hint = "tell the organiser; checkpoints come without their loss meanwhile (--log-level info shows the line)"
        raise TaskFailed(text, hint=hint) from None


def evaluate(task: Task, model: torch.nn.Module) -> Evaluation:
    """What the task finds that a model is worth.

    Raises:
        TaskFailed: its code has failed, or what it has found is no evaluation.
    """
    with _left_as_it_was(model), blaming_task("evaluate"):
        found = task.evaluate(model)
        return Evaluation(float(found.loss), float(found.accuracy))


def evaluate_unless(task: Task, model: torch.nn.Module, is_to_stop: Callable[[], bool]) -> Evaluation | None:
    """What the model is worth; None: it was to stop before that was known.

    Args:
        is_to_stop: asked before each batch: whenever the model is called, whatever the task.

    Raises:
        TaskFailed: as ``evaluate``.
    """

    def look(*_: object) -> None:
        if is_to_stop():
            raise _LeftOff

    watch = model.register_forward_pre_hook(look)
    try:
        return evaluate(task, model)
    except _LeftOff:
        return None
    finally:
        watch.remove()
