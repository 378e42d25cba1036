"""Learning rate by epoch."""

import math

from collab.config import Schedule


def learning_rate_factor(section: Schedule, epoch: int) -> float:
    """Factor on the optimiser's learning rate for one global step.

    Args:
        section: the run's schedule.
        epoch: global steps taken so far, >= 0; the first step asks for epoch 0.

    Returns:
        ``(epoch + 1) / warmup_epochs`` during warm-up, 1 at its end, ``final_factor`` from ``total_epochs`` on; never
        above 1.
    """
    if epoch < 0:
        raise ValueError(f"epoch must be at least 0, got {epoch}")
    if epoch < section.warmup_epochs:
        return (epoch + 1) / section.warmup_epochs
    if section.name == "constant" or section.total_epochs is None:
        return 1.0
    done = min(1.0, (epoch - section.warmup_epochs) / (section.total_epochs - section.warmup_epochs))
    remaining = 1.0 - done if section.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return section.final_factor + (1.0 - section.final_factor) * remaining
