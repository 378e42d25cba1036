from itertools import chain

import pytest
from hypothesis import given, strategies as st

from collab.data.sampling import SampleSampler


@given(num_samples=st.integers(1, 40), microbatch_size=st.integers(1, 50))
def test_every_pass_draws_each_sample_once(num_samples: int, microbatch_size: int) -> None:
    sampler = SampleSampler(num_samples, seed=3, peer_id="a")
    batches = [sampler.next(microbatch_size) for _ in range(3 * num_samples // microbatch_size + 1)]
    assert all(len(batch) == microbatch_size for batch in batches)
    drawn = list(chain.from_iterable(batches))
    for start in range(0, len(drawn) - num_samples + 1, num_samples):
        assert sorted(drawn[start:start + num_samples]) == list(range(num_samples))


def test_passes_peers_and_seeds_have_their_own_order() -> None:
    sampler = SampleSampler(50, seed=3, peer_id="a")
    orders = [sampler.next(50), sampler.next(50), SampleSampler(50, seed=3, peer_id="b").next(50),
              SampleSampler(50, seed=4, peer_id="a").next(50)]
    assert len(set(orders)) == 4


def test_order_never_changes_between_releases() -> None:
    assert SampleSampler(8, seed=0, peer_id="a").next(10) == (3, 2, 6, 1, 4, 0, 7, 5, 3, 5)


@given(drawn=st.integers(0, 100), size=st.integers(1, 9))
def test_restored_sampler_goes_on_where_the_state_was_taken(drawn: int, size: int) -> None:
    sampler = SampleSampler(17, seed=1, peer_id="a")
    for _ in range(drawn):
        sampler.next(size)
    restored = SampleSampler(17, seed=1, peer_id="a")
    restored.restore(sampler.state())
    assert [restored.next(5) for _ in range(10)] == [sampler.next(5) for _ in range(10)]


@pytest.mark.parametrize("state", [
    {}, {"pass": 0, "position": 18, "num_samples": 17}, {"pass": -1, "position": 0, "num_samples": 17},
    {"pass": 0, "position": 0, "num_samples": 16},
])
def test_impossible_state_is_refused_and_changes_nothing(state: dict[str, int]) -> None:
    sampler = SampleSampler(17, seed=1, peer_id="a")
    with pytest.raises(ValueError, match="sampler state"):
        sampler.restore(state)
    assert sampler.state() == {"pass": 0, "position": 0, "num_samples": 17}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="num_samples"):
        SampleSampler(0, seed=0, peer_id="a")
    with pytest.raises(ValueError, match="microbatch_size"):
        SampleSampler(1, seed=0, peer_id="a").next(0)
