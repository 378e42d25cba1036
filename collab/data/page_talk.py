"""What one peer says of pages of blocks, and hears: which words of ours are no longer true, and which grow old."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any

from collab.data.block_set import page_of
from collab.data.blocks import BlockId
from collab.data.choosing import Choice
from collab.data.coverage import Coverage
from collab.data.holders import Holders, PageKey
from collab.data.lease_board import KEPT_S, LeaseBoard, Said
from collab.errors import NetworkError

MARKS_S = 10.0
"""What was trained is said at most this often of one page, unless something is claimed there anyway."""


class PageTalk:
    """Our words about pages, and everybody's."""

    def __init__(self, board: LeaseBoard, coverage: Coverage, holders: Holders, choice: Choice) -> None:
        self._board, self._coverage, self._holders, self._choice = board, coverage, holders, choice
        self._unsaid: set[PageKey] = set()
        """Pages of which what we last said is no longer true."""
        self._said_s: dict[PageKey, float] = {}

    @property
    def unsaid(self) -> frozenset[PageKey]:
        """Pages of which what we last said is no longer true."""
        return frozenset(self._unsaid)

    def note(self, block: BlockId) -> None:
        """Something about a block is not as we said."""
        self._unsaid.add(page_of(block))

    def hurry(self, block: BlockId) -> None:
        """A block is taken that nobody has heard of: to be said at once."""
        self.note(block)
        self._said_s.pop(page_of(block), None)

    def forget(self, oldest_pass: int) -> None:
        """Nothing about passes before ``oldest_pass`` is said any more."""
        self._said_s = {key: said_s for key, said_s in self._said_s.items() if key[0] >= oldest_pass}
        self._unsaid = {key for key in self._unsaid if key[0] >= oldest_pass}

    async def read(self, keys: Collection[PageKey], *, roughly: bool = False) -> None:
        """Hear what everybody says of pages; see ``LeaseBoard.read``.

        Raises:
            NetworkError: the directory does not answer.
        """
        await _all(self._read(key, roughly) for key in sorted(keys))

    async def say(self, keys: Collection[PageKey]) -> None:
        """Say what we hold and have trained of pages.

        Raises:
            NetworkError: the directory does not answer.
        """
        await _all(self._say(key) for key in sorted(keys))

    def due(self) -> list[PageKey]:
        """Pages of which we should say something now."""
        now_s, renew_s = self._board.monotonic(), self._choice.life_s() / 3
        holding = self._choice.held.pages
        changed = {key for key in self._unsaid if now_s - self._said_s.get(key, now_s - MARKS_S) >= MARKS_S}
        old = {
            key for key, said_s in self._said_s.items() if now_s - said_s >= (renew_s if key in holding else KEPT_S / 3)
        }
        return sorted(changed | old)

    async def _read(self, key: PageKey, roughly: bool) -> None:
        self._holders.take_in(key, await self._board.read(key, roughly=roughly), self._board.now())

    async def _say(self, key: PageKey) -> None:
        self._unsaid.discard(key)
        self._said_s[key] = self._board.monotonic()
        trained = self._coverage.of(key[0]).ours[key[1]]
        said = Said(held=self._choice.held_on(key), trained=trained, life_s=self._choice.life_s())
        try:
            await self._board.say(key, said)
        except NetworkError:
            self._unsaid.add(key)
            raise


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do everything at once, and to its end; then raise what was raised first."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
