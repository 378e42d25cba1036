"""Claims on blocks: said, and kept where nobody else has claimed the same by then."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from itertools import dropwhile, islice

from collab.data.block_set import page_of
from collab.data.blocks import BlockId
from collab.data.choosing import Choice
from collab.data.coverage import Coverage
from collab.data.holders import Holders, PageKey
from collab.data.lease_board import LeaseBoard
from collab.data.page_talk import PageTalk
from collab.errors import NetworkError

PAGES_AT_ONCE = 8
"""That a claim is on, where blocks are short: each is one word more, but all take no longer than one."""
FRUITLESS_PAGES, PAGES_A_LOOK = 12, 4
"""Pages on which nothing is free, one after the other, before the next pass begins; and how many are read at once."""
FRESH_S, OWN_FRESH_S = 3.0, 60.0
"""A page that was read so lately is not read before a claim: what others say meanwhile is seen after it. Where blocks
are ours, hardly anybody says anything."""
FIRST_CLAIM_S = 1.0
"""What a claim takes, before it is known."""
AGAIN_AFTER_CLAIMS = 4.0
"""A block that two claimed at once is claimed again after up to so many claims' time, at random: one is first then."""
Meet = Callable[[], Awaitable[bool]]
"""Learns who is there; whether somebody is whom we did not know."""


