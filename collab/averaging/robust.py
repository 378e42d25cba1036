"""How k contributions to one part of the vector become one: the mean, and rules that liars move only so far.

Every rule is a pure function of the contributions in the group's order. It uses element-wise IEEE operations in a fixed
order and no BLAS, so that two reducers of a part, on whatever machines, get the same bytes.

What a rule withstands is counted in *weight*: without a cap (``capped``) one peer that claims half of the samples owns
every rule. All rules see contributions that were found finite before (``check_finite``). With one contributor all
return it. Of two, nobody can say who lies: the heavier one has the majority, so order statistics follow it, and meet in
the middle at equal weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collab.averaging.contributions import (
    Weight,
    check_contributions,
    overall_weight,
    root_mean_square,
    weight_shares,
)
from collab.averaging.weighted_order import lower_median, ordered_blocks
from collab.errors import BadPart
from collab.types import PeerId, Vector

ROUNDING = 1e-9
"""Of the weight: less than this beyond an edge of the trimmed mean is rounding, which must not let a huge value in."""


class Rule(Protocol):
    """Reduces the contributions to one part."""

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        """[n] float32, a new array; 0 at elements where nobody brought anything.

        Args:
            values: k >= 1 finite vectors [n] float32 in the group's order; they may be read-only and unaligned.
            weights: of each of them.

        Raises:
            ValueError: no values, or lengths or weights that cannot be.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean by samples: exact large-batch training (property R1), and the only rule without bias.

    Formula: ``sum_i w_i x_i / sum_i w_i``, in float32, in order.

    Withstands nothing: one liar with any weight can move the result anywhere (breakdown point 0).

    Cost: one product and one sum an element and contributor.
    """

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        num_elements = check_contributions(values, weights)
        product, total = np.empty(num_elements, np.float32), np.zeros(num_elements, np.float32)
        for value, share in zip(values, weight_shares(weights, num_elements), strict=True):
            np.multiply(value, np.float32(share), out=product)
            np.add(total, product, out=total)
        return total


@dataclass(frozen=True, slots=True)
class ClippedMean:
    """The mean by samples, in which nobody's part is longer than the others' usually are.

    Formula: ``sum_i p_i x_i min(1, multiple * m / ||x_i||)``, with ``p_i`` the share of the weight and ``m`` the
    median of the norms by weight. A contributor's norm is the root mean square over the elements that it brought.

    Withstands any size of lie, not its direction: while liars have a share b < 1/2 of the weight, they pull with
    at most ``b multiple m`` in norm, and ``m`` is at most an honest norm. A fifth that pulls backwards slows training
    down, and nearly half can stop it. Clipping shortens long honest parts, too; when nobody is clipped the bytes are
    those of ``Mean``. Where more than half bring zeros (rare rows of an embedding), ``m`` and the result are 0.

    Cost: about four times the mean.

    Source: clipping to the median norm as in SparseLoCo (2025); by part and by weight here.
    """

    multiple: float = 1.0

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        num_elements = check_contributions(values, weights)
        sizes = [
            root_mean_square(value.astype(np.float64), weight) for value, weight in zip(values, weights, strict=True)
        ]
        limit = self.multiple * lower_median(sizes, [overall_weight(weight) for weight in weights])
        product, total = np.empty(num_elements, np.float32), np.zeros(num_elements, np.float32)
        for value, share, size in zip(values, weight_shares(weights, num_elements), sizes, strict=True):
            if size <= limit:
                np.multiply(value, np.float32(share), out=product)
            else:  # in float64: what makes 1e38 small is too small for float32
                product[:] = value * (np.float64(limit / size) * share)
            np.add(total, product, out=total)
        return total


@dataclass(frozen=True, slots=True)
class CoordinateMedian:
    """The median of every element, by weight.

    Formula: the value at which half of the weight is reached from below; where that is met exactly, the middle between
    it and the next one. With equal weights this is the usual median.

    Withstands liars with less than half of the weight (breakdown point 1/2): every element stays within the range of
    the honest ones. It is biased where contributions are skewed, as gradients of few samples are, and has the noise of
    pi/2 times fewer samples; a-little-is-enough moves it inside the honest range.

    Cost: sorting, see ``ordered_blocks``.

    Source: Yin et al., "Byzantine-Robust Distributed Learning" (ICML 2018), definition 1; by weight here.
    """

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        result = np.empty(check_contributions(values, weights), np.float32)
        for block in ordered_blocks(values, weights):
            half = block.weight / 2
            low, high = block.values[-1].copy(), block.values[-1].copy()
            for value, weight_until in zip(block.values[-2::-1], block.weight_until[-2::-1], strict=True):
                np.copyto(low, value, where=weight_until >= half)
                np.copyto(high, value, where=weight_until > half)
            middle = np.float32(0.5) * low + np.float32(0.5) * high
            result[block.start : block.stop] = np.where(low == high, low, middle) * (half > 0)
        return result


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """The mean of every element without the smallest and the largest ``beta`` of the weight.

    Formula: ``sum_j kept_j x_(j) / sum_j kept_j``, where value j in ascending order covers the weight from C_(j-1) to
    C_j, and ``kept_j`` is what of that lies between ``beta W`` and ``(1 - beta) W``.

    Withstands liars with at most ``beta`` of the weight (breakdown point beta): every element stays within the range of
    the honest ones. Less noise than the median, the same weakness against small lies in every element.

    Cost: sorting and a sum, see ``ordered_blocks``.

    Source: Yin et al. (ICML 2018), definition 2; by weight here.
    """

    beta: float = 0.25
    """0 <= beta < 1/2. A quarter: two of ten liars may have a little more than their share of the samples."""

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise ValueError(f"beta {self.beta}: at least 0, less than a half")

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        result = np.empty(check_contributions(values, weights), np.float32)
        for block in ordered_blocks(values, weights):
            total, kept_weight = np.zeros(block.stop - block.start), np.zeros(block.stop - block.start)
            below = lowest = self.beta * block.weight
            for value, weight_until in zip(block.values, block.weight_until, strict=True):
                upto = np.clip(weight_until, lowest, block.weight - lowest)
                kept = upto - below
                kept[kept < ROUNDING * block.weight] = 0.0
                total += kept * value
                kept_weight += kept
                below = upto
            kept_weight[kept_weight == 0] = 1.0
            result[block.start : block.stop] = total / kept_weight
        return result


@dataclass(frozen=True, slots=True)
class CenteredClip:
    """Averages what everybody differs by from the center, with long differences clipped, until the center rests.

    Formula: ``v <- v + sum_i p_i (x_i - v) min(1, tau / ||x_i - v||)``, from the coordinate median on; ``tau`` is
    ``multiple`` times the median by weight of ``||x_i - v||`` there, norms as in ``ClippedMean``. Each step lowers
    ``sum_i p_i huber_tau(||x_i - v||)``, which is convex: large ``tau`` gives the mean, small ``tau`` the geometric
    median.

    Withstands liars with a share b < 1/2 of the weight: ``tau`` is at most an honest distance, and each step they pull
    by at most ``b multiple tau``, so that the error is of the order of b times the spread of the honest ones, whatever
    the number of elements. The published guarantee for training needs momentum at the workers besides, against small
    lies that add up over many steps; what holds without is measured in docs/robust.md.

    Cost: the median, then ``iterations + 1`` passes in float64, fewer when the center rests before.

    Source: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization" (ICML 2021), equation 5;
    each part for itself as in BTARD (Gorbunov et al., ICML 2022). The start and ``tau`` from medians are ours.
    """

    multiple: float = 1.0
    iterations: int = 3
    """From the median on the center hardly moves in more."""
    tolerance: float = 1e-3
    """Of ``tau``: a shorter step is the last one."""

    def reduce(self, values: Sequence[Vector], weights: Sequence[Weight]) -> Vector:
        num_elements = check_contributions(values, weights)
        median = CoordinateMedian().reduce(values, weights)
        center = median.astype(np.float64)
        distances = [root_mean_square(value - center, weight) for value, weight in zip(values, weights, strict=True)]
        tau = self.multiple * lower_median(distances, [overall_weight(weight) for weight in weights])
        if tau == 0.0:
            return median
        shares = weight_shares(weights, num_elements)
        for _ in range(self.iterations):
            step = np.zeros(num_elements)
            for value, weight, share in zip(values, weights, shares, strict=True):
                difference = value - center
                size = root_mean_square(difference, weight)
                difference *= share * min(1.0, tau / size) if size else share
                step += difference
            center += step
            if root_mean_square(step, 1.0) <= self.tolerance * tau:
                break
        return center.astype(np.float32)


RULES: Mapping[str, Rule] = {
    "mean": Mean(),
    "clipped_mean": ClippedMean(),
    "median": CoordinateMedian(),
    "trimmed_mean": TrimmedMean(),
    "centered_clip": CenteredClip(),
}
"""By the word in the run file (``averaging.reduction``)."""


def rule_by_name(name: str) -> Rule:
    """The rule that a run file names.

    Raises:
        ValueError: no such rule.
    """
    if name not in RULES:
        raise ValueError(f"unknown reduction {name!r}: choose one of {', '.join(RULES)}")
    return RULES[name]


def check_finite(values: Vector) -> None:
    """Refuse a part before it can reach a rule.

    Raises:
        BadPart: ``values`` has NaN or Inf; exclude the sender from this round.
    """
    if not np.isfinite(values).all():
        raise BadPart("not_finite", "a part has NaN or Inf")


def capped(weights: Mapping[PeerId, float], max_share: float) -> dict[PeerId, float]:
    """Weights of which none is more than ``max_share`` of their sum; what is above the level is cut, nothing is raised.

    The level L solves ``L = max_share * sum_i min(w_i, L)``. Fewer than ``1 / max_share`` contributors cannot all have
    less: then all get the smallest weight, which is the nearest to it. The result does not depend on the order.

    Args:
        weights: samples, all > 0.
        max_share: in (0, 1]; 1 changes nothing.

    Raises:
        ValueError: a weight or ``max_share`` out of its range.
    """
    if not 0 < max_share <= 1:
        raise ValueError(f"max_share {max_share}: above 0, at most 1")
    if not all(weight > 0 and math.isfinite(weight) for weight in weights.values()):
        raise ValueError("a weight is not positive and finite")
    descending = sorted(weights.values(), reverse=True)
    level = descending[-1] if descending else 0.0
    for num_cut, largest_whole in enumerate(descending):
        whole = math.fsum(descending[num_cut:])
        room = 1.0 - max_share * num_cut
        if room > 0 and largest_whole <= max_share * whole / room:
            level = max_share * whole / room
            break
    return {peer: min(weight, level) for peer, weight in weights.items()}
