"""Order statistics of contributions, element by element and by weight: pure, and the same bytes on every machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from collab.types import Vector

BLOCK_ELEMENTS = 8192
"""Sorted at a time: 64 KiB for each contributor, which stays in the cache for the dozen of a usual group."""
_STANDS_FOR_ZERO = 2.0**-200
"""Below every float32 above zero, but no subnormal float64: threads that flush those to zero sort alike."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements ``start .. stop - 1`` of k contributors, each element's values in ascending order."""

    start: int
    stop: int
    values: Vector
    """[k, stop - start] float32; of equal values the earlier contributor's is first."""
    weight_until: NDArray[np.float64]
    """[k, stop - start]: weight of this value and the smaller ones."""

    @property
    def weight(self) -> NDArray[np.float64]:
        """[stop - start]: of all contributors together."""
        total: NDArray[np.float64] = self.weight_until[-1]
        return total


def ordered_blocks(values: Sequence[Vector], weights: Sequence[Vector | float]) -> Iterator[Block]:
    """Sort k contributions [n] element by element, some thousand elements at a time.

    Args:
        weights: a number or [n] for each contributor, at least 0.

    Complexity: O(n k log^2 k) operations without a branch; memory for one block.
    """
    num_elements = len(values[0])
    by_contributor = None if any(isinstance(w, np.ndarray) for w in weights) else np.array(weights, np.float64)
    for start in range(0, num_elements, BLOCK_ELEMENTS):
        stop = min(start + BLOCK_ELEMENTS, num_elements)
        ordered, order = _sort([one[start:stop] for one in values])
        if by_contributor is None:
            pieces = [w[start:stop] if isinstance(w, np.ndarray) else np.full(stop - start, w) for w in weights]
            weight_until = np.take_along_axis(np.stack(pieces).astype(np.float64), order, axis=0)
        else:
            weight_until = by_contributor[order]
        for row in range(1, len(values)):
            weight_until[row] += weight_until[row - 1]
        yield Block(start, stop, ordered, weight_until)


def lower_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The smallest value such that it and the smaller ones have at least half of the weight.

    At exactly half and half it is the smaller value, so that half of the weight cannot raise it at will.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    half = sum(weights[index] for index in order) / 2
    reached = 0.0
    for index in order:
        reached += weights[index]
        if reached >= half:
            return values[index]
    return values[order[-1]]


def _sort(rows: Sequence[Vector]) -> tuple[Vector, NDArray[np.intp]]:
    """Sort k rows [m] column by column: [k, m] values, and whose each of them is.

    A float32 leaves 29 bits of a float64's mantissa free. They take the contributor's index, which breaks ties, travels
    with the value, and is gone after rounding back. A network of minima and maxima sorts whole rows at a time, five
    times as fast as ``argsort`` along the columns.
    """
    keys = np.stack(rows).astype(np.float64)
    keys[keys == 0.0] = _STANDS_FOR_ZERO
    bits = keys.view(np.uint64)
    bits |= np.arange(len(rows), dtype=np.uint64)[:, np.newaxis]
    smaller = np.empty(keys.shape[1])
    for low, high in _comparators(len(rows)):
        np.minimum(keys[low], keys[high], out=smaller)
        np.maximum(keys[low], keys[high], out=keys[high])
        keys[low] = smaller
    index_bits = np.uint64((1 << len(rows).bit_length()) - 1)
    return keys.astype(np.float32), (bits & index_bits).astype(np.intp)


@cache
def _comparators(num_rows: int) -> tuple[tuple[int, int], ...]:
    """Pairs of rows to compare, in order: Batcher's odd-even merge sort (1968), for any number of rows."""
    pairs: list[tuple[int, int]] = []
    merged = 1
    while merged < num_rows:
        step = merged
        while step >= 1:
            for first in range(step % merged, num_rows - step, 2 * step):
                lows = range(first, min(first + step, num_rows - step))
                pairs += [(i, i + step) for i in lows if i // (2 * merged) == (i + step) // (2 * merged)]
            step //= 2
        merged *= 2
    return tuple(pairs)
