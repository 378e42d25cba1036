"""The contract of every codec: what survives, what is bounded, and what is refused."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from collab.compression.base import Codec, all_codecs, codec_by_name
from collab.errors import BadPart
from collab.types import Vector

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = arrays.arrays(np.float32, st.integers(0, 600), elements=FLOATS)
BITS = arrays.arrays(np.uint32, st.integers(0, 600), elements=st.integers(0, 2**32 - 1))
ANY_CODEC = pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: str(codec.name))
LARGEST_FLOAT = float(np.finfo(np.float32).max)


def there_and_back(codec: Codec, values: Vector) -> Vector:
    return codec.decode(codec.encode(values), len(values))


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


# -- every codec -----------------------------------------------------------------------------------------------------


@ANY_CODEC
@given(values=VECTORS)
def test_an_encoding_has_the_length_that_was_promised(codec: Codec, values: Vector) -> None:
    assert memoryview(codec.encode(values)).nbytes == codec.encoded_bytes(len(values))


@ANY_CODEC
@given(values=VECTORS)
def test_a_decoding_has_as_many_float32_elements_as_went_in_and_they_are_finite(codec: Codec, values: Vector) -> None:
    decoded = there_and_back(codec, values)
    assert decoded.dtype == np.float32
    assert decoded.shape == values.shape
    assert np.isfinite(decoded).all()


@ANY_CODEC
@given(values=VECTORS)
def test_encoding_neither_changes_its_input_nor_depends_on_its_place_in_memory(codec: Codec, values: Vector) -> None:
    original = values.copy()
    first = bytes(codec.encode(values))
    shifted = np.concatenate([np.zeros(1, np.float32), values])[1:]
    assert bytes(codec.encode(shifted)) == first
    values.flags.writeable = False
    assert bytes(codec.encode(values)) == first
    assert values.tobytes() == original.tobytes()


@ANY_CODEC
@given(values=VECTORS)
def test_encoding_what_was_decoded_gives_the_same_bytes_again(codec: Codec, values: Vector) -> None:
    once = bytes(codec.encode(values))
    assert bytes(codec.encode(codec.decode(once, len(values)))) == once


@ANY_CODEC
def test_encoding_what_was_decoded_gives_the_same_bytes_again_at_every_magnitude(codec: Codec) -> None:
    generator = np.random.default_rng(7)
    for exponent in range(-149, 128):
        values = np.ldexp(generator.uniform(-1, 1, 96), exponent).astype(np.float32)
        once = bytes(codec.encode(values))
        assert bytes(codec.encode(codec.decode(once, len(values)))) == once


DIGESTS = {
    "none": "8a2bc37ba350ff4b",
    "float16": "7f68e876ac746135",
    "bfloat16": "2519dde44dd10dee",
    "int8": "6782f2e6bb287374",
    "int4": "9ddab11a00b29c10",
    "topk": "0449d627e62de517",
    "topk_sign": "d73e773be853d435",
}


@ANY_CODEC
def test_the_same_elements_give_these_bytes_on_every_machine(codec: Codec) -> None:
    bits = np.random.default_rng(11).integers(0, 0x7F80_0000, 16_384 + 7, dtype=np.uint32)  # of finite floats
    assert hashlib.sha256(codec.encode(bits.view(np.float32))).hexdigest()[:16] == DIGESTS[codec.name]


def decoded_length(codec: Codec, data: bytes, num_elements: int) -> int | str:
    """Or why it was refused."""
    try:
        return len(codec.decode(data, num_elements))
    except BadPart as refused:
        return refused.reason


@ANY_CODEC
@given(bits=BITS)
def test_nothing_warns_or_fails_whatever_the_bits_are(codec: Codec, bits: NDArray[np.uint32]) -> None:
    with np.errstate(all="raise"):
        data = codec.encode(bits.view(np.float32))
        codec.decode(data, len(bits))
        fitting = next(length for length in range(bits.nbytes, -1, -1) if codec.encoded_bytes(length) <= bits.nbytes)
        hostile = bits.tobytes()[: codec.encoded_bytes(fitting)]
        assert decoded_length(codec, hostile, fitting) in (fitting, "bad_indices" if "topk" in codec.name else None)


@ANY_CODEC
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 31, 255, 256, 299])
def test_what_is_not_finite_stays_so_and_the_receiver_can_refuse_it(codec: Codec, poison: float, position: int) -> None:
    values = np.ones(300, np.float32)
    values[position] = poison
    assert not np.isfinite(there_and_back(codec, values)[position])


@ANY_CODEC
@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF8000, 0xFF800001])
def test_no_pattern_of_a_nan_turns_into_a_number(codec: Codec, bits: int) -> None:
    values = np.array([bits], np.uint32).view(np.float32)
    assert not np.isfinite(there_and_back(codec, values)).any()


@ANY_CODEC
@given(num_elements=st.integers(0, 300), num_bytes=st.integers(0, 1250))
def test_an_encoding_of_another_length_is_a_bad_part(codec: Codec, num_elements: int, num_bytes: int) -> None:
    data = bytes(num_bytes)
    if num_bytes == codec.encoded_bytes(num_elements):
        data = codec.encode(np.zeros(num_elements, np.float32))
        assert not codec.decode(data, num_elements).any()
        return
    with pytest.raises(BadPart) as caught:
        codec.decode(data, num_elements)
    assert caught.value.reason == "wrong_length"


@ANY_CODEC
@given(values=VECTORS)
def test_a_window_into_a_larger_message_decodes_like_a_copy_of_it(codec: Codec, values: Vector) -> None:
    encoded = bytes(codec.encode(values))
    for message in (b"abc" + encoded, bytearray(b"abc" + encoded)):
        decoded = codec.decode(memoryview(message)[3:], len(values))
        assert decoded.tobytes() == codec.decode(encoded, len(values)).tobytes()


@ANY_CODEC
def test_zeros_stay_zeros_and_signs_stay_signs(codec: Codec) -> None:
    assert not there_and_back(codec, np.zeros(500, np.float32)).any()
    assert np.array_equal(np.sign(there_and_back(codec, vector(-2, 2, 0))), vector(-1, 1, 0))


@ANY_CODEC
def test_an_infinity_never_comes_from_a_finite_element(codec: Codec) -> None:
    values = vector(LARGEST_FLOAT, -LARGEST_FLOAT, 3e38, 1e30, 65520)
    decoded = there_and_back(codec, values)
    assert np.isfinite(decoded).all()
    assert np.all(decoded * np.sign(values) >= 0)


@pytest.mark.parametrize("name", ["none", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-12, 1.0, 3e38])
def test_gradients_of_any_magnitude_survive(name: str, magnitude: float) -> None:
    values = (np.linspace(-1, 1, 600) * magnitude).astype(np.float32)
    decoded = there_and_back(codec_by_name(name), values).astype(np.float64)
    assert np.max(np.abs(decoded - values)) <= magnitude / 14


# -- the identity ------------------------------------------------------------------------------------------------------


@given(bits=BITS)
def test_without_compression_every_bit_survives_and_none_is_copied(bits: NDArray[np.uint32]) -> None:
    codec, values = codec_by_name("none"), bits.view(np.float32)
    data = codec.encode(values)
    decoded = codec.decode(data, len(values))
    assert decoded.tobytes() == values.tobytes()
    assert len(values) == 0 or np.shares_memory(decoded, values)


def test_only_the_identity_calls_itself_exact() -> None:
    assert [codec.name for codec in all_codecs() if codec.is_exact] == ["none"]


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "float16", "bfloat16", "int8", "int4", "topk", "topk_sign"])
def test_every_codec_is_found_by_its_name(name: str) -> None:
    assert codec_by_name(name).name == name


def test_a_codec_that_nobody_knows_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(ValueError, match="'zip'; there are none, float16, bfloat16, int8, int4, topk, topk_sign"):
        codec_by_name("zip")
