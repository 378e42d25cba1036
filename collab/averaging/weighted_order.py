"""Order statistics of contributions, element by element and by weight: pure, and the same bytes on every machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from collab.types import Vector

BLOCK_ELEMENTS = 32_768
"""Sorted at a time, of all contributors together: 256 KiB, which stay in the cache of a core."""
SHORTEST_BLOCK = 2048
"""Elements of each contributor: below that the cost of calls counts for more than the cache."""
_STANDS_FOR_ZERO = 2.0**-200
"""Below every float32 above zero, but no subnormal float64: threads that flush those to zero sort alike."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements ``start .. stop - 1`` of k contributors, each element's values in ascending order.

    The memory of its arrays is that of the next block, too.
    """

    start: int
    stop: int
    values: Vector
    """[k, stop - start] float32; of equal values the order is always the same."""
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
    num_rows, num_elements = len(values), len(values[0])
    length = min(max(BLOCK_ELEMENTS // num_rows, SHORTEST_BLOCK), num_elements)
    has_vectors = any(isinstance(weight, np.ndarray) for weight in weights)
    by_contributor = np.zeros(num_rows) if has_vectors else np.array(weights, np.float64)
    keys, weight_until = np.empty((num_rows, length)), np.empty((num_rows, length))
    ordered, order = np.empty((num_rows, length), np.float32), np.empty((num_rows, length), np.intp)
    for start in range(0, num_elements, length):
        stop = min(start + length, num_elements)
        if stop - start < length:
            keys, weight_until = keys[:, : stop - start], weight_until[:, : stop - start]
            ordered, order = ordered[:, : stop - start], order[:, : stop - start]
        for key, value in zip(keys, values, strict=True):
            key[:] = value[start:stop]
        _sort(keys, order)
        ordered[:] = keys
        if has_vectors:
            pieces = [w[start:stop] if isinstance(w, np.ndarray) else np.full(stop - start, w) for w in weights]
            weight_until[:] = np.take_along_axis(np.stack(pieces), order, axis=0)
        else:
            weight_until[:] = by_contributor.take(order)
        for row in range(1, num_rows):
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


def _sort(keys: NDArray[np.float64], order: NDArray[np.intp]) -> None:
    """Sort the columns of ``keys`` [k, m], which are float32 values, in place.

    A float32 leaves 29 bits of a float64's mantissa free. They take the contributor's index, which breaks ties, travels
    with the value, and is gone when it is rounded back. A network of minima and maxima sorts whole rows at a time, five
    times as fast as ``argsort`` along the columns.

    Args:
        keys: become the values in order, with something in the bits that float32 does not have.
        order: [k, m], becomes whose each of them is.
    """
    keys[keys == 0.0] = _STANDS_FOR_ZERO
    bits = keys.view(np.uint64)
    bits |= np.arange(len(keys), dtype=np.uint64)[:, np.newaxis]
    smaller = np.empty(keys.shape[1])
    for low, high in _comparators(len(keys)):
        np.minimum(keys[low], keys[high], out=smaller)
        np.maximum(keys[low], keys[high], out=keys[high])
        keys[low] = smaller
    np.bitwise_and(bits, np.uint64((1 << len(keys).bit_length()) - 1), out=order, casting="unsafe")


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
