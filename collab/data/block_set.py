"""Blocks by their pages: what is asked of a set of blocks is nearly always which of one page are in it."""

from collections.abc import Iterable, Iterator, KeysView, MutableSet

from collab.data.blocks import BlockId, blocks_in
from collab.data.holders import PageKey


def page_of(block: BlockId) -> PageKey:
    """Where a block is."""
    return block.pass_number, block.page


class BlockSet(MutableSet[BlockId]):
    """A set that knows at once what it has of a page: whoever trains alone for minutes holds thousands of blocks."""

    def __init__(self, blocks: Iterable[BlockId] = ()) -> None:
        self._pages: dict[PageKey, int] = {}
        """Bits of each page that has any."""
        self._size = 0
        for block in blocks:
            self.add(block)

    def __contains__(self, block: object) -> bool:
        return isinstance(block, BlockId) and bool(self.bits(page_of(block)) & block.bit)

    def __iter__(self) -> Iterator[BlockId]:
        for (pass_number, page), bits in self._pages.items():
            for number in blocks_in(bits, page):
                yield BlockId(pass_number, number)

    def __len__(self) -> int:
        return self._size

    def add(self, block: BlockId) -> None:
        """Nothing if it is there already."""
        if block not in self:
            key = page_of(block)
            self._pages[key] = self.bits(key) | block.bit
            self._size += 1

    def discard(self, block: BlockId) -> None:
        """Nothing if it is not there."""
        if block not in self:
            return
        key = page_of(block)
        self._pages[key] ^= block.bit
        self._size -= 1
        if not self._pages[key]:
            del self._pages[key]

    def bits(self, key: PageKey) -> int:
        """What is in it of a page, as ``BlockId.bit``."""
        return self._pages.get(key, 0)

    @property
    def pages(self) -> KeysView[PageKey]:
        """Those of which anything is in it."""
        return self._pages.keys()
