"""Blockwise 8-bit integers: 1.016 bytes an element."""

import numpy as np

from collab.compression.base import Buffer, check_length
from collab.compression.blockwise import block_scales, dequantise, num_blocks, quantised
from collab.types import Vector

BLOCK_ELEMENTS = 256
LARGEST_MULTIPLE = 127
SCALE_SIGNIFICANT_BITS = 17
"""With the 7 bits of a multiple 24, what a float32 holds."""
SCALE_BYTES = 4


class Int8:
    """Multiples of -127 to 127 of a scale per 256 elements; wrong by at most 1/254 of the block's largest magnitude.

    Bytes: the scales as little-endian float32, then the multiples.
    """

    name = "int8"
    is_exact = False

    def encoded_bytes(self, num_elements: int) -> int:
        return SCALE_BYTES * num_blocks(num_elements, BLOCK_ELEMENTS) + num_elements

    def encode(self, values: Vector) -> Buffer:
        scales = block_scales(values, BLOCK_ELEMENTS, LARGEST_MULTIPLE, significant_bits=SCALE_SIGNIFICANT_BITS)
        scales_end = SCALE_BYTES * len(scales)
        data = np.empty(scales_end + len(values), np.uint8)
        data[:scales_end].view("<f4")[:] = scales
        data[scales_end:].view(np.int8)[:] = quantised(values, scales, BLOCK_ELEMENTS)
        return data.data

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        count = num_blocks(num_elements, BLOCK_ELEMENTS)
        scales = np.frombuffer(data, "<f4", count)
        multiples = np.frombuffer(data, np.int8, offset=SCALE_BYTES * count)
        return dequantise(multiples.astype(np.float32), scales, BLOCK_ELEMENTS)
