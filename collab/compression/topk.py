"""The largest elements of each block and no others: 0.055 bytes an element, a seventy-third of float32's."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.compression.base import Buffer, check_length
from collab.compression.bfloat16 import BFloat16
from collab.errors import BadPart
from collab.types import Vector

BLOCK_ELEMENTS = 4096
"""What 12 bits tell apart."""
INDEX_BITS = np.uint32(12)
LARGEST_INDEX = np.uint32(BLOCK_ELEMENTS - 1)
KEPT = 64
"""Of each block; one that is shorter has as many, if it can."""
VALUE_BYTES = 2
MAGNITUDE = np.uint16(0x7FFF)
VALUES = BFloat16()
"""Half precision would lose what lies below 6e-8, as gradients of large models and displacements by sample do."""

Indices: TypeAlias = NDArray[np.uint16]
"""[num_kept] places of elements within their blocks, ascending in each."""


class TopK:
    """The 64 largest magnitudes of 4096 neighbours, as bfloat16; all others count as zero.

    Of elements that are equally large in bfloat16 the first ones are kept. What is left out has to come some other
    time: without error feedback small elements would never be sent.

    Bytes: the values of all blocks as upper halves of little-endian float32, then the indices, 12 bits each, two in
    three bytes, the lower bits of the first one first.
    Source: SparseLoCo (2025) for blocks and indices; values are not quantised further here.
    """

    name = "topk"
    is_exact = False

    def encoded_bytes(self, num_elements: int) -> int:
        count = num_kept(num_elements)
        return VALUE_BYTES * count + (3 * count + 1) // 2

    def encode(self, values: Vector) -> Buffer:
        halves = np.frombuffer(VALUES.encode(values), "<u2")
        kept = _largest(halves)
        data = np.empty(self.encoded_bytes(len(values)), np.uint8)
        values_end = VALUE_BYTES * len(kept)
        data[:values_end].view("<u2")[:] = halves[kept + _block_starts(len(values))]
        data[values_end:] = _packed(kept)
        return data.data

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        """See ``Codec``.

        Raises:
            BadPart: ``data`` has another length, or indices that no encoding has.
        """
        check_length(data, self.encoded_bytes(num_elements))
        count = num_kept(num_elements)
        values_end = VALUE_BYTES * count
        kept = _unpacked(np.frombuffer(data, np.uint8, offset=values_end), count)
        starts = _block_starts(num_elements)
        places = kept + starts
        if count and (places[-1] >= num_elements or not (places[1:] > places[:-1]).all()):
            raise BadPart("bad_indices", f"indices of {count} of {num_elements} elements that no encoder writes")
        decoded = np.zeros(num_elements, np.float32)
        decoded[places] = VALUES.decode(memoryview(data)[:values_end], count)
        return decoded


def num_kept(num_elements: int) -> int:
    """Elements of a vector that are sent."""
    blocks, rest = divmod(num_elements, BLOCK_ELEMENTS)
    return blocks * KEPT + min(rest, KEPT)


def _block_starts(num_elements: int) -> NDArray[np.int64]:
    """[num_kept] where the block of each kept element begins."""
    starts = np.arange(0, num_elements, BLOCK_ELEMENTS, dtype=np.int64)
    return np.repeat(starts, KEPT)[: num_kept(num_elements)]


def _largest(halves: NDArray[np.uint16]) -> Indices:
    """Indices of the largest magnitudes of each block.

    Each element's key is its magnitude and, below that, how far it is from the block's end: all differ, so that every
    machine chooses the same ones however it sorts.
    """
    whole = len(halves) // BLOCK_ELEMENTS * BLOCK_ELEMENTS
    kept = []
    for blocks in (halves[:whole].reshape(-1, BLOCK_ELEMENTS), halves[whole:].reshape(1, -1)):
        length = blocks.shape[1]
        count = min(length, KEPT)
        if not blocks.size:
            continue
        keys = (blocks & MAGNITUDE).astype(np.uint32) << INDEX_BITS
        keys |= LARGEST_INDEX - np.arange(length, dtype=np.uint32)
        largest = np.partition(keys, length - count, axis=1)[:, length - count :]
        kept.append(np.sort(LARGEST_INDEX - (largest & LARGEST_INDEX), axis=1).ravel())
    return np.concatenate(kept).astype(np.uint16) if kept else np.zeros(0, np.uint16)


def _packed(kept: Indices) -> NDArray[np.uint8]:
    pairs = np.zeros((-(-len(kept) // 2), 2), np.uint16)
    pairs.reshape(-1)[: len(kept)] = kept
    first, second = pairs[:, 0], pairs[:, 1]
    triples = np.empty((len(pairs), 3), np.uint8)
    triples[:, 0] = first & 0xFF
    triples[:, 1] = (first >> 8) | ((second & 0xF) << 4)
    triples[:, 2] = second >> 4
    return triples.reshape(-1)[: (3 * len(kept) + 1) // 2]


def _unpacked(data: NDArray[np.uint8], count: int) -> Indices:
    padded = np.zeros(-(-count // 2) * 3, np.uint16)
    padded[: len(data)] = data
    triples = padded.reshape(-1, 3)
    kept = np.empty((len(triples), 2), np.uint16)
    kept[:, 0] = triples[:, 0] | ((triples[:, 1] & 0xF) << 8)
    kept[:, 1] = (triples[:, 1] >> 4) | (triples[:, 2] << 4)
    return kept.reshape(-1)[:count]
