"""The identity codec: little-endian float32."""

import numpy as np

from collab.compression.base import Buffer, check_length
from collab.types import Vector


class NoCompression:
    """4 bytes an element, exact. Copies nothing: an encoding is the vector's memory, a decoding the message's."""

    name = "none"
    is_exact = True

    def encoded_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Vector) -> Buffer:
        return np.ascontiguousarray(values, dtype="<f4").data.cast("B")

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
