"""The sparse codec: which elements it keeps, where it puts them, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from collab.compression.base import codec_by_name
from collab.compression.error_feedback import ErrorFeedback
from collab.errors import BadPart
from collab.types import Vector

TOPK = codec_by_name("topk")
KEPT, BLOCK = 64, 4096


def there_and_back(values: Vector) -> Vector:
    return TOPK.decode(TOPK.encode(values), len(values))


def random_vector(length: int, seed: int = 3) -> Vector:
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)


def largest_of_each_block(values: Vector) -> set[int]:
    """Places, found by sorting."""
    magnitudes = np.abs(codec_by_name("bfloat16").decode(codec_by_name("bfloat16").encode(values), len(values)))
    places: set[int] = set()
    for start in range(0, len(values), BLOCK):
        order = np.argsort(-magnitudes[start : start + BLOCK], kind="stable")[:KEPT]
        places |= {start + int(place) for place in order}
    return places


@given(length=st.sampled_from([1, 63, 64, 65, 4095, 4096, 4097, 8192, 9000, 16_384]), seed=st.integers(0, 99))
def test_the_64_largest_of_each_4096_are_sent_as_bfloat16_and_all_others_are_zero(length: int, seed: int) -> None:
    values = random_vector(length, seed)
    decoded, kept = there_and_back(values), largest_of_each_block(values)
    assert set(np.flatnonzero(decoded).tolist()) == kept
    at = sorted(kept)
    assert np.max(np.abs(decoded[at] / values[at] - 1)) <= 2.0**-8


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    values = np.where(np.arange(5000) % 2 == 0, 1.0, -1.0).astype(np.float32)
    expected = [*range(KEPT), *range(BLOCK, BLOCK + KEPT)]
    assert np.flatnonzero(there_and_back(values)).tolist() == expected


@pytest.mark.parametrize(("length", "num_bytes"), [(0, 0), (1, 4), (2, 7), (64, 224), (4096, 224), (16_384, 896)])
def test_an_element_that_is_kept_costs_three_and_a_half_bytes(length: int, num_bytes: int) -> None:
    assert TOPK.encoded_bytes(length) == num_bytes == memoryview(TOPK.encode(random_vector(length))).nbytes


def test_it_is_a_seventy_third_of_float32() -> None:
    assert 4 * 16_384 / TOPK.encoded_bytes(16_384) == pytest.approx(73.1, abs=0.1)


def test_a_hand_made_encoding() -> None:
    values = np.zeros(4096, np.float32)
    values[[5, 0xABC, 0xFFF]] = 1.0, -2.0, 0.5
    zeros = [place for place in range(KEPT) if place != 5][: KEPT - 3]  # the first ones of what is equally large
    places = sorted([5, 0xABC, 0xFFF, *zeros])
    halves = {5: 0x3F80, 0xABC: 0xC000, 0xFFF: 0x3F00}
    expected = b"".join(halves.get(place, 0).to_bytes(2, "little") for place in places)
    for first, second in zip(places[::2], places[1::2], strict=True):
        expected += (first | second << 12).to_bytes(3, "little")
    assert bytes(TOPK.encode(values)) == expected


@pytest.mark.parametrize("magnitude", [1e-37, 1e-12, 1.0, 3e38])
def test_values_of_any_magnitude_survive(magnitude: float) -> None:
    values = (np.linspace(-1, 1, 5000) * magnitude).astype(np.float32)
    decoded = there_and_back(values).astype(np.float64)
    assert np.max(np.abs(decoded - values)[decoded != 0]) <= magnitude / 256
    assert np.count_nonzero(decoded) == 2 * KEPT


@pytest.mark.parametrize(("length", "first", "second"), [(4096, 7, 7), (4096, 8, 7), (100, 99, 100), (4096 + 64, 0, 0)])
def test_indices_that_no_encoding_has_are_refused(length: int, first: int, second: int) -> None:
    """Twice, not ascending, beyond the end of a short block; the last two indices are those that are changed."""
    data = bytearray(TOPK.encode(np.ones(length, np.float32)))
    data[-3:] = (first | second << 12).to_bytes(3, "little")
    with pytest.raises(BadPart) as caught:
        TOPK.decode(data, length)
    assert caught.value.reason == "bad_indices"


def test_what_is_left_out_is_sent_when_it_has_grown() -> None:
    """Of 4096 elements that are all alike each is sent in its turn, with all that it has grown by meanwhile."""
    feedback, values = ErrorFeedback(BLOCK), np.ones(BLOCK, np.float32)
    rounds, sent = 2 * BLOCK // KEPT, np.zeros(BLOCK)
    for _ in range(rounds):
        sent += TOPK.decode(feedback.encode(TOPK, 0, values, 1.0), BLOCK)
        feedback.commit()
    assert np.max(np.abs(sent + feedback.residual - rounds)) < 1e-3
    assert sent.min() >= 0.45 * rounds
    assert feedback.residual.max() <= 1.1 * BLOCK / KEPT
