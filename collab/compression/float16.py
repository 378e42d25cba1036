"""Half precision: 2 bytes an element, 11 significant bits."""

from functools import cache

import numpy as np

from collab.compression.base import Buffer, check_length
from collab.compression.saturation import saturated
from collab.types import Vector

LARGEST = 65504.0
"""Largest finite half."""

EXPONENT_BITS = np.uint32(0x7F80_0000)
SMALLEST_NORMAL = np.uint32(113 << 23)
"""2^-14, the smallest half with 11 significant bits, as the bits of a float32."""
THIRTEEN_OCTAVES = np.uint32(13 << 23)
"""A float32 has 13 bits more than a half."""
NOT_A_NUMBER = 0x7E00


class Float16:
    """IEEE half precision, round half to even, saturating."""

    name = "float16"
    is_exact = False

    def encoded_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, values: Vector) -> Buffer:
        """As NumPy's conversion does, which takes 25 times as long for the subnormal halves that gradients often are.

        Let 2^e be the power of two at or below |x|, and at least 2^-14. Then |x| + 2^(e+13) is rounded by the
        processor to a multiple of 2^(e-10), the half's unit in the last place, and its low bits count those units.
        """
        values, not_finite = saturated(values, LARGEST)
        bits = values.view(np.uint32)
        power = bits & EXPONENT_BITS
        np.maximum(power, SMALLEST_NORMAL, out=power)
        rounded = np.abs(values)
        rounded += (power + THIRTEEN_OCTAVES).view(np.float32)
        power -= SMALLEST_NORMAL
        power >>= np.uint32(13)
        power += rounded.view(np.uint32)
        halves = power.astype("<u2")  # the low 16 bits
        halves |= (bits >> np.uint32(16)).astype("<u2") & np.uint16(0x8000)
        if not_finite is not None:
            halves[not_finite] = NOT_A_NUMBER
        return halves.data.cast("B")

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        return _float_of_half().take(np.frombuffer(data, dtype="<u2"))


@cache
def _float_of_half() -> Vector:
    """[65536] float32, 256 KiB: the value of every half; half the time of a conversion."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
