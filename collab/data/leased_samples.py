"""Sample ids from leased blocks, and when all samples of a block are in steps."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from collab.data.blocks import BlockId

NextBlock = Callable[[], Awaitable[tuple[BlockId, tuple[int, ...]]]]
"""A block to train now, and the ids of its samples in the order in which they are trained."""


class BlockSource(Protocol):
    """Who holds the blocks; ``collab.data.leases.Leases`` is the real one."""

    def done(self, block: BlockId) -> None:
        """All its samples are in steps."""
        ...

    def give_up(self, block: BlockId) -> None:
        """It will not be trained here."""
        ...

    def give_back(self, block: BlockId) -> None:
        """What was computed of it is lost."""
        ...


@dataclass(slots=True)
class _Open:
    """A block that is being trained."""

    block: BlockId
    unread: deque[int]
    """Samples that nobody has asked for yet."""
    open_samples: int
    """That are in no step yet."""
    is_given_up: bool = False


@dataclass(slots=True)
class LeasedSamples:
    """The samples of one peer, block by block."""

    source: BlockSource
    next_block: NextBlock
    release: Callable[[BlockId], None]
    """Called once for each block that ``next_block`` gave, when no sample of it is asked for any more."""
    _blocks: deque[_Open] = field(default_factory=deque)
    """With samples that nobody has asked for."""
    _issued: dict[int, deque[_Open]] = field(default_factory=dict)
    """Of each sample that is in no step yet the blocks that it was issued for: of two passes it may be under way."""

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        """The next ids, exactly ``microbatch_size`` of them; a microbatch may reach into the next block."""
        if microbatch_size < 1:
            raise ValueError(f"microbatch_size must be at least 1, got {microbatch_size}")
        ids: list[int] = []
        while len(ids) < microbatch_size:
            if not self._blocks:
                await self._open_next()
                continue
            current = self._blocks[0]
            while current.unread and len(ids) < microbatch_size:
                sample_id = current.unread.popleft()
                self._issued.setdefault(sample_id, deque()).append(current)
                ids.append(sample_id)
            if not current.unread:
                self._blocks.popleft()
        return tuple(ids)

    def used(self, sample_ids: Iterable[int]) -> None:
        """These are in a step."""
        for sample_id in sample_ids:
            current = self._take(sample_id)
            if current is not None:
                current.open_samples -= 1
                if not current.open_samples and not current.is_given_up:
                    self.source.done(current.block)
                    self.release(current.block)

    def skipped(self, sample_ids: Iterable[int]) -> None:
        """These were computed, and gave nothing finite: their blocks are given up."""
        for sample_id in sample_ids:
            current = self._take(sample_id, newest=True)
            if current is not None:
                self._drop(current, self.source.give_up)

    def lost(self, accumulated: Collection[int]) -> None:
        """Between two microbatches: samples that were computed, are in no step, and are not accumulated any more.

        Their history does not count any more; their blocks may be trained again.
        """
        known = frozenset(accumulated)
        for sample_id in [sample_id for sample_id in self._issued if sample_id not in known]:
            while (current := self._take(sample_id)) is not None:
                self._drop(current, self.source.give_back)

    def _drop(self, dropped: _Open, tell: Callable[[BlockId], None]) -> None:
        if not dropped.is_given_up:
            dropped.is_given_up = True
            dropped.unread.clear()
            self._blocks = deque(one for one in self._blocks if one is not dropped)
            tell(dropped.block)
            self.release(dropped.block)

    def _take(self, sample_id: int, *, newest: bool = False) -> _Open | None:
        """The block that a sample was issued for; None: it was not, or is in a step already."""
        waiting = self._issued.get(sample_id)
        if not waiting:
            return None
        current = waiting.pop() if newest else waiting.popleft()
        if not waiting:
            del self._issued[sample_id]
        return current

    async def _open_next(self) -> None:
        block, ids = await self.next_block()
        if ids:
            self._blocks.append(_Open(block, deque(ids), len(ids)))
        else:
            self.source.done(block)  # an empty shard
            self.release(block)
