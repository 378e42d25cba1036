from itertools import chain

import numpy as np
import pytest
from hypothesis import given, strategies as st

from collab.data.blocks import MAX_BLOCKS, PAGE_BLOCKS, BlockId, BlockPlan, blocks_in, permuted

DIGEST = "0123456789abcdef" * 2
GOLDEN = (9, 0, 4, 3, 8, 7, 11, 1, 2, 6, 10, 5)


def plan(num_samples: int, *, seed: int = 0, microbatch_size: int = 8, digest: str = DIGEST) -> BlockPlan:
    return BlockPlan.of(num_samples, digest=digest, seed=seed, microbatch_size=microbatch_size)


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_takes_each_place_once_whatever_the_size(size: int, key: int) -> None:
    keys = np.array([key, 1, 2, 3, 4, 5], dtype=np.uint64)
    assert sorted(permuted(np.arange(size, dtype=np.uint64), size, keys).tolist()) == list(range(size))


@given(num_samples=st.integers(1, 2000), microbatch_size=st.integers(5, 50), pass_number=st.integers(0, 5))
def test_the_blocks_of_a_pass_have_each_sample_once(num_samples: int, microbatch_size: int, pass_number: int) -> None:
    cut = plan(num_samples, microbatch_size=microbatch_size)
    blocks = [cut.sample_ids(BlockId(pass_number, block)) for block in range(cut.num_blocks)]
    assert sorted(chain.from_iterable(blocks)) == list(range(num_samples))
    assert [len(block) for block in blocks] == [cut.samples_in(block) for block in range(cut.num_blocks)]


@pytest.mark.parametrize("num_samples", [1, 4096 * 8, 4096 * 8 + 1, 10_000_000, 3_000_000_000])
def test_blocks_are_whole_microbatches_and_few_enough(num_samples: int) -> None:
    cut = plan(num_samples)
    assert cut.num_blocks <= MAX_BLOCKS
    assert cut.block_samples % 8 == 0
    assert len(cut.sample_ids(BlockId(0, cut.num_blocks - 1))) == cut.samples_in(cut.num_blocks - 1)
    assert sum(cut.full_page(page).bit_count() for page in range(cut.num_pages)) == cut.num_blocks


def test_seeds_passes_and_data_have_their_own_order() -> None:
    orders = [
        plan(400, microbatch_size=400).sample_ids(BlockId(0, 0)),
        plan(400, microbatch_size=400).sample_ids(BlockId(1, 0)),
        plan(400, microbatch_size=400, seed=1).sample_ids(BlockId(0, 0)),
        plan(400, microbatch_size=400, digest="f" * 32).sample_ids(BlockId(0, 0)),
    ]
    assert len(set(orders)) == 4


def test_a_long_order_looks_shuffled() -> None:
    ids = np.array(plan(10_000, microbatch_size=10_000).sample_ids(BlockId(0, 0)))
    assert abs(np.corrcoef(ids, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < 0.05


def test_order_never_changes_between_releases() -> None:
    assert plan(12, microbatch_size=12).sample_ids(BlockId(3, 0)) == GOLDEN


def test_a_plan_is_read_from_the_name_of_its_data() -> None:
    for made in (plan(1500), BlockPlan.of_shards(20, digest=DIGEST, seed=0)):
        assert BlockPlan.read(made.data, seed=0, microbatch_size=8) == made


@pytest.mark.parametrize(
    "name", ["", "samples", "samples.12", f"samples.0.{DIGEST}", f"samples.-3.{DIGEST}", f"files.3.{DIGEST}",
             f"samples.1{'0' * 20}.{DIGEST}", "samples.3.short", f"shards.{1 << 20}.{DIGEST}"],
)  # fmt: skip
def test_a_name_of_no_data_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"names no data|make no blocks|shards"):
        BlockPlan.read(name, seed=0, microbatch_size=8)


@given(bits=st.integers(0, 2**PAGE_BLOCKS - 1), page=st.integers(0, 31))
def test_blocks_in_names_the_bits_that_are_set(bits: int, page: int) -> None:
    blocks = list(blocks_in(bits, page))
    assert sum(BlockId(0, block).bit for block in blocks) == bits
    assert all(BlockId(0, block).page == page for block in blocks)
