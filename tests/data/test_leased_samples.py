from collections import deque

import pytest

from collab.data.blocks import BlockId
from collab.data.leased_samples import LeasedSamples
from tests.fakes import run


class Source:
    """Hands out blocks of three samples, and keeps what it is told."""

    def __init__(self, *blocks: tuple[int, ...]) -> None:
        self._blocks = deque((BlockId(number, 0), ids) for number, ids in enumerate(blocks))
        self.told: list[tuple[str, int]] = []
        self.released: list[int] = []
        """Passes of the blocks of which no sample is asked for any more."""

    async def next_block(self) -> tuple[BlockId, tuple[int, ...]]:
        return self._blocks.popleft()

    def done(self, block: BlockId) -> None:
        self.told.append(("done", block.pass_number))

    def give_up(self, block: BlockId) -> None:
        self.told.append(("given up", block.pass_number))

    def give_back(self, block: BlockId) -> None:
        self.told.append(("given back", block.pass_number))


def samples_of(*blocks: tuple[int, ...]) -> tuple[LeasedSamples, Source]:
    source = Source(*blocks)
    return LeasedSamples(source, source.next_block, lambda block: source.released.append(block.pass_number)), source


def test_a_block_is_done_when_all_its_samples_are_in_steps() -> None:
    async def main() -> None:
        samples, source = samples_of((1, 2, 3), (4, 5, 6))
        assert await samples.next(4) == (1, 2, 3, 4)
        samples.used((1, 2))
        assert source.told == []
        samples.used((4, 3))
        assert source.told == [("done", 0)]
        assert await samples.next(2) == (5, 6)
        samples.used((5, 6, 99))
        assert source.told == [("done", 0), ("done", 1)]

    run(main())


def test_a_sample_of_two_passes_counts_for_the_earlier_one_first() -> None:
    async def main() -> None:
        samples, source = samples_of((1, 2), (2, 1))
        assert await samples.next(4) == (1, 2, 2, 1)
        samples.used((2, 1))
        assert source.told == [("done", 0)]
        samples.used((1, 2))
        assert source.told == [("done", 0), ("done", 1)]

    run(main())


def test_a_block_that_gave_nothing_finite_is_given_up_once_and_not_trained_on() -> None:
    async def main() -> None:
        samples, source = samples_of((1, 2, 3, 4), (5, 6))
        assert await samples.next(2) == (1, 2)
        samples.skipped((1, 2))
        assert source.told == [("given up", 0)]
        assert await samples.next(2) == (5, 6)
        samples.used((5, 6))
        assert source.told == [("given up", 0), ("done", 1)]

    run(main())


def test_what_a_rollback_throws_away_may_be_trained_again() -> None:
    async def main() -> None:
        samples, source = samples_of((1, 2, 3), (4, 5))
        await samples.next(3)
        await samples.next(2)
        samples.lost(accumulated=(4, 5))
        assert source.told == [("given back", 0)]
        samples.used((4, 5))
        assert source.told == [("given back", 0), ("done", 1)]

    run(main())


def test_an_empty_shard_is_done_at_once() -> None:
    async def main() -> None:
        samples, source = samples_of((), (1,))
        assert await samples.next(1) == (1,)
        assert source.told == [("done", 0)]

    run(main())


def test_wrong_arguments_are_refused() -> None:
    async def main() -> None:
        samples, _ = samples_of((1,))
        with pytest.raises(ValueError, match="microbatch_size"):
            await samples.next(0)

    run(main())


def test_each_block_is_released_once_and_not_before_its_last_sample_is_in_a_step() -> None:
    async def main() -> None:
        samples, source = samples_of((1, 2), (), (1, 2), (5, 6))
        assert await samples.next(5) == (1, 2, 1, 2, 5)
        assert source.released == [1], "that has no samples"
        samples.used((1, 2))
        assert source.released == [1, 0]
        samples.skipped((5,))
        assert source.released == [1, 0, 3]
        samples.lost(())
        samples.lost(())
        assert source.released == [1, 0, 3, 2]

    run(main())
