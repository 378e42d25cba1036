"""Digits from 8 x 8 pixels: the task that is learnt in seconds, everywhere."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache, cached_property
from itertools import pairwise

import torch
from torch.nn import functional

from collab.config import ImageClassificationTask
from collab.tasks.base import Batch, Evaluation
from collab.tasks.evaluation import evaluating

_NUM_PIXELS = 64
_NUM_CLASSES = 10
_BRIGHTEST = 16.0
"""Pixels of the data set are 0 .. 16."""


class ImageClassification:
    """A perceptron with ReLU on scikit-learn's digits.

    The split is the same whatever the run's seed, the machine and the versions of its libraries: images are ordered by
    a digest of their index, and the first ``eval_samples`` of them are held out.
    """

    def __init__(self, section: ImageClassificationTask) -> None:
        self._section = section

    def build_model(self) -> torch.nn.Module:
        """Layers named ``0.weight``, ``0.bias``, ``2.weight`` ..., initialised from torch's global generator."""
        sizes = (_NUM_PIXELS, *self._section.hidden_sizes, _NUM_CLASSES)
        layers: list[torch.nn.Module] = []
        for num_inputs, num_outputs in pairwise(sizes):
            layers += [torch.nn.Linear(num_inputs, num_outputs), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    @property
    def num_samples(self) -> int:
        """Training images; ids are ``0 .. num_samples - 1``."""
        return len(self._train[1])

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        """Returns ``pixels`` [samples, 64] float32 in [0, 1] and ``labels`` [samples] int64."""
        pixels, labels = self._train
        ids = torch.tensor(sample_ids, dtype=torch.int64)
        return Batch(sample_ids=sample_ids, tensors={"pixels": pixels[ids], "labels": labels[ids]})

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross entropy in float32, mean over the samples."""
        return functional.cross_entropy(model(tensors["pixels"]).float(), tensors["labels"])

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        """Cross entropy on the held-out images, and the share of them that is named right."""
        pixels, labels = self._held_out
        with evaluating(model) as device:
            logits = model(pixels.to(device)).float().cpu()
        right = (logits.argmax(dim=1) == labels).double().mean()
        return Evaluation(float(functional.cross_entropy(logits, labels).item()), float(right.item()))

    def checkpoint_files(self) -> Mapping[str, bytes]:
        """``config.json``: what :meth:`build_model` needs to make the model again."""
        config = {"task": self._section.name, "num_inputs": _NUM_PIXELS,
                  "hidden_sizes": list(self._section.hidden_sizes), "num_classes": _NUM_CLASSES}
        return {"config.json": (json.dumps(config, indent=2) + "\n").encode()}

    @cached_property
    def _order(self) -> list[int]:
        num_images = len(_digits()[1])
        return sorted(range(num_images), key=lambda index: hashlib.sha256(f"digits:{index}".encode()).digest())

    @cached_property
    def _held_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._select(self._order[:self._section.eval_samples])

    @cached_property
    def _train(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._select(self._order[self._section.eval_samples:])

    def _select(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, labels = _digits()
        return pixels[indices], labels[indices]


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images and labels, read once by a process whatever number of peers it simulates; nobody writes to them."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / _BRIGHTEST, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
