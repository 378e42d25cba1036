"""Codecs: how a vector's elements become bytes."""

from typing import Protocol

from collab.types import Vector

Buffer = bytes | bytearray | memoryview


class Codec(Protocol):
    """Encodes float32 elements. Deterministic: the same elements give the same bytes on every machine."""

    @property
    def name(self) -> str:
        """The word in the run file and on the wire."""
        ...

    def encoded_bytes(self, num_elements: int) -> int:
        """Length of an encoding of ``num_elements`` elements."""
        ...

    def encode(self, values: Vector) -> Buffer:
        """Bytes of ``values``, contiguous float32; may share their memory, so encode again after changing them."""
        ...

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        """[num_elements] float32, a new array.

        Raises:
            BadPart: ``data`` has another length than ``num_elements`` needs.
        """
        ...


def codec_by_name(name: str) -> Codec:
    """The codec that ``name`` means.

    Raises:
        ValueError: there is none of that name.
    """
    from collab.compression.float16 import Float16
    from collab.compression.none import NoCompression

    codecs: tuple[Codec, ...] = (NoCompression(), Float16())
    for codec in codecs:
        if codec.name == name:
            return codec
    raise ValueError(f"no codec is named {name!r}")
