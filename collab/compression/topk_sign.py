"""More of the largest elements of each block, in six and a fifth bits each: 0.083 bytes an element."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.compression.base import Buffer, check_length
from collab.compression.bfloat16 import NOT_A_NUMBER, BFloat16
from collab.compression.blockwise import num_blocks
from collab.compression.topk import BLOCK_ELEMENTS, INDEX_BITS, LARGEST_INDEX, MAGNITUDE
from collab.errors import BadPart
from collab.types import Vector

KEPT = 440
"""Of a block at most: as many as are a thousand times fewer bytes than half precision after each of 50 steps."""
LOW_BITS = 3
"""Of an index: the bits that are not in unary. The largest power of two below 4096 / 440 makes the code shortest."""
NUM_HIGHS = BLOCK_ELEMENTS >> LOW_BITS
UNARY_BITS = NUM_HIGHS + KEPT
LEVEL_BYTES, UNARY_BYTES, LOW_BYTES, SIGN_BYTES = 2, UNARY_BITS // 8, LOW_BITS * KEPT // 8, KEPT // 8
BLOCK_BYTES = LEVEL_BYTES + UNARY_BYTES + LOW_BYTES + SIGN_BYTES
LEVEL_EIGHTH = 3
"""What is kept of a block is about a threshold and an exponential tail above it. The level of least squared error is
its mean, which a share of 1/e exceeds; an order statistic is the same on every machine, as a sum is not."""
SMALLEST_NORMAL = np.uint16(0x0080)
"""Of bfloat16; what is smaller counts as zero, since some processes flush it."""
INFINITY = np.uint16(0x7F80)
UNUSED = np.uint16(0xFFFF)
HALVES = BFloat16()

Bits: TypeAlias = NDArray[np.uint16]
Bytes: TypeAlias = NDArray[np.uint8]


class TopKSign:
    """The 440 largest magnitudes of 4096 neighbours, each as a sign and one level of all; all others count as zero.

    Of those that are kept in a block, the level is the magnitude that three eighths of them exceed, as bfloat16. Zeros
    are never kept. What is left out and what rounding loses has to come some other time: this codec is nothing without
    error feedback.

    Bytes of a block, 341 also where it is short: the level as the upper half of a little-endian float32; the indices of
    its elements, which ascend, as Elias and Fano write them: for the i-th one (from 0) bit (index >> 3) + i of 952 is
    set, and then come the three lowest bits of each; a bit of each that says minus. The lowest bit of a byte is the
    first one. What a block does not use is zero.
    Source: SparseLoCo (2025) for blocks, with two bits a value; signSGD with error feedback (Karimireddy et al., 2019)
    for signs; Elias (1974) and Fano (1971) for the indices, which would take 12 bits each without them and take 5.2.
    """

    name = "topk_sign"
    is_exact = False

    def encoded_bytes(self, num_elements: int) -> int:
        return BLOCK_BYTES * num_blocks(num_elements, BLOCK_ELEMENTS)

    def encode(self, values: Vector) -> Buffer:
        halves = np.frombuffer(HALVES.encode(values), "<u2")
        magnitudes, indices = _ranked(halves)
        level = _level(magnitudes)
        starts = BLOCK_ELEMENTS * np.arange(len(indices))[:, None]
        is_negative = (halves[np.minimum(starts + indices, len(halves) - 1)] > MAGNITUDE) & (level < INFINITY)
        slots = indices << np.uint16(1) | is_negative.astype(np.uint16)
        slots[magnitudes == 0] = UNUSED
        slots.sort(axis=1)
        is_used = slots != UNUSED
        slots[~is_used] = 0
        unary = np.zeros((len(slots), UNARY_BITS), np.uint8)
        block, rank = np.nonzero(is_used)
        unary[block, (slots[is_used] >> np.uint16(1 + LOW_BITS)) + rank] = 1
        parts = (
            level.astype("<u2").view(np.uint8),
            np.packbits(unary, axis=1, bitorder="little"),
            _packed(slots >> np.uint16(1), LOW_BITS),
            _packed(slots, 1),
        )
        return np.concatenate(parts, axis=1).reshape(-1).data

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        """See ``Codec``.

        Raises:
            BadPart: ``data`` has another length, or indices that no encoding has.
        """
        check_length(data, self.encoded_bytes(num_elements))
        blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK_BYTES)
        level_bytes, unary, lows, signs = np.split(
            blocks, np.cumsum([LEVEL_BYTES, UNARY_BYTES, LOW_BYTES]).tolist(), axis=1
        )
        block, at = np.nonzero(np.unpackbits(unary, axis=1, bitorder="little"))
        counts = np.bincount(block, minlength=len(blocks))
        rank = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        low, sign = _unpacked(lows, LOW_BITS), _unpacked(signs, 1)
        is_unused = np.arange(KEPT) >= counts[:, None]
        if counts.max(initial=0) > KEPT or low[is_unused].any() or sign[is_unused].any():
            raise BadPart("bad_indices", f"more or fewer than the {len(block)} elements that are sent")
        highs = at - rank
        places = BLOCK_ELEMENTS * block + (highs << LOW_BITS) + low[block, rank]
        is_beyond = highs.max(initial=0) >= NUM_HIGHS or places.max(initial=-1) >= num_elements
        if is_beyond or not (places[1:] > places[:-1]).all():
            raise BadPart("bad_indices", f"indices of {len(block)} of {num_elements} elements that no encoder writes")
        level = np.ascontiguousarray(level_bytes).view("<u2")[block, 0].astype(np.uint32)
        decoded = np.zeros(num_elements, np.uint32)
        decoded[places] = (level | sign[block, rank].astype(np.uint32) << np.uint32(15)) << np.uint32(16)
        return decoded.view(np.float32)


def _ranked(halves: Bits) -> tuple[Bits, Bits]:
    """The largest magnitudes of each block, and where they are in it.

    Each element's key is its magnitude and, below that, how far it is from the block's end: all differ, so that every
    machine chooses the same ones however it sorts.

    Returns:
        [blocks, KEPT] each, in falling order; magnitude 0: none is there.
    """
    blocks = num_blocks(len(halves), BLOCK_ELEMENTS)
    keys = np.zeros(blocks * BLOCK_ELEMENTS, np.uint32)
    magnitudes = halves & MAGNITUDE
    keys[: len(halves)] = np.where(magnitudes < SMALLEST_NORMAL, np.uint16(0), magnitudes)
    keys = keys.reshape(blocks, BLOCK_ELEMENTS) << INDEX_BITS
    keys |= LARGEST_INDEX - np.arange(BLOCK_ELEMENTS, dtype=np.uint32)
    ranked = np.partition(keys, BLOCK_ELEMENTS - KEPT, axis=1)[:, BLOCK_ELEMENTS - KEPT :]
    ranked = np.sort(ranked, axis=1)[:, ::-1]
    return (ranked >> INDEX_BITS).astype(np.uint16), (LARGEST_INDEX - (ranked & LARGEST_INDEX)).astype(np.uint16)


def _level(magnitudes: Bits) -> Bits:
    """[blocks, 1] of what is kept of each block; NaN where it has NaN or Inf."""
    ranks = np.count_nonzero(magnitudes, axis=1, keepdims=True) * LEVEL_EIGHTH // 8
    level: Bits = np.take_along_axis(magnitudes, ranks, axis=1)
    level[magnitudes[:, 0] >= INFINITY] = NOT_A_NUMBER
    return level


def _packed(values: Bits, width: int) -> Bytes:
    """The lowest ``width`` bits of each, one row after the other."""
    bits = (values[:, :, None] >> np.arange(width, dtype=np.uint16)) & np.uint16(1)
    return np.packbits(bits.reshape(len(values), KEPT * width).astype(np.uint8), axis=1, bitorder="little")


def _unpacked(data: Bytes, width: int) -> Bytes:
    """[rows, KEPT] of what is packed."""
    bits = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), KEPT, width)
    unpacked: Bytes = np.bitwise_or.reduce(bits << np.arange(width, dtype=np.uint8), axis=2)
    return unpacked
