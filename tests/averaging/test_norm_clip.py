"""One of five brings a vector a hundred times as long as its own: what the rounds' mean becomes."""

import numpy as np
import pytest

from collab.averaging.base import Committed
from collab.averaging.contribution_plan import Policy
from collab.types import Vector
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run

NUM_ELEMENTS = 40_000


def mean_of(vectors: dict[str, Vector], policy: Policy, reduction: str) -> Vector:
    async def main() -> Vector:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a", policy=policy, reduction=reduction)
            for name in vectors:
                await rounds.add_trainer(name)
            outcomes = await rounds.average(vectors)
        means = [outcome.mean for outcome in outcomes.values() if isinstance(outcome, Committed)]
        assert len(means) == len(vectors), outcomes
        assert len({mean.tobytes() for mean in means}) == 1
        return means[0].astype(np.float32)

    return run(main())


@pytest.mark.parametrize(("policy", "most_off"), [("exact", 0.05), ("int4", 0.05), ("sparse_both", 0.5)])
def test_a_displacement_a_hundred_times_too_long_counts_as_one_of_the_median_length(
    policy: Policy, most_off: float
) -> None:
    """Sums of signs at one level are often equal, so that which of them are the largest changes by a little."""
    shared = random_vectors("s", NUM_ELEMENTS)["s"]
    usual = {name: shared + own for name, own in random_vectors("abcde", NUM_ELEMENTS).items()}
    too_long = {**usual, "e": 100 * usual["e"]}
    expected = mean_of(usual, policy, "clipped_mean")
    clipped, plain = mean_of(too_long, policy, "clipped_mean"), mean_of(too_long, policy, "mean")
    assert np.linalg.norm(clipped - expected) < most_off * np.linalg.norm(expected)
    assert np.linalg.norm(plain - expected) > 10 * np.linalg.norm(expected)
