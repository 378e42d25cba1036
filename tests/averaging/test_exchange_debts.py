"""What lossy encodings owe is carried from round to round through the real butterfly, and nothing of it is lost."""

import numpy as np
import pytest

from collab.averaging.messages import Member
from collab.averaging.weights import Weights
from collab.types import PeerId
from tests.averaging.butterflies import LENGTH, Exchanged, Streams, Swarm, break_a_part, random_vector, swarm_of


def turned(names: str, number: int) -> str:
    """Every peer reduces every span in its turn, and now and then one reduces none."""
    first = number % len(names)
    return (names[first:] + names[:first])[: len(names) - (number % 4 == 0)]


@pytest.mark.parametrize("codec", ["int8", "int4", "topk"])
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_nothing_that_was_put_in_is_lost_over_100_rounds_of_which_some_abort(names: str, codec: str) -> None:
    """Sum of weight x mean = sum of weight x vector - what the senders owe, whatever the weights of the rounds are."""

    async def talk(swarm: Swarm, network: Streams) -> None:
        generator = np.random.default_rng(7)
        put_in, got_out, committed = np.zeros(LENGTH), np.zeros(LENGTH), 0
        for number in range(100):
            vectors = {name: generator.normal(size=LENGTH).astype(np.float32) for name in names}
            weights = {name: float(generator.uniform(0.5, 8.0)) for name in names}
            everybody = tuple(Member(PeerId(name), weights[name], codec) for name in names)
            group = swarm.group(everybody, reducers=turned(names, number))
            network.tamper = None
            if number % 5 == 1:
                break_a_part(network, 1 + number // 5)
            outcomes = await swarm.try_exchange(group, vectors)
            commits = all(isinstance(outcome, Exchanged) for outcome in outcomes.values()) and number % 7 != 3
            swarm.settle(commits=commits)
            if commits:
                committed += 1
                put_in += sum(weights[name] * vectors[name].astype(np.float64) for name in names)
                got_out += sum(weights.values()) * outcomes["a"].mean.astype(np.float64)
        assert 60 <= committed <= 75
        owed = swarm.owed_by_senders()
        assert np.abs(owed).max() > 1e-3
        assert np.abs(put_in - owed - got_out).max() < 1e-3

    swarm_of(names, talk)


@pytest.mark.parametrize("codec", ["int8", "int4"])
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_nothing_is_lost_when_the_means_are_encoded_too(names: str, codec: str) -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        weights = {name: 1.0 + index for index, name in enumerate(names)}
        total_weight = sum(weights.values())
        put_in, got_out = np.zeros(LENGTH), np.zeros(LENGTH)
        for number in range(100):
            vectors = {name: random_vector(1000 * index + number) for index, name in enumerate(names)}
            everybody = tuple(Member(PeerId(name), weights[name], codec) for name in names)
            group = swarm.group(everybody, reducers=turned(names, number), result_codec=codec)
            network.tamper = None
            if number % 5 == 1:
                break_a_part(network, 1 + number // 5)
            outcomes = await swarm.try_exchange(group, vectors)
            commits = all(isinstance(outcome, Exchanged) for outcome in outcomes.values()) and number % 7 != 3
            swarm.settle(commits=commits)
            if commits:
                put_in += sum(weights[name] * vectors[name].astype(np.float64) for name in names)
                got_out += total_weight * outcomes["a"].mean.astype(np.float64)
        assert np.abs(swarm.owed_by_reducers()).max() > 1e-3
        owed = swarm.owed_by_senders() + total_weight * swarm.owed_by_reducers()
        assert np.abs(put_in - owed - got_out).max() < 2e-3

    swarm_of(names, talk)


@pytest.mark.parametrize("codec", ["none", "int4", "topk"])
def test_nothing_is_lost_where_an_earlier_round_has_used_some_of_a_peer_s_elements(codec: str) -> None:
    """There fewer samples are behind them, or none, so that less of what is sent counts."""

    whole = {"a": 4.0, "b": 6.0}
    few = Weights.uniform(LENGTH, 6.0).replaced([(100, 900)], 0.0).replaced([(2000, 3100)], 2.0)

    async def talk(swarm: Swarm, network: Streams) -> None:
        put_in, got_out = np.zeros(LENGTH), np.zeros(LENGTH)
        for number in range(40):
            swarm.weights = {"b": few} if number % 2 else {}
            behind = {name: np.full(LENGTH, weight) for name, weight in whole.items()}
            behind |= {name: weights.dense(0, LENGTH).astype(np.float64) for name, weights in swarm.weights.items()}
            vectors = {name: random_vector(1000 * index + number) for index, name in enumerate(whole)}
            for name, vector in vectors.items():
                vector[behind[name] == 0] = 0.0
            coded = "int4" if codec == "none" and number % 4 < 2 else codec  # what int4 owes, none spends
            members = tuple(Member(PeerId(name), weight, coded) for name, weight in whole.items())
            outcomes = await swarm.try_exchange(swarm.group(members, reducers=turned("ab", number)), dict(vectors))
            assert all(isinstance(outcome, Exchanged) for outcome in outcomes.values()), outcomes
            swarm.settle(commits=True)
            put_in += sum(behind[name] * vectors[name].astype(np.float64) for name in whole)
            got_out += sum(behind.values()) * outcomes["a"].mean.astype(np.float64)
        assert np.abs(put_in - swarm.owed_by_senders() - got_out).max() < 1e-3

    swarm_of("ab", talk)
