"""The benchmark of gathering: its signs are the codec's, equal bytes are equal bytes, and what it measures differs."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_gathering import Mean, Signs, Way, measure, parsed

from collab.compression.topk_sign import BLOCK_BYTES, KEPT, TopKSign

LENGTH = 9000


def test_its_signs_are_those_of_the_codec() -> None:
    values = np.random.default_rng(0).standard_normal(LENGTH).astype(np.float32) ** 3
    values[:4500:3] = 0
    codec, signs = TopKSign(), Signs(KEPT)
    expected = codec.decode(codec.encode(values), LENGTH)
    assert np.array_equal(signs.decode(signs.encode(values), LENGTH), expected)
    assert signs.block_bits == 8 * BLOCK_BYTES
    assert signs.encoded_bytes(LENGTH) == codec.encoded_bytes(LENGTH)


def test_what_a_butterfly_leaves_out_of_a_mean_comes_later_and_who_gathers_has_all_of_it_at_once() -> None:
    """Each trainer has elements of its own: gathered all are there, of a sparse mean only the largest."""
    vectors = [np.zeros(4096, np.float32) for _ in range(4)]
    for index, vector in enumerate(vectors):
        vector[index::4][:100] = 1.0 + index
    gathered = Mean(Way.parse("gathered:100"), 4).of(vectors, 8.0)
    butterfly = Mean(Way.parse("butterfly:100"), 4)
    first, second = (butterfly.of([vector * share for vector in vectors], 8.0) for share in (1, 0))
    assert np.count_nonzero(gathered) == 400
    assert np.count_nonzero(first) == 100
    assert set(np.flatnonzero(first) % 4) == {3}
    assert set(np.flatnonzero(second) % 4) == {2}, "the next largest are owed"


def test_a_short_training_each_way() -> None:
    words = ["--ways", "butterfly:440,gathered:182,dense", "--rounds", "2", "--inner", "4", "--trainers", "2"]
    ways = measure(parsed(words))["ways"]
    butterfly, gathered, dense = ways["butterfly:440"], ways["gathered:182"], ways["dense:4096"]
    there_and_back = 2 * 2 * 1 * 81 * BLOCK_BYTES / 1e6
    assert butterfly["sent_mb"] == pytest.approx(there_and_back, abs=1e-3), "two rounds of 81 blocks"
    assert gathered["sent_mb"] < butterfly["sent_mb"] < dense["sent_mb"] / 40
    assert dense["held_out_loss"] < butterfly["held_out_loss"] < gathered["held_out_loss"] < 7.0
