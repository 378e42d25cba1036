"""The identity codec: little-endian float32."""

import numpy as np

from collab.compression.base import Buffer
from collab.errors import BadPart
from collab.types import Vector


class NoCompression:
    """4 bytes an element, exact."""

    name = "none"

    def encoded_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Vector) -> Buffer:
        return np.ascontiguousarray(values, dtype="<f4").data.cast("B")

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        check_length(data, self.encoded_bytes(num_elements))
        return np.frombuffer(data, dtype="<f4").astype(np.float32)


def check_length(data: Buffer, expected_bytes: int) -> None:
    """Refuse an encoding of the wrong length.

    Raises:
        BadPart: the length differs.
    """
    if memoryview(data).nbytes != expected_bytes:
        raise BadPart("wrong_length", f"expected {expected_bytes} encoded bytes, got {memoryview(data).nbytes}")
