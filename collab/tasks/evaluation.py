"""Looking at a model without touching it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
