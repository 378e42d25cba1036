"""What a peer's lossy encodings owe is settled with the round, and not before."""

import numpy as np
import pytest

from collab.averaging.encodings import Encodings
from collab.compression.base import Codec, codec_by_name
from collab.compression.error_feedback import KEPT_OF_OWED
from collab.types import Vector

NAMES = ("none", "int4", "int8", "float16", "topk", "topk_sign")
NONE, INT4, INT8, HALF, TOPK, SIGNS = (codec_by_name(name) for name in NAMES)
LENGTH = 1000
OF_RESULTS = [INT4, INT8, HALF, SIGNS]
LOSSY = pytest.mark.parametrize("codec", [*OF_RESULTS, TOPK], ids=lambda codec: str(codec.name))


def values(seed: int = 1) -> Vector:
    return np.random.default_rng(seed).normal(size=LENGTH).astype(np.float32)


def begun() -> Encodings:
    encodings = Encodings()
    encodings.begin(LENGTH, values())
    return encodings


def sent(encodings: Encodings, codec: Codec, vector: Vector, weight: float = 1.0) -> Vector:
    """A part as it is decoded at the other side."""
    return codec.decode(encodings.part(codec, 0, vector, weight), len(vector))


def owed(encodings: Encodings) -> Vector:
    """What one more round, by an exact codec, would bring beyond its own vector; leaves no trace."""
    extra = sent(encodings, NONE, np.zeros(LENGTH, np.float32))
    encodings.abort()
    return extra.copy()


@LOSSY
def test_a_committed_round_owes_weight_times_what_its_encoding_lost(codec: Codec) -> None:
    encodings = begun()
    lost = values() - sent(encodings, codec, values(), weight=3.0)
    encodings.commit()
    assert np.abs(lost).max() > 0
    assert owed(encodings) == pytest.approx(3.0 * lost, rel=1e-5, abs=1e-6)


@LOSSY
def test_until_the_commit_nothing_is_owed_and_an_abort_restores_what_was(codec: Codec) -> None:
    encodings = begun()
    sent(encodings, codec, values(1))
    encodings.commit()
    before = owed(encodings)
    sent(encodings, codec, values(2))
    encodings.abort()
    assert np.array_equal(owed(encodings), before)
    sent(encodings, codec, values(3))
    encodings.begin(LENGTH, values())  # a round that was never settled did not happen
    encodings.commit()
    assert np.array_equal(owed(encodings), before)


@LOSSY
def test_our_own_span_spends_what_earlier_rounds_lost_there(codec: Codec) -> None:
    encodings = begun()
    sent(encodings, codec, values(1), weight=2.0)
    encodings.commit()
    debt = owed(encodings)
    own = sent(encodings, NONE, values(2), weight=4.0)
    assert own == pytest.approx(values(2) + debt / 4, rel=1e-5, abs=1e-6)
    encodings.commit()
    assert not owed(encodings).any()


@pytest.mark.parametrize("codec", OF_RESULTS, ids=lambda codec: str(codec.name))
def test_the_reducer_s_means_make_up_for_what_the_means_before_lost(codec: Codec) -> None:
    """But for what fades, with a codec of which that is so."""
    encodings, due = begun(), np.zeros(LENGTH)
    for seed in range(50):
        encodings.begin(LENGTH, values())
        mean = values(seed)
        decoded = codec.decode(encodings.result(codec, 0, mean), LENGTH)
        if seed % 3 == 0:
            encodings.abort()
            continue
        encodings.commit()
        due = KEPT_OF_OWED.get(codec.name, 1.0) * due + mean - decoded
        one_step = np.abs(mean - codec.decode(codec.encode(mean), LENGTH)).max()
        assert np.abs(due).max() <= 3 * one_step + 1e-5


def test_residuals_of_vectors_of_another_length_are_void() -> None:
    encodings = begun()
    sent(encodings, INT4, values())
    encodings.commit()
    encodings.begin(LENGTH - 1, values()[:-1])
    encodings.begin(LENGTH, values())
    assert not owed(encodings).any()


def test_a_float16_vector_is_sent_in_float32_s_encoding_and_owes_nothing() -> None:
    encodings = Encodings()
    half = values().astype(np.float16)
    encodings.begin(LENGTH, half)
    data = encodings.part(INT4, 0, half, 1.0)
    assert bytes(data) == bytes(INT4.encode(half.astype(np.float32)))
    encodings.result(INT4, 0, values())
    encodings.commit()
    assert np.array_equal(sent(encodings, NONE, values(2)), values(2))


def test_exact_codecs_send_the_vector_s_own_memory_and_owe_nothing() -> None:
    encodings, vector = begun(), values()
    assert np.shares_memory(sent(encodings, NONE, vector), vector)
    encodings.commit()
    assert not owed(encodings).any()
