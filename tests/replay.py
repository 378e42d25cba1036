"""One process that trains on recorded sample ids: what a swarm must be equal to, in plain torch."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from collab import config
from collab.tasks.base import Task
from collab.training.optimizers import build_optimizer
from collab.training.schedule import learning_rate_factor


@dataclass(frozen=True)
class Sample:
    """One sample of a step."""

    id: int
    epoch: int
    """At whose parameters its gradient was computed."""
    weight: float = 1.0
    """In the mean of its step."""


def samples_by_epoch(events: Iterable[Mapping[str, Any]]) -> dict[int, list[Sample]]:
    """All samples of each step, from the EpochFinished events of all peers."""
    samples: dict[int, list[Sample]] = {}
    for event in events:
        pairs = zip(event["sample_ids"], event["sample_epochs"], strict=True)
        samples.setdefault(event["epoch"], []).extend(Sample(*pair) for pair in pairs)
    return samples


def train_alone(
    run: config.Run, task: Task, start: Mapping[str, torch.Tensor], steps: Sequence[list[Sample]]
) -> torch.nn.Module:
    """Large-batch training from the parameters ``start``, one step on each list of samples.

    With ``worker_momentum`` it is torch's dampened momentum, which is the same where nothing is clipped.
    """
    assert isinstance(run.strategy, config.Dedloc)
    model = task.build_model()
    model.load_state_dict(dict(start), strict=False)
    optimizer = build_optimizer(run.optimizer, model)
    if beta := run.averaging.worker_momentum:
        assert run.strategy.max_gradient_norm is None
        optimizer = torch.optim.SGD(model.parameters(), lr=run.optimizer.learning_rate, momentum=beta, dampening=beta)
    rates = [group["lr"] for group in optimizer.param_groups]
    history: list[torch.nn.Module] = []
    for epoch, samples in enumerate(steps):
        history.append(copy.deepcopy(model))
        optimizer.zero_grad()
        total = math.fsum(sample.weight for sample in samples)
        for past, weight in sorted({(sample.epoch, sample.weight) for sample in samples}):
            ids = tuple(sample.id for sample in samples if (sample.epoch, sample.weight) == (past, weight))
            then = history[past].train()
            then.zero_grad()
            loss = task.loss(then, task.batch(ids).tensors) * (len(ids) * weight / total)
            loss.backward()
            for parameter, computed in zip(model.parameters(), then.parameters(), strict=True):
                assert computed.grad is not None
                parameter.grad = computed.grad.clone() if parameter.grad is None else parameter.grad + computed.grad
        if run.strategy.max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.strategy.max_gradient_norm)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate_factor(run.schedule, epoch)
        optimizer.step()
    return model


def relative_difference(model: torch.nn.Module, other: Mapping[str, torch.Tensor]) -> float:
    """Norm of the difference of all parameters as one vector, relative to the norm of the model's."""
    mine = torch.cat([parameter.detach().double().reshape(-1) for _, parameter in model.named_parameters()])
    theirs = torch.cat([other[name].double().reshape(-1) for name, _ in model.named_parameters()])
    return float((mine - theirs).norm() / mine.norm())