class Claims:
    """Leases that nobody has taken yet, and how more are made."""

    def __init__(self, board: LeaseBoard, coverage: Coverage, holders: Holders, choice: Choice, meet: Meet) -> None:
        self._board, self._coverage, self._holders, self._choice = board, coverage, holders, choice
        self._meet_others = meet
        self.talk = PageTalk(board, coverage, holders, choice)
        self.ready: deque[BlockId] = deque()
        """Those of earlier passes first."""
        self.arrived = asyncio.Event()
        """Set when there is a lease more, or none is to be waited for."""
        self.claim_s = FIRST_CLAIM_S
        """What a claim takes."""
        self._under_way = 0

    @property
    def may_arrive(self) -> bool:
        """Whether a lease may come soon: one is being claimed, or may be."""
        return self._under_way > 0 or self._choice.most_granted > 0

    def in_hand(self, newest: int) -> int:
        """Leases that nobody has taken yet, those of passes after ``newest`` not counted."""
        return sum(block.pass_number <= newest for block in self.ready)

    def number(self, newest: int) -> int:
        """Blocks to claim in the pass that we are in; 0: we have claimed all that others grant us."""
        in_hand = self.in_hand(newest)
        wanted = max(self._choice.number_wanted(newest, in_hand) - in_hand, 1)
        return min(wanted, max(self._choice.room, 1), self._choice.most_granted)

    def shed(self) -> None:
        """Give up leases that others do not grant us any more, the last ones first."""
        while self.ready and self._choice.is_beyond:
            block = self.ready.pop()
            self._choice.held.discard(block)
            self.talk.note(block)

    async def claim_in(self, pass_number: int, meanwhile: Callable[[], Awaitable[None]]) -> bool:
        """On pages where blocks of ours are free, else on the first where any is; whether there are more leases now.

        Args:
            meanwhile: what must not wait until several pages were looked at in vain.

        Raises:
            NetworkError: the directory does not answer.
        """
        if await self.claim_own(pass_number, self.number(pass_number)):
            return True
        fruitless, is_hurried = 0, self._choice.work_in(self.claim_s) > 1  # a block lasts no longer than a claim takes
        most = PAGES_A_LOOK if is_hurried else FRUITLESS_PAGES
        for key in self._choice.pages(pass_number):
            is_worth_it = self._choice.untrained(key)
            while is_worth_it and fruitless < most:
                if self._older([key], FRESH_S):
                    await self.read(self._next_pages(key), roughly=True)
                await meanwhile()
                if not self.number(pass_number):
                    return False
                if await self.claim_on([key], self.number(pass_number)):
                    return True
                fruitless += 1
                is_worth_it = self._choice.free(key, self._board.now())  # somebody wanted the same: the next best
        return False

    async def claim_own(self, pass_number: int, number: int) -> bool:
        """Claim so many blocks that are ours by the assignment; whether there are any.

        Raises:
            NetworkError: the directory does not answer.
        """
        for _ in range(self._choice.plan.num_pages if number else 0):
            keys = self._own_pages(pass_number, number)
            if not keys:
                break
            if await self.claim_on(keys, number, only_own=True):
                return True
        return False

    async def claim_on(self, keys: Collection[PageKey], number: int, *, only_own: bool = False) -> bool:
        """Claim so many free blocks of some pages, and see whether they are ours; whether any is.

        Raises:
            NetworkError: the directory does not answer.
        """
        fresh_s = OWN_FRESH_S if only_own and self._choice.is_parted else FRESH_S
        await self.read(self._older(keys, fresh_s), roughly=True)
        await self._meet(keys)
        free = (self._choice.best(key, self._board.now(), only_own=only_own) for key in keys)
        wanted = [block for blocks in free for block in blocks][: min(number, self._choice.most_granted)]
        if not wanted:
            return False
        said = {page_of(block) for block in wanted}
        self._choice.hold(wanted)
        began_s = self._board.monotonic()
        self._under_way += len(wanted)
        try:
            await self.talk.say(said)
            await self.read(said)
            await self._meet(said)
        except NetworkError:
            self._choice.held -= set(wanted)
            for block in wanted:
                self.talk.note(block)
            raise
        finally:
            self._under_way -= len(wanted)
        kept = [block for block in wanted if not self._is_taken(block)]
        self.ready = deque(sorted([*self.ready, *kept], key=lambda block: block.pass_number))
        if kept:
            self.arrived.set()
        if lost := set(wanted) - set(kept):
            took_s = self._board.monotonic() - began_s
            rest_s = self._board.random() * AGAIN_AFTER_CLAIMS * took_s
            self._choice.contest(lost, self._board.now() + rest_s)
            await self.talk.say({page_of(block) for block in lost})
        return bool(kept)

    async def read(self, keys: Collection[PageKey], *, roughly: bool = False) -> None:
        """Hear what everybody says of pages; see ``LeaseBoard.read``.

        Raises:
            NetworkError: the directory does not answer.
        """
        await self.talk.read(keys, roughly=roughly)
        known = {key: self._coverage.of(key[0]).trained[key[1]] for key in keys}
        for block in [block for block in self.ready if block.bit & known.get(page_of(block), 0)]:
            self.ready.remove(block)  # somebody trained it without a lease
            self._choice.held.discard(block)

    def _next_pages(self, first: PageKey) -> list[PageKey]:
        """The next pages, not all trained, from ``first`` on: looked at together, since most may have nothing free."""
        following = dropwhile(lambda key: key != first, self._choice.pages(first[0]))
        return self._older(list(islice(filter(self._choice.untrained, following), PAGES_A_LOOK)), FRESH_S)

    def _older(self, keys: Collection[PageKey], age_s: float) -> list[PageKey]:
        """Pages that were read longer ago."""
        return [key for key in keys if self._board.now() - self._holders.read_at_s(key) >= age_s]

    def _own_pages(self, pass_number: int, number: int) -> list[PageKey]:
        """Pages that together have as many free blocks of ours as we want, or the most that are claimed on at once."""
        keys: list[PageKey] = []
        found = 0
        for key in self._choice.pages(pass_number):
            if own := self._choice.own(key, self._board.now()):
                keys.append(key)
                found += len(own)
            if found >= number or len(keys) == PAGES_AT_ONCE:
                break
        return keys

    def _is_taken(self, block: BlockId) -> bool:
        """Whether somebody else holds a block or has trained it."""
        key = page_of(block)
        taken = self._holders.held(key, self._board.now()) | self._coverage.of(key[0]).trained[key[1]]
        return bool(taken & block.bit)

    async def _meet(self, keys: Collection[PageKey]) -> None:
        """Learn who they are who claim blocks of a page that was read and did not seem to be there: their claims count
        from then on. Two that come at the same time would else hold the same blocks.
        """
        strange = [key for key in keys if self._holders.has_strangers(key)]
        if strange and await self._meet_others():
            await self.read(strange)
