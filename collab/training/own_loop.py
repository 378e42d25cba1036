"""A replica around a model and an optimiser that the user's own program has made."""

import torch

from collab import config
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.training.genesis import replica_of
from collab.training.optimizers import build_optimizer
from collab.training.replica import Replica

COMPARED = ("lr", "weight_decay", "betas", "eps", "momentum")
"""Hyper-parameters that must be the run's on every peer, since all take the same step."""


def replica_around(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, bundle: Bundle) -> Replica:
    """The user's own model and optimiser (None: the run's) as a replica of the run.

    Raises:
        ConfigError: the optimiser is not the run's.
    """
    run = bundle.run
    expected = build_optimizer(run.optimizer, model)
    used = optimizer or expected
    check_optimizer(used, expected, run.optimizer, model)
    device = next(model.parameters()).device
    return replica_of(run, model, used, device)


def check_optimizer(
    ours: torch.optim.Optimizer, expected: torch.optim.Optimizer, section: config.Optimizer, model: torch.nn.Module
) -> None:
    """All peers take the same step, so their optimisers must be the same.

    Raises:
        ConfigError: another class, parameter or hyper-parameter than the run file says; both values are named.
    """
    hint = "build it as the run file says, or pass None and the run's own optimiser is used"
    if type(ours) is not type(expected):
        raise ConfigError(
            f"the run trains with {section.name} ({type(expected).__name__}), this is {type(ours).__name__}", hint=hint
        )
    theirs = {id(p): group for group in expected.param_groups for p in group["params"]}
    own = {id(p): group for group in ours.param_groups for p in group["params"]}
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) not in own:
            raise ConfigError(f"the optimiser lacks the parameter {parameter_name}", hint=hint)
        for key in COMPARED:
            here, there = own[id(parameter)].get(key), theirs[id(parameter)].get(key)
            if here != there:
                raise ConfigError(f"{key} of {parameter_name} is {here} here and {there} in the run file", hint=hint)
