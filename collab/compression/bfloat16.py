"""The upper half of a float32: 2 bytes an element, 8 significant bits, the whole range."""

import numpy as np

from collab.compression.base import Buffer, check_length
from collab.compression.saturation import saturated
from collab.types import Vector

LARGEST = (2 - 2.0**-7) * 2.0**127
"""Largest finite bfloat16, 3.39e38."""
NOT_A_NUMBER = 0x7FC0
UPPER = np.uint32(16)


class BFloat16:
    """Brain floating point, round half to even, saturating."""

    name = "bfloat16"
    is_exact = False

    def encoded_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, values: Vector) -> Buffer:
        values, not_finite = saturated(values, LARGEST)
        bits = values.view(np.uint32)
        rounded = bits >> UPPER
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)  # a lower half above 0x8000 carries; one of 0x8000 does beside an odd upper half
        rounded += bits
        rounded >>= UPPER
        upper_halves = rounded.astype("<u2")
        if not_finite is not None:
            upper_halves[not_finite] = NOT_A_NUMBER
        return upper_halves.data.cast("B")

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        bits <<= UPPER
        return bits.view(np.float32)
