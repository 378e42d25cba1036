"""A set of blocks: as any set, and each page of it at once."""

import random
import sys
from collections.abc import Callable

import pytest

from collab.data.block_set import BlockSet, page_of
from collab.data.blocks import PAGE_BLOCKS, BlockId, BlockPlan
from collab.data.choosing import Choice
from collab.data.coverage import Coverage
from collab.data.holders import Holders
from collab.data.ledger import Ledger
from collab.types import PeerId

PLAN = BlockPlan.of(8 * 4096, digest="a" * 32, seed=1, microbatch_size=8)
EVERYTHING = [BlockId(number, block) for number in range(3) for block in range(40)]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_a_set_would_be(seed: int) -> None:
    dice, ours, theirs = random.Random(seed), BlockSet(), set[BlockId]()
    for _ in range(300):
        block, some = dice.choice(EVERYTHING), set(dice.sample(EVERYTHING, 5))
        match dice.randrange(4):
            case 0:
                ours.add(block)
                theirs.add(block)
            case 1:
                ours.discard(block)
                theirs.discard(block)
            case 2:
                ours |= some
                theirs |= some
            case _:
                ours -= some
                theirs -= some
        assert (set(ours), len(ours), some - ours) == (theirs, len(theirs), some - theirs)
        assert ours.pages == {page_of(block) for block in theirs}
        for key in {page_of(block) for block in EVERYTHING}:
            assert ours.bits(key) == sum(block.bit for block in theirs if page_of(block) == key)


def num_calls(work: Callable[[], object]) -> int:
    """Of functions in Python."""
    seen = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal seen
        seen += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return seen


def test_what_is_free_of_a_page_is_found_as_fast_whatever_is_held_elsewhere() -> None:
    """A trainer that is alone for minutes holds thousands of blocks, and looks at each page for the next one."""
    me, coverage = PeerId("me"), Coverage(PLAN)
    choice = Choice(me, coverage, Holders(me, coverage, Ledger(most_per_round=1e3)))
    choice.hold([BlockId(0, PAGE_BLOCKS)])
    assert choice.free((0, 1), 0.0) == PLAN.full_page(1) & ~1  # the first look makes the pass
    few = num_calls(lambda: choice.free((0, 1), 0.0))
    choice.hold(BlockId(0, block) for block in range(PAGE_BLOCKS, PLAN.num_blocks))
    assert not choice.free((0, 1), 0.0)
    assert choice.free((0, 0), 0.0) == PLAN.full_page(0)
    assert num_calls(lambda: choice.free((0, 1), 0.0)) == few
