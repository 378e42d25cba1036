"""Optimisers of the global step, by name."""

import sys
from typing import Any

import torch

from collab.config import Optimizer
from collab.errors import ConfigError
from collab.training.lamb import Lamb


def build_optimizer(section: Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make the optimiser that a run names.

    It has two parameter groups, always in this order and each in the order of ``model.named_parameters()``: tensors
    with two dimensions and more, which decay, and all others (biases, norms), which do not. A group may be empty.
    Frozen parameters are in neither.

    Raises:
        ConfigError: the optimiser needs a package that is not installed.
        ValueError: the model has nothing to train.
    """
    trained = [parameter for _, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient")
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": section.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    match section.name:
        case "sgd":
            return torch.optim.SGD(groups, lr=section.learning_rate, momentum=section.momentum)
        case "adamw":
            return torch.optim.AdamW(groups, lr=section.learning_rate, betas=section.betas, eps=section.epsilon)
        case "lamb":
            return Lamb(groups, lr=section.learning_rate, betas=section.betas, eps=section.epsilon)
        case "adamw8bit":
            return _adamw8bit(section, groups)


def _adamw8bit(section: Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            f"optimizer adamw8bit needs the package bitsandbytes: {error}",
            hint=f"{sys.executable} -m pip install bitsandbytes",
        ) from error
    optimizer: torch.optim.Optimizer = AdamW8bit(
        groups, lr=section.learning_rate, betas=section.betas, eps=section.epsilon
    )
    return optimizer
