"""Half precision: 2 bytes an element, 11 bits of mantissa."""

import numpy as np

from collab.compression.base import Buffer
from collab.compression.none import check_length
from collab.types import Vector

LARGEST = 65504.0
"""Largest finite half; what is beyond saturates, since an infinity would poison the mean."""


class Float16:
    """IEEE half precision, round to nearest, saturating."""

    name = "float16"

    def encoded_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, values: Vector) -> Buffer:
        return np.clip(values, -LARGEST, LARGEST).astype("<f2").data.cast("B")

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
