"""Codecs: how a vector's elements become bytes."""

from typing import Protocol

from collab.errors import BadPart
from collab.types import Vector

Buffer = bytes | bytearray | memoryview


class Codec(Protocol):
    """Encodes float32 elements. Deterministic: the same elements give the same bytes on every machine.

    Finite elements decode to finite elements. NaN and Inf do not vanish: in each block that has one, at least one
    element decodes to NaN or Inf, so that the receiver can refuse the part.
    """

    @property
    def name(self) -> str:
        """The word in the run file and on the wire."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the decoding is the input, bit for bit."""
        ...

    def encoded_bytes(self, num_elements: int) -> int:
        """Length of an encoding of ``num_elements`` elements."""
        ...

    def encode(self, values: Vector) -> Buffer:
        """Bytes of ``values``, contiguous float32; may share their memory, so encode again after changing them."""
        ...

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        """[num_elements] float32; may share the memory of ``data``, be read-only, and lie at an odd address.

        What a hostile sender makes of bytes of the right length is NaN, Inf or any finite number, or refused.

        Raises:
            BadPart: ``data`` has another length than ``num_elements`` needs, or is what no encoding is.
        """
        ...


def check_length(data: Buffer, expected_bytes: int) -> None:
    """Refuse an encoding of the wrong length.

    Raises:
        BadPart: the length differs.
    """
    if memoryview(data).nbytes != expected_bytes:
        raise BadPart("wrong_length", f"expected {expected_bytes} encoded bytes, got {memoryview(data).nbytes}")


def all_codecs() -> tuple[Codec, ...]:
    """One of each, from the most to the fewest bytes an element."""
    from collab.compression.bfloat16 import BFloat16
    from collab.compression.float16 import Float16
    from collab.compression.int4 import Int4
    from collab.compression.int8 import Int8
    from collab.compression.none import NoCompression
    from collab.compression.topk import TopK
    from collab.compression.topk_sign import TopKSign

    return (NoCompression(), Float16(), BFloat16(), Int8(), Int4(), TopK(), TopKSign())


def codec_by_name(name: str) -> Codec:
    """The codec that ``name`` means.

    Raises:
        ValueError: there is none of that name.
    """
    codecs = {codec.name: codec for codec in all_codecs()}
    if name not in codecs:
        raise ValueError(f"no codec is named {name!r}; there are {', '.join(codecs)}")
    return codecs[name]
