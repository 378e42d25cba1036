"""Shards that are read ahead, moment by moment."""

import asyncio
from collections import deque
from contextlib import suppress

from collab.data.blocks import BlockId
from collab.errors import BrokenOff, DataError
from collab.training.shard_stream import ShardStream
from tests.fakes import FakeNetwork, make_ports, run


class Shards:
    """Shards of two samples; some cannot be read."""

    number, digest = 8, "d" * 32

    def __init__(self, *unreadable: int) -> None:
        self._unreadable = unreadable
        self.is_open: set[int] = set()
        self.is_wanted_back = False

    def open(self, shard: int) -> tuple[int, ...]:
        if self.is_wanted_back:
            raise BrokenOff("this machine is wanted back")
        if shard in self._unreadable:
            raise DataError("the disk is gone", hint="look for it")
        self.is_open.add(shard)
        return 10 * shard, 10 * shard + 1

    def close(self, shard: int) -> None:
        self.is_open.discard(shard)

    def drop(self) -> None:
        self.is_open.clear()


class Leases:
    """Gives the blocks that it has, then nothing."""

    def __init__(self, *blocks: BlockId) -> None:
        self._blocks = deque(blocks)
        self.given: list[BlockId] = []
        self.given_up: list[BlockId] = []

    async def next_block(self) -> BlockId:
        if not self._blocks:
            await asyncio.Event().wait()
        self.given.append(self._blocks.popleft())
        return self.given[-1]

    def give_up(self, block: BlockId) -> None:
        self.given_up.append(block)


async def stream_of(network: FakeNetwork, shards: Shards, leases: Leases) -> tuple[ShardStream, asyncio.Task[None]]:
    stream = ShardStream(make_ports(network.join("a")), shards)
    task = asyncio.create_task(stream.run(leases))
    await asyncio.sleep(0.1)
    return stream, task


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_no_shard_is_leased_before_there_is_room_for_it() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            leases = Leases(*(BlockId(0, shard) for shard in range(8)))
            stream, task = await stream_of(network, Shards(), leases)
            assert len(leases.given) == 1
            assert await stream.next_block() == (BlockId(0, 0), (0, 1))
            await asyncio.sleep(0.1)
            assert len(leases.given) == 2
            await end(task)

    run(main())


def test_a_shard_that_is_trained_in_two_passes_at_once_stays_open_until_both_are_done() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            shards = Shards()
            stream, task = await stream_of(network, shards, Leases(BlockId(0, 3), BlockId(1, 3)))
            first, _ = await stream.next_block()
            second, _ = await stream.next_block()
            stream.close(first)
            assert shards.is_open == {3}
            stream.close(second)
            assert shards.is_open == set()
            await end(task)

    run(main())


def test_a_shard_that_cannot_be_read_is_given_up_and_makes_room_for_the_next() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            shards, leases = Shards(5), Leases(BlockId(0, 5), BlockId(0, 6))
            stream, task = await stream_of(network, shards, leases)
            assert await stream.next_block() == (BlockId(0, 6), (60, 61))
            assert leases.given_up == [BlockId(0, 5)]
            await end(task)

    run(main())


def test_when_reading_is_broken_off_nothing_more_is_leased_or_read_and_nothing_is_wrong() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            shards, leases = Shards(), Leases(*(BlockId(0, shard) for shard in range(8)))
            stream, task = await stream_of(network, shards, leases)
            shards.is_wanted_back = True
            await stream.next_block()
            await asyncio.wait_for(task, 1.0)
            assert (len(leases.given), leases.given_up) == (2, [])

    run(main())
