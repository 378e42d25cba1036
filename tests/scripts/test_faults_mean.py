"""Who is in a mean is found from its numbers, whatever anybody says."""

import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import averaging_vectors as vectors  # noqa: E402
from faults_mean import MOST_PEERS, RUN_ELEMENTS, RUNS_AT_ONCE, makeup  # noqa: E402

SEED, NUMBER, ELEMENTS = 7, 3, 20_000
MAX_ERROR = 1e-6


def weights_of(peers: int) -> dict[int, float]:
    return {peer: vectors.weight(peer) for peer in range(peers)}


def mean_of(weights: dict[int, float], num_elements: int = ELEMENTS) -> vectors.Floats:
    total = np.zeros(num_elements)
    for peer, weight in weights.items():
        total += vectors.vector(SEED, NUMBER, peer, num_elements).astype(np.float64) * weight
    return (total / sum(weights.values())).astype(np.float32)


def without(weights: dict[int, float], *peers: int) -> dict[int, float]:
    return {peer: weight for peer, weight in weights.items() if peer not in peers}


@pytest.mark.parametrize("peers", [3, 8, MOST_PEERS])
def test_a_mean_of_everybody_is_one_of_everybody_everywhere(peers: int) -> None:
    found = makeup(mean_of(weights_of(peers)), SEED, NUMBER, weights_of(peers), MAX_ERROR)
    assert found.explained == 1.0
    assert found.shares == dict.fromkeys(range(peers), 1.0)
    assert found.averaged(weights_of(peers)) == 1.0


def test_a_peer_that_is_not_in_the_mean_is_missed_and_the_others_are_not() -> None:
    weights = weights_of(8)
    found = makeup(mean_of(without(weights, 5)), SEED, NUMBER, weights, MAX_ERROR)
    assert found.explained == 1.0
    assert found.shares == {peer: float(peer != 5) for peer in range(8)}
    assert found.averaged(without(weights, 5)) == 1.0
    assert found.averaged(weights) == pytest.approx(1 - weights[5] / sum(weights.values()))


@pytest.mark.parametrize("edge", [8_192, 8_193, 12_345, RUN_ELEMENTS - 1])
def test_a_peer_that_died_on_the_way_is_found_up_to_the_very_element(edge: int) -> None:
    weights = weights_of(8)
    mean = np.concatenate([mean_of(weights)[:edge], mean_of(without(weights, 2))[edge:]])
    found = makeup(mean, SEED, NUMBER, weights, MAX_ERROR)
    assert found.explained == pytest.approx(1.0, abs=2e-4)
    assert found.shares[2] == pytest.approx(edge / ELEMENTS, abs=4e-3)  # the tail that fills no run is left out
    assert found.averaged(without(weights, 2)) == pytest.approx(1.0, abs=2e-4)


def test_runs_are_looked_at_beyond_the_first_batch() -> None:
    weights, num_elements = weights_of(3), RUN_ELEMENTS * (RUNS_AT_ONCE + 10)
    mean = mean_of(weights, num_elements)
    mean[-RUN_ELEMENTS * 5 :] = mean_of(without(weights, 1), num_elements)[-RUN_ELEMENTS * 5 :]
    found = makeup(mean, SEED, NUMBER, weights, MAX_ERROR)
    assert found.explained == 1.0
    assert found.shares[1] == pytest.approx(1 - 5 / (RUNS_AT_ONCE + 10))


def test_bytes_that_are_no_mean_of_anybody_are_not_explained() -> None:
    weights = weights_of(8)
    mean = mean_of(weights)
    mean[:10_000] *= 1.001
    found = makeup(mean, SEED, NUMBER, weights, MAX_ERROR)
    assert found.explained == pytest.approx(0.5, abs=0.01)
    assert found.averaged(weights) == pytest.approx(0.5, abs=0.01)
    zeros = makeup(np.zeros(ELEMENTS, np.float32), SEED, NUMBER, weights, MAX_ERROR)
    assert (zeros.explained, zeros.averaged(weights)) == (0.0, 0.0)


def test_a_mean_with_other_weights_or_of_another_round_is_not_taken_for_it() -> None:
    weights = weights_of(8)
    for mean, number in ((mean_of(dict.fromkeys(weights, 1.0)), NUMBER), (mean_of(weights), NUMBER + 1)):
        assert makeup(mean, SEED, number, weights, MAX_ERROR).explained < 2e-3  # an element may fit by chance


def test_more_peers_than_a_run_can_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        makeup(np.zeros(ELEMENTS, np.float32), SEED, NUMBER, weights_of(MOST_PEERS + 1), MAX_ERROR)
