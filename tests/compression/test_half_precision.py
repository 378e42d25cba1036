"""The 16-bit codecs: how they round, and where they saturate."""

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from collab.compression.bfloat16 import BFloat16
from collab.compression.float16 import Float16
from collab.types import Vector

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(values=arrays.arrays(np.float32, 50, elements=st.floats(-65504, 65504, width=32)))
def test_half_precision_rounds_by_at_most_one_part_in_2048(values: Vector) -> None:
    decoded = Float16().decode(Float16().encode(values), len(values)).astype(np.float64)
    smallest_step = 2.0**-24
    assert np.all(np.abs(decoded - values) <= np.maximum(np.abs(values) / 2048, smallest_step / 2))


def test_half_precision_rounds_as_numpy_does_at_and_beside_every_half_and_every_midpoint() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    midpoints = (halves[1:] + halves[:-1]) / 2
    points = np.concatenate([halves, midpoints])
    values = np.concatenate([points, np.nextafter(points, np.float32(1e9)), np.nextafter(points, np.float32(-1))])
    for signed in (values, -values):
        expected = np.clip(signed, -65504, 65504).astype(np.float16)
        assert bytes(Float16().encode(signed)) == expected.astype("<f2").tobytes()


def test_every_half_decodes_as_numpy_says() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    decoded = Float16().decode(halves.astype("<f2").tobytes(), 1 << 16)
    assert np.array_equal(decoded, halves.astype(np.float32), equal_nan=True)


def test_half_precision_saturates_where_a_conversion_would_give_infinity() -> None:
    values = np.array([65504, 65519.99, 65520, 1e30, -1e30, 3.4e38, -65520], np.float32)
    expected = np.array([65504, 65504, 65504, 65504, -65504, 65504, -65504], np.float32)
    assert np.array_equal(Float16().decode(Float16().encode(values), len(values)), expected)


@given(values=arrays.arrays(np.float32, 50, elements=FLOATS))
def test_bfloat16_rounds_by_at_most_one_part_in_256(values: Vector) -> None:
    decoded = BFloat16().decode(BFloat16().encode(values), len(values)).astype(np.float64)
    smallest_step = 2.0**-133
    assert np.all(np.abs(decoded - values) <= np.maximum(np.abs(values.astype(np.float64)) / 256, smallest_step / 2))


def test_bfloat16_rounds_halves_to_even_and_saturates() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x7F7F8000, 0xFF7FFFFF], np.uint32)
    expected = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0x3F810000, 0x7F7F0000, 0xFF7F0000], np.uint32)
    decoded = BFloat16().decode(BFloat16().encode(bits.view(np.float32)), len(bits))
    assert np.array_equal(decoded.view(np.uint32), expected)
