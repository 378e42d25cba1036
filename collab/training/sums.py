"""Sums of microbatches, and what of them has gone into steps."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from collab.averaging.weights import Weights
from collab.strategies.base import HandedOver, Spans


@dataclass(frozen=True, slots=True)
class Used:
    """What of ours went into a step."""

    sample_ids: tuple[int, ...] = ()
    sample_epochs: tuple[int, ...] = ()
    """For each sample, the epoch at whose parameters its gradient was computed: earlier for what was carried over."""
    loss: float = math.nan
    """Mean over these samples."""
    weight: float = 0.0
    """Samples, those included of which some elements are used and others are held: by the share of their elements."""
    rounds: tuple[str, ...] = ()
    """Ids of the rounds that used them."""

    def with_(self, later: "Used") -> "Used":
        """Both."""
        mine, theirs = len(self.sample_ids), len(later.sample_ids)
        loss = self.loss if not theirs else later.loss
        if mine and theirs:
            loss = (mine * self.loss + theirs * later.loss) / (mine + theirs)
        return Used(
            self.sample_ids + later.sample_ids,
            self.sample_epochs + later.sample_epochs,
            loss,
            self.weight + later.weight,
            self.rounds + later.rounds,
        )


@dataclass(frozen=True, slots=True)
class GradientSum:
    """Gradients of some microbatches, each weighted by its samples."""

    total: torch.Tensor
    """[num_elements] float32 on the device."""
    sample_ids: tuple[int, ...]
    sample_epochs: tuple[int, ...]
    """As in ``Used``."""
    loss_sum: float
    """Over the samples; NaN when it is not known."""
    cleared: Weights | None = None
    """Samples behind each element, where a step has used some elements and not others."""

    @property
    def weights(self) -> Weights:
        """Samples behind each element."""
        return self.cleared or Weights.uniform(len(self.total), len(self.sample_ids))

    def with_(self, other: "GradientSum", total: torch.Tensor) -> "GradientSum":
        """The samples of both, ours first, over ``total``; ``other`` is whole."""
        return GradientSum(
            total,
            self.sample_ids + other.sample_ids,
            self.sample_epochs + other.sample_epochs,
            self.loss_sum + other.loss_sum,
            None if self.cleared is None else self.cleared.plus(len(other.sample_ids)),
        )

    def joined(self, other: "GradientSum") -> "GradientSum":
        """The samples of both, ours first, in our total; whatever steps have used of either."""
        self.total.add_(other.total)
        is_whole = self.cleared is None and other.cleared is None
        return GradientSum(
            self.total,
            self.sample_ids + other.sample_ids,
            self.sample_epochs + other.sample_epochs,
            self.loss_sum + other.loss_sum,
            None if is_whole else self.weights.with_(other.weights),
        )

    def without(self, used: Spans) -> "GradientSum":
        """The same, with nothing left in the elements of ``used``."""
        for start, stop in used:
            self.total[start:stop] = 0
        return replace(self, cleared=self.weights.cleared(used))

    def mean(self) -> HandedOver:
        """Sum over the samples / samples, on the CPU; 0 where nothing is left."""
        if self.cleared is None:
            return HandedOver((self.total / len(self.sample_ids)).cpu().numpy(), len(self.sample_ids))
        samples = np.maximum(self.cleared.dense(0, len(self.total)), 1)
        mean = (self.total.cpu() / torch.from_numpy(samples)).numpy()
        return HandedOver(mean, round(self.cleared.largest), self.cleared)
