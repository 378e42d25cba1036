"""The task port: what is learnt, from what. A task knows nothing of peers, rounds or strategies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some training samples, ready for the model."""

    sample_ids: tuple[int, ...]
    """Which samples, so that a run can be replayed exactly."""
    tensors: Mapping[str, torch.Tensor]
    """First dimension: sample. On the CPU; the replica moves them."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model is worth on the held-out split."""

    loss: float
    """Mean over the samples."""
    accuracy: float = math.nan
    """Share of them that it gets right, 0 .. 1; NaN: there is no right and wrong."""


class Task(Protocol):
    """One learning problem: model, data, loss."""

    def build_model(self) -> torch.nn.Module:
        """A fresh model on the CPU, float32, initialised from torch's global generator (the caller seeds it)."""
        ...

    @property
    def num_samples(self) -> int:
        """Training samples on this machine; ids are ``0 .. num_samples - 1``."""
        ...

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        """Training samples by id: the same ids give the same tensors, however often."""
        ...

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Scalar: mean over the samples, so that means weighted by samples compose."""
        ...

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        """On the held-out split, the same samples on every machine; leaves the model's mode as it was."""
        ...

    def checkpoint_files(self) -> Mapping[str, bytes]:
        """What belongs beside ``model.safetensors`` so that others can load it: configuration, tokenizer; by name.

        Names are those of plain files, and none of the run's own (``checkpoints.file_names``), or it is not published.
        """
        ...
