"""Shards of a streamed dataset, read while others are trained."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Protocol

from collab.data.blocks import BlockId
from collab.errors import BrokenOff, DataError
from collab.metrics.records import Notice
from collab.ports import Ports

READ_AHEAD = 1
"""Shards that are read, or being read, beside the one that is trained."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""After a shard that could not be read; twice as long each time."""


class Shards(Protocol):
    """A dataset whose shards can be trained apart from each other; ``TokenShards`` is one. Its methods may be slow."""

    @property
    def number(self) -> int:
        """Of all shards."""
        ...

    @property
    def digest(self) -> str:
        """Digest of which samples they have."""
        ...

    def open(self, shard: int) -> tuple[int, ...]:
        """Ids of the samples of a shard, which the task then has."""
        ...

    def close(self, shard: int) -> None:
        """The samples of a shard are not asked for any more; it may be that it could not be opened."""
        ...

    def drop(self) -> None:
        """Nothing that is kept of them is wanted any more."""
        ...


class BlockLeases(Protocol):
    """Who holds leases on shards."""

    def next_block(self) -> Awaitable[BlockId]:
        """A shard to read now."""
        ...

    def give_up(self, block: BlockId) -> None:
        """It cannot be read here."""
        ...


class ShardStream:
    """Reads leased shards ahead of the trainer."""

    def __init__(self, ports: Ports, shards: Shards) -> None:
        self._ports, self._shards = ports, shards
        self._uses: Counter[int] = Counter()
        """How often each shard is open here: the same one of two passes may be read or trained at once."""
        self._read: asyncio.Queue[tuple[BlockId, tuple[int, ...]]] = asyncio.Queue()
        self._room = asyncio.Semaphore(READ_AHEAD)
        """Held for each shard that is leased and not yet handed out: none is kept from others before it is needed."""

    async def next_block(self) -> tuple[BlockId, tuple[int, ...]]:
        """The next shard, as soon as it is read."""
        read = await self._read.get()
        self._room.release()
        return read

    def close(self, block: BlockId) -> None:
        """No sample is asked for any more of what ``next_block`` gave."""
        self._uses[block.block] -= 1
        if not self._uses[block.block]:
            self._shards.close(block.block)

    async def drop(self) -> None:
        """The run is over."""
        await self._ports.compute.beside(self._shards.drop)

    async def run(self, leases: BlockLeases) -> None:
        """Read one shard after the other, until cancelled or broken off. One that cannot be read is left to others."""
        pause_s = SHORTEST_PAUSE_S
        while True:
            await self._room.acquire()
            block = await leases.next_block()
            self._uses[block.block] += 1
            try:
                ids = await self._ports.compute.apart(lambda shard=block.block: self._shards.open(shard))  # type: ignore[misc]
            except BrokenOff:
                return  # this machine is wanted back; leases end with the goodbye
            except DataError as error:
                self._room.release()
                self.close(block)
                leases.give_up(block)
                text = f"shard {block.block} of the dataset cannot be read: {error.message}"
                notice = Notice(at_s=self._ports.clock.now(), text=text, hint=error.hint, is_problem=True)
                self._ports.observer.observe(notice)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = SHORTEST_PAUSE_S
                await self._read.put((block, ids))
