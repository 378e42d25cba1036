"""The integer codecs: blocks, scales, and the bytes they become."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from collab.compression.base import Codec, codec_by_name
from collab.types import Vector

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = arrays.arrays(np.float32, st.integers(0, 600), elements=FLOATS)
BLOCKWISE = pytest.mark.parametrize(
    ("name", "block_elements", "largest_multiple", "most_bytes"), [("int8", 256, 127, 1.03), ("int4", 32, 7, 0.57)]
)


def there_and_back(codec: Codec, values: Vector) -> Vector:
    return codec.decode(codec.encode(values), len(values))


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def block_magnitudes(values: Vector, block_elements: int) -> NDArray[np.float64]:
    """For each element the largest magnitude in its block."""
    blocks = [values[start : start + block_elements] for start in range(0, len(values), block_elements)]
    magnitudes = [np.full(len(block), np.max(np.abs(block)), np.float64) for block in blocks]
    return np.concatenate([np.zeros(0), *magnitudes])


@BLOCKWISE
@given(values=VECTORS)
def test_an_integer_is_wrong_by_at_most_half_a_step_of_its_own_block(
    name: str, block_elements: int, largest_multiple: int, most_bytes: float, values: Vector
) -> None:
    del most_bytes
    decoded = there_and_back(codec_by_name(name), values).astype(np.float64)
    half_step = block_magnitudes(values, block_elements) / (2 * largest_multiple)
    rounding = 1 + largest_multiple * 2.0**-22  # of x / scale in float32, in half steps
    counts_as_zero = 2.0 * largest_multiple * np.finfo(np.float32).smallest_normal
    assert np.all(np.abs(decoded - values) <= np.maximum(half_step * rounding, counts_as_zero))


@BLOCKWISE
def test_the_scales_of_a_part_cost_little(
    name: str, block_elements: int, largest_multiple: int, most_bytes: float
) -> None:
    del block_elements, largest_multiple
    assert codec_by_name(name).encoded_bytes(16_384) <= most_bytes * 16_384


@BLOCKWISE
def test_a_large_element_spoils_its_own_block_only(
    name: str, block_elements: int, largest_multiple: int, most_bytes: float
) -> None:
    del most_bytes
    values = np.full(2 * block_elements + 3, 1e-3, np.float32)
    values[block_elements] = 1e6
    decoded = there_and_back(codec_by_name(name), values)
    beside = np.r_[decoded[:block_elements], decoded[2 * block_elements :]]
    assert np.all(np.abs(beside - np.float32(1e-3)) <= 1e-3 / (2 * largest_multiple))
    assert not decoded[block_elements + 1 : 2 * block_elements].any()


@BLOCKWISE
@given(data=st.data())
def test_hostile_scales_decode_to_what_a_finiteness_check_catches_or_to_their_multiples(
    name: str, block_elements: int, largest_multiple: int, most_bytes: float, data: st.DataObject
) -> None:
    del largest_multiple, most_bytes
    codec = codec_by_name(name)
    hostile = data.draw(st.binary(min_size=codec.encoded_bytes(40), max_size=codec.encoded_bytes(40)))
    decoded = codec.decode(hostile, 40)
    scale_bytes = 4 if name == "int8" else 2
    for block in range(-(-40 // block_elements)):
        scale = np.frombuffer(bytes(4 - scale_bytes) + hostile[scale_bytes * block :][:scale_bytes], "<f4")[0]
        part = decoded[block * block_elements : (block + 1) * block_elements]
        limit = 128 * abs(float(scale)) if np.isfinite(scale) else 0.0
        assert np.all(~np.isfinite(part) | (np.abs(part.astype(np.float64)) <= limit))


def test_the_bytes_of_the_integer_codecs_are_these() -> None:
    values = vector(7, -3.4, 0.6)
    assert bytes(codec_by_name("int4").encode(values)) == bytes([0x80, 0x3F, 0x17, 0x0D])
    values = vector(127, -3.4, 0.6)
    assert bytes(codec_by_name("int8").encode(values)) == bytes([0, 0, 0x80, 0x3F, 127, 0xFD, 1])
