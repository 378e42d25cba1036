"""The sparse codec of signs: which elements it keeps, at which level, where it puts them, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from collab.compression.base import codec_by_name
from collab.compression.error_feedback import KEPT_OF_OWED, ErrorFeedback
from collab.errors import BadPart
from collab.types import Vector

SIGNS = codec_by_name("topk_sign")
KEPT, BLOCK, BLOCK_BYTES = 440, 4096, 341
UNARY, LOWS, MINUS = 2, 121, 286
"""Where they begin in a block's bytes."""


def there_and_back(values: Vector) -> Vector:
    return SIGNS.decode(SIGNS.encode(values), len(values))


def random_vector(length: int, seed: int = 3) -> Vector:
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)


def by_sorting(values: Vector) -> Vector:
    """What the codec's docstring says, one element after the other."""
    rounded = codec_by_name("bfloat16").decode(codec_by_name("bfloat16").encode(values), len(values)).astype(np.float64)
    expected = np.zeros(len(values), np.float32)
    for start in range(0, len(values), BLOCK):
        block = rounded[start : start + BLOCK]
        order = [place for place in np.argsort(-np.abs(block), kind="stable")[:KEPT] if block[place] != 0]
        if not order:
            continue
        level = abs(block[order[3 * len(order) // 8]])
        for place in order:
            expected[start + place] = np.copysign(level, block[place])
    return expected


@given(length=st.sampled_from([1, 2, 439, 440, 441, 4095, 4096, 4097, 8192, 9000]), seed=st.integers(0, 99))
def test_the_440_largest_of_each_4096_come_at_one_level(length: int, seed: int) -> None:
    values = random_vector(length, seed)
    assert np.array_equal(there_and_back(values), by_sorting(values))


@given(zeros=st.integers(0, 600), seed=st.integers(0, 99))
def test_zeros_are_never_sent(zeros: int, seed: int) -> None:
    values = random_vector(600, seed)
    values[:zeros] = 0
    np.random.default_rng(seed).shuffle(values)
    assert np.array_equal(there_and_back(values), by_sorting(values))
    assert np.count_nonzero(there_and_back(values)) == min(600 - zeros, KEPT)


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 1), (128, 1), (4096, 1), (4097, 2), (16_384, 4)])
def test_a_block_costs_a_level_and_six_and_a_fifth_bits_of_each_of_its_largest(length: int, blocks: int) -> None:
    """Unary of 4096 / 8 + 440 bits, three more for each index, and one for each sign."""
    num_bytes = blocks * (2 + (512 + 440) // 8 + 3 * 440 // 8 + 440 // 8)
    assert SIGNS.encoded_bytes(length) == num_bytes == memoryview(SIGNS.encode(random_vector(length))).nbytes


def test_seven_times_as_many_elements_as_those_of_topk_take_half_as_many_bytes_again() -> None:
    assert 4 * 16_384 / SIGNS.encoded_bytes(16_384) == pytest.approx(48.0, abs=0.1)
    assert SIGNS.encoded_bytes(16_384) / codec_by_name("topk").encoded_bytes(16_384) == pytest.approx(1.52, abs=0.01)
    assert 6.8 < KEPT / 64 < 6.9


def test_a_hand_made_encoding() -> None:
    """Nine elements: the level is the fourth of them, 3."""
    values = np.zeros(4100, np.float32)
    sent = {3: -8.0, 0x10: 4.0, 0x11: -4.0, 0x12: 3.0, 0x13: 2.5, 0xABC: 1.0, 0xABD: -1.0, 0xFFE: 1.0, 0xFFF: 0.5}
    for place, value in sent.items():
        values[place] = value
    values[4098] = -2.0
    first = block_bytes("4040", list(sent), [1, 0, 1, 0, 0, 0, 1, 0, 0])
    assert bytes(SIGNS.encode(values)) == first + block_bytes("0040", [2], [1])
    found = there_and_back(values)
    assert [found[place] for place in sent] == [-3.0, 3.0, -3.0, 3.0, 3.0, 3.0, -3.0, 3.0, 3.0]
    assert found[4098] == -2.0
    assert np.count_nonzero(found) == 10


def block_bytes(level: str, indices: list[int], signs: list[int]) -> bytes:
    """As the docstring says it, in whole numbers of many bits."""
    unary = sum(1 << (index // 8 + turn) for turn, index in enumerate(indices))
    lows = sum(index % 8 << 3 * turn for turn, index in enumerate(indices))
    minus = sum(sign << turn for turn, sign in enumerate(signs))
    parts = (unary.to_bytes(LOWS - UNARY, "little"), lows.to_bytes(MINUS - LOWS, "little"))
    return bytes.fromhex(level) + b"".join(parts) + minus.to_bytes(BLOCK_BYTES - MINUS, "little")


@pytest.mark.parametrize("magnitude", [1e-36, 1e-12, 1.0, 3e38])
def test_values_of_any_magnitude_survive(magnitude: float) -> None:
    values = (np.linspace(-1, 1, 5000) * magnitude).astype(np.float32)
    decoded = there_and_back(values)
    assert np.array_equal(decoded, by_sorting(values))
    assert 0.7 * magnitude < np.max(decoded) < magnitude
    assert np.count_nonzero(decoded) == 2 * KEPT


def test_one_level_of_the_kept_loses_little_of_normal_noise() -> None:
    """Of what the elements that are kept come to, no other level loses a tenth less."""
    values = random_vector(40 * BLOCK)
    decoded = there_and_back(values)
    kept = decoded != 0
    lost = np.sum((values - decoded)[kept] ** 2)
    assert lost < 0.05 * np.sum(values[kept] ** 2)
    least = np.sum((np.abs(values[kept]) - np.abs(values[kept]).mean()) ** 2)
    assert lost < 1.1 * least


LEVEL = "803f"


@pytest.mark.parametrize(
    ("length", "data"),
    [
        (4096, block_bytes(LEVEL, list(range(441)), [])),  # more than a block can keep
        (4096, block_bytes(LEVEL, [7, 7], [])),  # not ascending
        (4096, block_bytes(LEVEL, [8, 9, 8], [])),
        (4096, block_bytes(LEVEL, [4096], [])),  # beyond the block, and beyond the vector
        (5000, block_bytes(LEVEL, [4096], []) + bytes(BLOCK_BYTES)),  # in the next block
        (100, block_bytes(LEVEL, [99, 100], [])),  # the end of a short one
        (4096, block_bytes(LEVEL, [0, 5], [0, 0, 1])),  # the sign of an element that is not there
        (4096, block_bytes(LEVEL, [], [0, 1])),
        (4096, block_bytes(LEVEL, [0], [])[:LOWS] + b"\x08" + bytes(BLOCK_BYTES - LOWS - 1)),  # low bits of one
    ],
)
def test_what_no_encoding_has_is_refused(length: int, data: bytes) -> None:
    with pytest.raises(BadPart) as caught:
        SIGNS.decode(data, length)
    assert caught.value.reason == "bad_indices"


@given(seed=st.integers(0, 999), level=st.binary(min_size=2, max_size=2), changed=st.integers(2, BLOCK_BYTES - 1))
def test_hostile_bytes_are_refused_or_are_at_most_440_elements_at_one_level(
    seed: int, level: bytes, changed: int
) -> None:
    hostile = bytearray(SIGNS.encode(random_vector(BLOCK, seed)))
    hostile[:2] = level
    hostile[changed] ^= 1 << seed % 8
    try:
        decoded = SIGNS.decode(hostile, BLOCK)
    except BadPart:
        return
    assert len(np.unique(np.abs(decoded[np.isfinite(decoded) & (decoded != 0)]))) <= 1
    assert np.count_nonzero(decoded) <= KEPT


@pytest.mark.parametrize("length", [1, 100, BLOCK, BLOCK + 1])
def test_an_encoding_in_which_nothing_is_sent_is_zeros(length: int) -> None:
    assert not any(SIGNS.encode(np.zeros(length, np.float32)))
    assert not there_and_back(np.zeros(length, np.float32)).any()


@pytest.mark.parametrize("count", [1, 3, 440, 500])
def test_a_block_that_has_what_is_not_finite_is_refused_as_a_whole_and_others_are_not(count: int) -> None:
    values = random_vector(2 * BLOCK)
    values[:count] = np.nan
    decoded = there_and_back(values)
    assert np.isnan(decoded[:BLOCK]).sum() == KEPT
    assert np.array_equal(decoded[BLOCK:], by_sorting(values[BLOCK:]))
    assert bytes(SIGNS.encode(decoded)) == bytes(SIGNS.encode(values))


def test_what_is_left_out_is_sent_when_it_has_grown() -> None:
    """Of 4096 elements that are all alike each is sent again and again; a part of what it owes fades meanwhile.

    What has waited for long is as large as it gets, so that lower indices come a little more often.
    """
    feedback, values = ErrorFeedback(BLOCK), np.ones(BLOCK, np.float32)
    rounds, times, owed = 4 * BLOCK // KEPT, np.zeros(BLOCK), np.zeros(BLOCK)
    for _ in range(rounds):
        arrived = SIGNS.decode(feedback.encode(SIGNS, 0, values, 1.0), BLOCK)
        feedback.commit()
        times, owed = times + (arrived != 0), KEPT_OF_OWED["topk_sign"] * owed + 1 - arrived
    assert np.max(np.abs(feedback.residual - owed)) < 1e-3
    assert times.min() >= 2
    assert times.max() <= 2 * rounds * KEPT / BLOCK
