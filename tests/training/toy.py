"""Small replicas with known gradients."""

from collections.abc import Mapping

import torch

from collab import config
from collab.tasks.base import Batch
from collab.training.optimizers import build_optimizer
from collab.training.replica import Replica

CONSTANT = config.Schedule()


class Toy(torch.nn.Module):
    """Tied weights, a branch that no batch uses, a frozen parameter, a norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.second = torch.nn.Linear(16, 16, bias=False)
        self.tied = self.second
        self.unused = torch.nn.Linear(2, 3)
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))
        out: torch.Tensor = self.last(self.tied(torch.tanh(self.second(hidden))))
        return out


class Plain(torch.nn.Module):
    """No statistics over the batch: the gradient of a batch is the mean over its samples'."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, width)
        self.last = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.first(x)))
        return out


def seeded(kind: type[torch.nn.Module], seed: int = 0) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind()


def replica(
    model: torch.nn.Module | None = None,
    optimizer: config.Optimizer | None = None,
    schedule: config.Schedule = CONSTANT,
) -> Replica:
    """On the CPU; a fresh ``Toy`` with SGD unless told otherwise."""
    model = seeded(Toy) if model is None else model
    section = config.Optimizer(name="sgd", learning_rate=0.1) if optimizer is None else optimizer
    return Replica(model, build_optimizer(section, model), schedule, device=torch.device("cpu"))


def batch(first: int, count: int) -> Batch:
    """Samples by number, always the same."""
    ids = tuple(range(first, first + count))
    rows = [torch.randn(6, generator=torch.Generator().manual_seed(i)) for i in ids]
    return Batch(sample_ids=ids, tensors={"x": torch.stack(rows), "y": torch.tensor([i % 3 for i in ids])})


def loss(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(tensors["x"]), tensors["y"])
