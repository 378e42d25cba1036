"""Codecs: what survives, what saturates, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from collab.compression.base import Codec, codec_by_name
from collab.compression.float16 import LARGEST
from collab.errors import BadPart
from collab.types import Vector

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = arrays.arrays(np.float32, st.integers(0, 200), elements=FLOATS)
CODECS = pytest.mark.parametrize("codec", [codec_by_name("none"), codec_by_name("float16")], ids=lambda c: str(c.name))


@given(values=VECTORS)
def test_without_compression_every_bit_survives(values: Vector) -> None:
    codec = codec_by_name("none")
    decoded = codec.decode(codec.encode(values), len(values))
    assert decoded.tobytes() == values.tobytes()
    assert decoded.dtype == np.float32


@given(values=VECTORS)
def test_half_precision_rounds_by_at_most_one_part_in_2048(values: Vector) -> None:
    codec = codec_by_name("float16")
    values = np.clip(values, -LARGEST, LARGEST)
    decoded = codec.decode(codec.encode(values), len(values)).astype(np.float64)
    smallest_step = 2.0**-24
    assert np.all(np.abs(decoded - values) <= np.maximum(np.abs(values) / 2048, smallest_step / 2))


def test_half_precision_saturates_where_numpy_would_give_infinity() -> None:
    values = np.array([65504, 65519.99, 65520, 1e30, -1e30, 3.4e38, -65520], np.float32)
    decoded = codec_by_name("float16").decode(codec_by_name("float16").encode(values), len(values))
    assert np.array_equal(decoded, np.array([65504, 65504, 65504, 65504, -65504, 65504, -65504], np.float32))


@CODECS
def test_not_a_number_survives_the_codec_so_that_the_receiver_can_refuse_it(codec: Codec) -> None:
    decoded = codec.decode(codec.encode(np.array([1, np.nan], np.float32)), 2)
    assert decoded[0] == 1
    assert np.isnan(decoded[1])


@CODECS
@given(values=VECTORS)
def test_an_encoding_has_the_length_that_was_promised(codec: Codec, values: Vector) -> None:
    assert memoryview(codec.encode(values)).nbytes == codec.encoded_bytes(len(values))


@CODECS
@given(values=VECTORS)
def test_the_same_elements_give_the_same_bytes_wherever_they_lie_in_memory(codec: Codec, values: Vector) -> None:
    strided = np.zeros((len(values), 3), np.float32)
    strided[:, 1] = values
    assert bytes(codec.encode(values)) == bytes(codec.encode(values.copy()))
    assert bytes(codec.encode(values)) == bytes(codec.encode(np.ascontiguousarray(strided[:, 1])))


@CODECS
@given(values=VECTORS)
def test_encoding_a_second_time_changes_nothing(codec: Codec, values: Vector) -> None:
    once = codec.decode(codec.encode(values), len(values))
    twice = codec.decode(codec.encode(once), len(values))
    assert once.tobytes() == twice.tobytes()


@CODECS
@given(num_elements=st.integers(0, 50), num_bytes=st.integers(0, 250))
def test_an_encoding_of_another_length_is_a_bad_part(codec: Codec, num_elements: int, num_bytes: int) -> None:
    data = bytes(num_bytes)
    if num_bytes == codec.encoded_bytes(num_elements):
        assert not codec.decode(data, num_elements).any()
        return
    with pytest.raises(BadPart) as caught:
        codec.decode(data, num_elements)
    assert caught.value.reason == "wrong_length"


@CODECS
def test_what_was_decoded_does_not_share_memory_with_the_message(codec: Codec) -> None:
    data = bytearray(codec.encode(np.ones(4, np.float32)))
    decoded = codec.decode(data, 4)
    data[:] = bytes(len(data))
    assert np.array_equal(decoded, np.ones(4, np.float32))
    decoded[0] = 7  # and it may be written to


@CODECS
def test_a_window_into_a_larger_message_decodes_like_a_copy_of_it(codec: Codec) -> None:
    values = np.arange(5, dtype=np.float32)
    message = b"abc" + bytes(codec.encode(values))
    assert np.array_equal(codec.decode(memoryview(message)[3:], 5), values)


def test_a_codec_that_nobody_knows_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        codec_by_name("zip")
