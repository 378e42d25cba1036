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
    values[2 * 4096 + 100 :] = 0  # fewer than are kept
    codec, signs = TopKSign(), Signs(KEPT)
    expected = codec.decode(codec.encode(values), LENGTH)
    assert np.array_equal(signs.decode(signs.encode(values), LENGTH), expected)
    assert signs.block_bits == 8 * BLOCK_BYTES
    assert signs.encoded_bytes(LENGTH) == codec.encoded_bytes(LENGTH)


def test_what_a_butterfly_leaves_out_of_a_mean_comes_later_and_who_gathers_has_all_of_it_at_once() -> None:
    """Each trainer has elements of its own in the first span, which the first one reduces."""
    length = 4 * 4096
    vectors = [np.zeros(length, np.float32) for _ in range(4)]
    for index, vector in enumerate(vectors):
        vector[index:400:4] = 1.0 + index
    gathered = Mean(Way.parse("gathered:100"), 4).of(vectors, 8.0)
    butterfly = Mean(Way.parse("butterfly:100"), 4)
    first, second = (butterfly.of([vector * share for vector in vectors], 8.0) for share in (1, 0))
    assert np.count_nonzero(gathered) == 400
    assert np.count_nonzero(first) == 100
    assert set(np.flatnonzero(first) % 4) == {3}
    assert set(np.flatnonzero(second) % 4) == {2}, "the next largest are owed"


def test_what_a_trainer_has_in_its_own_span_counts_as_it_is() -> None:
    length = 2 * 4096
    vectors = [np.ones(length, np.float32), np.zeros(length, np.float32)]
    mean = Mean(Way.parse("butterfly:4096"), 2).of(vectors, 8.0)
    assert np.all(mean == 0.5)
    few = Mean(Way.parse("butterfly:64"), 2)
    few._reduced.result = lambda codec, start, values: values.tobytes()  # type: ignore[method-assign,assignment]
    mean = few.of(vectors, 8.0)
    assert np.count_nonzero(mean[:4096]) == 4096, "the first one reduces these itself"
    assert np.count_nonzero(mean[4096:]) == 64


def test_a_short_training_each_way() -> None:
    words = ["--ways", "butterfly:440,gathered:182,dense", "--rounds", "2", "--inner", "4", "--trainers", "2"]
    ways = measure(parsed([*words, "--outer", "1.0/0.3"]))["ways"]
    butterfly, gathered, dense = ways["butterfly:440"], ways["gathered:182"], ways["dense"]
    there_and_back = 2 * 2 * 1 * (41 + 41) * BLOCK_BYTES / 1e6
    assert butterfly["sent_mb"] == pytest.approx(there_and_back, abs=1e-3), "two rounds of 41 blocks a span"
    assert gathered["sent_mb"] < butterfly["sent_mb"] < dense["sent_mb"] / 40
    assert gathered["relayed_mb"] == pytest.approx(2 * gathered["sent_mb"], abs=2e-3)
    assert dense["held_out_loss"] + 0.1 < butterfly["held_out_loss"] < 7.0
    assert dense["held_out_loss"] + 0.1 < gathered["held_out_loss"] < 7.0


@pytest.mark.parametrize("words", [["--ways", "dense:3"], ["--ways", "gathered"], ["--outer", "2.8"]])
def test_what_is_no_way_and_no_step_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(words)
    assert "error" in capsys.readouterr().err
