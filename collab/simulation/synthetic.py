"""A task that is none: a vector of the right length, from which nothing is learnt."""

import math
from collections.abc import Mapping

import torch

from collab.simulation.swarm_file import NoTask
from collab.tasks.base import Batch, Evaluation

NOTHING = torch.zeros(1)


class _Numbers(torch.nn.Module):
    """Parameters, and nothing that they would be for."""

    def __init__(self, num_elements: int) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(num_elements))


class SyntheticTask:
    """Implements ``Task``: each microbatch has the same small gradient, and costs this machine next to nothing."""

    def __init__(self, section: NoTask) -> None:
        self._section = section

    def build_model(self) -> torch.nn.Module:
        return _Numbers(-(-self._section.num_elements // self._section.thinned))

    @property
    def num_samples(self) -> int:
        return self._section.samples

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        return Batch(sample_ids=sample_ids, tensors={"nothing": NOTHING})

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        (numbers,) = model.parameters()
        return numbers.mean()

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        return Evaluation(math.nan)

    def checkpoint_files(self) -> Mapping[str, bytes]:
        return {}
