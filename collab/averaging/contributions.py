"""What reductions measure of the contributions to one part: pure, and the same bytes on every machine."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.types import Vector

Weight: TypeAlias = Vector | float
"""Samples behind a contribution: a number > 0, or [n] float32 >= 0 where it differs within the part; at elements with 0
the contributor brought nothing, and what stands there is not looked at."""
Wide: TypeAlias = NDArray[np.float64]


def check_contributions(values: Sequence[Vector], weights: Sequence[Weight]) -> int:
    """Length of the contributions.

    Raises:
        ValueError: none at all, or lengths, types or weights that cannot be.
    """
    if not values or len(values) != len(weights):
        raise ValueError(f"{len(values)} contributions with {len(weights)} weights")
    num_elements = len(values[0])
    for value, weight in zip(values, weights, strict=True):
        if value.shape != (num_elements,) or value.dtype != np.float32:
            raise ValueError(f"expected [{num_elements}] float32, got {list(value.shape)} {value.dtype}")
        if isinstance(weight, np.ndarray):
            if weight.shape != (num_elements,) or not (np.isfinite(weight).all() and (weight >= 0).all()):
                raise ValueError(f"expected [{num_elements}] finite weights of at least 0")
        elif not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"weight {weight}: positive and finite")
    return num_elements


def weight_shares(weights: Sequence[Weight], num_elements: int) -> list[np.float64 | Wide]:
    """Of the weight of all, for each contributor: a number, or one for each element if any weights differ there."""
    scalars = [weight for weight in weights if not isinstance(weight, np.ndarray)]
    if len(scalars) == len(weights):
        total = math.fsum(scalars)
        return [np.float64(weight / total) for weight in scalars]
    sums = np.zeros(num_elements)
    for weight in weights:
        sums += weight
    sums[sums == 0.0] = 1.0
    return [np.asarray(weight, np.float64) / sums for weight in weights]


def overall_weight(weight: Weight) -> float:
    """Weight of a contributor as a whole: the mean over its elements."""
    return ordered_sum(weight.astype(np.float64)) / max(len(weight), 1) if isinstance(weight, np.ndarray) else weight


def root_mean_square(values: Wide, weight: Weight) -> float:
    """Root mean square of the elements that a contributor brought; at most 3.5e38 squared fits into float64."""
    squares = values * values
    num_elements = len(values)
    if isinstance(weight, np.ndarray):
        squares *= weight > 0
        num_elements = int(np.count_nonzero(weight))
    return math.sqrt(ordered_sum(squares) / num_elements) if num_elements else 0.0


def ordered_sum(values: Wide) -> float:
    """Sum in a fixed order, whatever the machine's vector width: halves are added until one element is left."""
    length = len(values)
    while length > 1:
        half = (length + 1) // 2
        values[: length - half] += values[half:length]
        length = half
    return float(values[0]) if length else 0.0
