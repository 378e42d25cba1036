"""Error feedback: nothing that a codec loses is lost in the long run."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from collab.compression.base import Codec, all_codecs, codec_by_name
from collab.compression.error_feedback import KEPT_OF_OWED, ErrorFeedback
from collab.types import Vector

NONE, HALF, INT8, INT4 = (codec_by_name(name) for name in ("none", "float16", "int8", "int4"))
LARGEST_FLOAT = float(np.finfo(np.float32).max)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def decoded(codec: Codec, feedback: ErrorFeedback, start: int, values: Vector, weight: float) -> NDArray[np.float64]:
    """What the receiver of one encoded part adds to the mean."""
    return codec.decode(feedback.encode(codec, start, values, weight), len(values)).astype(np.float64)


# -- why ------------------------------------------------------------------------------------------------------------


def test_small_components_beside_a_large_one_vanish_without_feedback_and_arrive_with_it() -> None:
    values = np.full(32, 0.01, np.float32)
    values[0] = 1.0  # half a step of int4 is 0.07
    feedback, num_rounds = ErrorFeedback(len(values)), 700
    with_feedback, without = np.zeros(len(values)), np.zeros(len(values))
    for _ in range(num_rounds):
        without += INT4.decode(INT4.encode(values), len(values))
        with_feedback += decoded(INT4, feedback, 0, values, 1.0)
        feedback.commit()
    assert np.all(without[1:] == 0)
    one_step = 1 / 7 * 1.1  # the residual never exceeds about half a step
    assert np.max(np.abs(with_feedback / num_rounds - values)) <= one_step / num_rounds


# -- conservation ---------------------------------------------------------------------------------------------------


KEEPING = tuple(codec for codec in all_codecs() if codec.name not in KEPT_OF_OWED)
"""Codecs with which nothing that is owed fades."""


@pytest.mark.parametrize("codec", KEEPING, ids=lambda codec: str(codec.name))
def test_sent_plus_residual_is_the_input_over_a_hundred_rounds(codec: Codec) -> None:
    generator = np.random.default_rng(3)
    feedback, num_elements = ErrorFeedback(1000), 1000
    sent, owed, scale = np.zeros(num_elements), np.zeros(num_elements), 0.0
    for _ in range(100):
        values, weight = generator.normal(size=num_elements).astype(np.float32), float(generator.integers(1, 500))
        sent += weight * decoded(codec, feedback, 0, values, weight)
        owed += weight * values.astype(np.float64)
        scale += weight * float(np.max(np.abs(values)))
        feedback.commit()
    assert np.max(np.abs(sent + feedback.residual - owed)) <= 2.0**-24 * scale


@pytest.mark.parametrize("seed", range(8))
def test_codecs_weights_grids_aborts_and_partial_commits_may_change_and_nothing_is_lost(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_elements, codecs = 400, KEEPING
    feedback = ErrorFeedback(num_elements)
    sent, owed, scale = np.zeros(num_elements), np.zeros(num_elements), 0.0
    for _ in range(100):
        values = (generator.normal(size=num_elements) * 10.0 ** generator.uniform(-3, 3)).astype(np.float32)
        for _attempt in range(int(generator.integers(1, 4))):
            weight = float(generator.uniform(1, 1000))
            edges = [0, *np.sort(generator.integers(0, num_elements, 4)).tolist(), num_elements]
            parts = list(itertools.pairwise(edges))
            received = np.concatenate(
                [
                    decoded(codecs[generator.integers(len(codecs))], feedback, start, values[start:stop], weight)
                    for start, stop in parts
                ]
            )
            if generator.random() < 0.3:
                feedback.abort()
                continue
            used = [part for part in parts if generator.random() < 0.7]
            feedback.commit(used)
            for start, stop in used:
                sent[start:stop] += weight * received[start:stop]
                owed[start:stop] += weight * values[start:stop].astype(np.float64)
            scale += weight * float(np.max(np.abs(values)))
    assert np.max(np.abs(sent + feedback.residual - owed)) <= 2.0**-23 * scale


def test_the_residual_stays_within_half_a_step_of_the_codec() -> None:
    generator, feedback = np.random.default_rng(5), ErrorFeedback(640)
    for _ in range(300):
        feedback.encode(INT4, 0, generator.uniform(-1, 1, 640).astype(np.float32), 8.0)
        feedback.commit()
    largest_sum = 1 / (1 - 1 / 14)  # |x| <= 1 + |x| / 14
    assert np.max(np.abs(feedback.residual)) <= 8.0 * largest_sum / 14


# -- settling -------------------------------------------------------------------------------------------------------


def test_a_hand_computed_round() -> None:
    feedback = ErrorFeedback(3)
    assert np.array_equal(decoded(INT4, feedback, 0, vector(7, 0.25, -2.5), 2.0), [7, 0, -2])
    assert not feedback.residual.any()
    feedback.commit()
    assert np.array_equal(feedback.residual, [0, 0.5, -1])
    assert np.array_equal(decoded(INT4, feedback, 0, vector(7, 0.25, -1.5), 1.0), [7, 1, -2])
    feedback.commit()
    assert np.array_equal(feedback.residual, [0, -0.25, -0.5])


def test_two_fifths_of_what_a_sparse_codec_of_signs_owes_fade_in_each_committed_round_that_has_samples() -> None:
    """Of 441 elements the smallest one is left out, and owed."""
    feedback, codec = ErrorFeedback(4096), codec_by_name("topk_sign")
    values = np.zeros(4096, np.float32)
    values[:441] = 4.0
    values[440] = 3.0  # one too many: it is left out
    assert decoded(codec, feedback, 0, values, 2.0)[440] == 0
    feedback.commit()
    assert feedback.residual[440] == 6.0
    feedback.encode(codec, 0, values, 2.0)
    feedback.abort()
    assert feedback.residual[440] == 6.0
    values[440] = 0.0
    weights = np.full(4096, 2.0, np.float32)
    weights[440] = 0.0
    feedback.encode(codec, 0, values, weights)
    feedback.commit()
    assert feedback.residual[440] == 6.0, "nothing is sent where there are no samples"
    feedback.encode(codec, 0, values, 2.0)
    feedback.commit()
    assert feedback.residual[440] == pytest.approx(0.6 * 6.0, rel=1e-6)


def test_an_aborted_round_leaves_the_next_encoding_as_if_it_had_never_been() -> None:
    feedback, values = ErrorFeedback(2), vector(7, 0.4)
    feedback.encode(INT4, 0, values, 1.0)
    feedback.commit()
    before, first = feedback.residual.copy(), bytes(feedback.encode(INT4, 0, values, 3.0))
    feedback.abort()
    feedback.commit()
    assert np.array_equal(feedback.residual, before)
    assert bytes(feedback.encode(INT4, 0, values, 3.0)) == first


def test_encoding_twice_before_the_commit_gives_the_same_bytes() -> None:
    feedback, values = ErrorFeedback(2), vector(7, 0.4)
    assert bytes(feedback.encode(INT4, 0, values, 1.0)) == bytes(feedback.encode(INT4, 0, values, 1.0))


def test_another_attempt_at_a_part_replaces_what_was_pending() -> None:
    feedback, values = ErrorFeedback(2), vector(7, 0.4)
    feedback.encode(INT4, 0, values, 1.0)
    feedback.encode(NONE, 0, values, 1.0)
    feedback.commit()
    assert not feedback.residual.any()
    feedback.encode(NONE, 0, values, 1.0)
    feedback.encode(INT4, 0, values, 10.0)
    feedback.commit()
    assert np.array_equal(feedback.residual, vector(0, 0.4) * 10)


def test_another_attempt_with_other_parts_replaces_what_was_pending_where_they_overlap() -> None:
    feedback, values = ErrorFeedback(4), vector(7, 0.25, 0.25, 7)
    feedback.encode(INT4, 0, values[:3], 1.0)
    feedback.encode(INT4, 2, values[2:], 100.0)
    feedback.encode(INT4, 0, values[:2], 10.0)
    feedback.commit()
    assert np.array_equal(feedback.residual, [0, 2.5, 25, 0])


def test_a_commit_settles_only_the_spans_that_were_used() -> None:
    feedback, values = ErrorFeedback(6), vector(7, 0.25, 0.25, 7, 0.25, 0.25)
    feedback.encode(INT4, 0, values, 1.0)
    feedback.commit()
    feedback.encode(INT4, 0, values[:3], 1.0)
    feedback.encode(INT4, 3, values[3:], 1.0)
    feedback.commit([(5, 6), (1, 2), (1, 2)])
    assert np.array_equal(feedback.residual, [0, 0.5, 0.25, 0, 0.25, 0.5])
    feedback.commit()
    assert np.array_equal(feedback.residual, [0, 0.5, 0.25, 0, 0.25, 0.5])


def test_spans_that_nothing_was_encoded_for_keep_their_residual() -> None:
    feedback = ErrorFeedback(4)
    feedback.encode(INT4, 0, vector(7, 0.25, 7, 0.25), 4.0)
    feedback.commit()
    feedback.encode(NONE, 0, vector(7, 0.25), 4.0)
    feedback.commit([(0, 4)])
    assert np.array_equal(feedback.residual, [0, 0, 0, 1])


def test_a_commit_of_no_spans_is_an_abort() -> None:
    feedback = ErrorFeedback(2)
    feedback.encode(INT4, 0, vector(7, 0.25), 4.0)
    feedback.commit([])
    feedback.commit()
    assert not feedback.residual.any()


# -- weights that differ by element -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", KEEPING, ids=lambda codec: str(codec.name))
def test_nothing_is_lost_where_an_earlier_round_has_used_some_elements_and_not_others(codec: Codec) -> None:
    """Where nothing is left behind an element, what is sent there counts for nothing, and the residual has to stay."""
    generator, num_elements = np.random.default_rng(9), 300
    feedback = ErrorFeedback(num_elements)
    sent, owed = np.zeros(num_elements), np.zeros(num_elements)
    for number in range(60):
        weights = np.full(num_elements, 8.0, np.float32)
        if number % 3 == 1:
            weights[50:120], weights[200:230] = 0.0, 3.0
        values = generator.normal(size=num_elements).astype(np.float32)
        values[weights == 0] = 0.0
        data = feedback.encode(codec, 0, values, 8.0 if number % 3 == 0 else weights)
        sent += weights * codec.decode(data, num_elements).astype(np.float64)
        owed += weights * values.astype(np.float64)
        feedback.commit()
    assert np.max(np.abs(sent + feedback.residual - owed)) <= 1e-3


# -- exact codecs ---------------------------------------------------------------------------------------------------


def test_an_exact_codec_spends_the_whole_residual() -> None:
    feedback = ErrorFeedback(2)
    feedback.encode(INT4, 0, vector(7, 0.25), 4.0)
    feedback.commit()
    assert np.array_equal(decoded(NONE, feedback, 0, vector(3, 2), 2.0), [3, 2.5])
    feedback.commit()
    assert not feedback.residual.any()


def test_an_exact_codec_without_a_residual_copies_nothing() -> None:
    feedback, values = ErrorFeedback(3), vector(1, -0.0, 3)
    data = feedback.encode(NONE, 0, values, 2.0)
    assert np.shares_memory(np.frombuffer(data, np.uint8), values)


# -- what float32 cannot hold, and wrong arguments ------------------------------------------------------------------


@pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_part_that_the_receiver_must_refuse_does_not_poison_the_residual(codec: Codec, poison: float) -> None:
    feedback = ErrorFeedback(2)
    with np.errstate(all="raise"):
        assert not np.isfinite(decoded(codec, feedback, 0, vector(1, poison), 3.0)).all()
    feedback.commit()
    assert np.isfinite(feedback.residual).all()


@pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: str(codec.name))
def test_a_loss_beyond_float32_is_forgotten_and_the_next_part_is_usable(codec: Codec) -> None:
    feedback, values = ErrorFeedback(2), vector(LARGEST_FLOAT, -3e38)
    for _ in range(3):
        with np.errstate(all="raise"):
            assert np.isfinite(decoded(codec, feedback, 0, values, 1e15)).all()
        feedback.commit()
        assert np.isfinite(feedback.residual).all()


def test_a_residual_too_large_to_be_added_waits_until_it_can_be() -> None:
    feedback = ErrorFeedback(1)
    feedback.encode(HALF, 0, vector(3e38), 1.0)
    feedback.commit()
    assert np.array_equal(decoded(HALF, feedback, 0, vector(7), 0.5), [7])  # twice 3e38 is beyond float32
    feedback.commit()
    assert np.allclose(decoded(NONE, feedback, 0, vector(7), 2.0), 1.5e38)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (3, 2), (5, 1), (0, 5)])
def test_a_part_outside_the_vector_is_a_value_error(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="within 4 elements"):
        ErrorFeedback(4).encode(NONE, start, np.zeros(length, np.float32), 1.0)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_that_is_no_number_of_samples_is_a_value_error(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        ErrorFeedback(4).encode(NONE, 0, np.zeros(4, np.float32), weight)


def test_the_residual_cannot_be_changed_from_outside() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ErrorFeedback(4).residual[0] = 1
