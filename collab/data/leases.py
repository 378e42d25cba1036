"""Leases: each peer claims blocks of the pass before it trains them, so that all together train each sample once.

A claim is a word in the directory that expires. Whoever wants blocks reads the page that they are on, says which of the
free ones it takes, and reads again: blocks that anybody else claims by then it gives up at once. Of two that claim the
same block the one that said so later sees the other, so never do both keep it; when both give it up, it is free again.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from collab.data.blocks import BlockId
from collab.data.choosing import Choice, page_of
from collab.data.coverage import Coverage
from collab.data.holders import Holders, PageKey
from collab.data.lease_board import KEPT_S, LeaseBoard, Said
from collab.data.lease_records import ENTRY_BYTES
from collab.data.ledger import Ledger
from collab.data.surroundings import Surroundings
from collab.errors import NetworkError

logger = logging.getLogger(__name__)

MARKS_S = 10.0
"""What was trained is said at most this often of one page, unless something is claimed there anyway."""
SHORTEST_REVISIT_S, REVISIT_BYTES_PER_S = 5.0, 200.0
"""How often a page is looked at that we want nothing of, to see how far others are, and whether somebody has died that
held blocks of an older pass: the rarer, the more is said of it."""
FRUITLESS_PAGES = 4
"""Pages on which nothing is free, one after the other, before the next pass begins."""
RETRY_S = 5.0
"""When the directory does not answer, it is asked again so much later."""
FRESH_S = 3.0
"""A page that was read so lately is not read before a claim: what others say meanwhile is seen after it."""
TICK_S, FIRST_CLAIM_S = 1.0, 1.0
"""Between two looks at what is due; what a claim takes, before it is known."""
SHORTEST_PATIENCE_S = 0.3
AGAIN_AFTER_CLAIMS = 4.0
"""A block that two claimed at once is claimed again after up to so many claims' time, at random: one is first then."""


class Leases:
    """The blocks that one peer holds. One task runs it; one other takes blocks, and says when they are done."""

    def __init__(self, board: LeaseBoard, coverage: Coverage, ledger: Ledger, surroundings: Surroundings) -> None:
        self._board, self._coverage, self._ledger, self._around = board, coverage, ledger, surroundings
        self._plan, self._me = board.plan, board.me
        self._holders = Holders(self._me, coverage, ledger)
        self._choice = Choice(self._me, coverage, self._holders)
        self._ready: deque[BlockId] = deque()
        """Leases that nobody has taken yet."""
        self._unsaid: set[PageKey] = set()
        """Pages of which what we last said is no longer true."""
        self._said_s: dict[PageKey, float] = {}
        self._revisit_at_s = board.monotonic() + SHORTEST_REVISIT_S
        self._failed_s = board.monotonic() - RETRY_S
        self._claim_s = FIRST_CLAIM_S
        self._wanted = asyncio.Event()
        self._awaited: asyncio.Event | None = None
        """While the trainer waits for a lease: that there is one."""
        self._attending, self._is_closed = asyncio.Lock(), False
        self.newest = max(coverage.passes, default=0)
        """The pass that we claim blocks of; of those before only what is left."""
        coverage.of(self.newest)
        self.unleased = 0
        """Blocks that were taken without a lease."""
        self._unleased: set[BlockId] = set()

    # -- the trainer's side --------------------------------------------------------------------------------------------

    async def next_block(self) -> BlockId:
        """A block to train now: a lease if there is one, or comes as soon as leases usually do; else one that should be
        ours, without a lease, for training never stops.
        """
        if not self._ready:
            self._awaited = asyncio.Event()
            self._wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._awaited.wait()
            self._awaited = None
        block = self._ready.popleft() if self._ready else self._without_lease()
        self._wanted.set()
        return block

    def done(self, block: BlockId) -> None:
        """All samples of a block are in steps."""
        self._choice.held.discard(block)
        self._coverage.note_ours(block)
        self._unsaid.add(page_of(block))
        self._around.note_trained(block, block not in self._unleased)
        self._unleased.discard(block)

    def give_up(self, block: BlockId) -> None:
        """A block gave us nothing finite; somebody else may have more luck."""
        self._choice.held.discard(block)
        self._choice.left.add(block)
        self._unleased.discard(block)
        self._unsaid.add(page_of(block))

    def give_back(self, block: BlockId) -> None:
        """What was computed of a block is worth nothing any more; whoever comes first may train it again."""
        self._choice.held.discard(block)
        self._unleased.discard(block)
        self._unsaid.add(page_of(block))

    async def close(self) -> None:
        """Say that we hold nothing any more.

        Raises:
            NetworkError: the directory does not answer; our claims then end by themselves.
        """
        async with self._attending:
            self._is_closed = True
            pages = {page_of(block) for block in self._choice.held} | self._unsaid
            self._choice.held.clear()
            self._ready.clear()
            await asyncio.gather(*(self._say(key) for key in sorted(pages)))

    def _patience_s(self) -> float:
        """For a claim that is under way."""
        if self._board.monotonic() - self._failed_s < RETRY_S:
            return 0.0
        return max(SHORTEST_PATIENCE_S, 3 * self._claim_s)

    def _without_lease(self) -> BlockId:
        if not self._holders.pace.speeds:
            self._look_around()
        while (block := self._choice.without_lease(self.newest, self._board.now())) is None:
            self._begin(self.newest + 1)
        self._choice.held.add(block)
        self._unsaid.add(page_of(block))
        self._unleased.add(block)
        self.unleased += 1
        return block

    # -- the task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep leases ahead of the trainer, and the swarm informed, until cancelled."""
        while True:
            self._wanted.clear()
            try:
                if self._board.monotonic() - self._failed_s >= RETRY_S:
                    async with self._attending:
                        await self._attend()
            except NetworkError as error:
                self._failed_s = self._board.monotonic()
                logger.info("leases: the directory does not answer; training goes on without: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wanted.wait()

    async def _attend(self) -> None:
        if self._is_closed:
            return
        self._look_around()
        if 2 * len(self._ready) < self._choice.number_wanted(self.newest, len(self._ready)):
            began_s = self._board.monotonic()
            if await self._claim():
                self._claim_s += 0.3 * (self._board.monotonic() - began_s - self._claim_s)
        if self._board.monotonic() >= self._revisit_at_s:
            await self._revisit()
        for key in self._due():
            await self._say(key)

    def _look_around(self) -> None:
        """Who is there, how fast, and in which pass."""
        ours = self._around.trainers(self._plan.data, self._me)
        self._holders.pace = self._around.pace(ours, self._me, self._ledger.rates(self._board.now()))
        self._choice.look(self._board.now())
        others = sorted(record.data_pass for record in ours if record.peer != self._me)
        most = others[(len(others) - 1) // 2] if others else 0
        if most > self.newest:
            self._begin(most)
        elif self._coverage.is_complete(self.newest):
            self._begin(self.newest + 1)

    def _begin(self, pass_number: int) -> None:
        self.newest = pass_number
        self._coverage.of(pass_number)
        oldest = min(self._coverage.passes)
        self._holders.forget(oldest)
        self._choice.forget(oldest)
        self._said_s = {key: said_s for key, said_s in self._said_s.items() if key[0] >= oldest}
        self._unsaid = {key for key in self._unsaid if key[0] >= oldest}

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _claim(self) -> bool:
        """Get some leases; whether there are more than before."""
        if await self._claim_in(self.newest):
            return True
        if self._awaited is None and self._choice.is_contested(self.newest, self._board.now()):
            return False  # it is free again, or somebody's, in a moment; nobody waits so long
        self._begin(self.newest + 1)
        return await self._claim_in(self.newest)

    async def _revisit(self) -> None:
        """Look at the page, not all trained, that was read longest ago; take what is left of an older pass."""
        passes = sorted(number for number in self._coverage.passes if number <= self.newest)
        keys = [key for number in passes for key in self._choice.pages(number) if self._choice.untrained(key)]
        cost_bytes = 0
        if keys:
            key = min(keys, key=self._holders.read_at_s)
            if key[0] < self.newest:
                await self._claim_on(key)
            else:
                await self._read(key)
            cost_bytes = self._holders.num_entries(key) * ENTRY_BYTES
        rest_s = max(SHORTEST_REVISIT_S, cost_bytes / REVISIT_BYTES_PER_S)
        self._revisit_at_s = self._board.monotonic() + rest_s

    async def _claim_in(self, pass_number: int) -> bool:
        """On the first of our pages where a block of ours is free, else on the first where any is."""
        for key in self._choice.pages(pass_number):
            if self._choice.own(key, self._board.now()) and await self._claim_on(key, only_own=True):
                return True
        fruitless = 0
        for key in self._choice.pages(pass_number):
            is_worth_it = self._choice.untrained(key)
            while is_worth_it and fruitless < FRUITLESS_PAGES:
                if await self._claim_on(key):
                    return True
                fruitless += 1
                is_worth_it = self._choice.free(key, self._board.now())  # somebody wanted the same: the next best
        return False

    async def _claim_on(self, key: PageKey, *, only_own: bool = False) -> bool:
        """Claim free blocks of one page, and see whether they are ours; whether any is."""
        if self._board.now() - self._holders.read_at_s(key) >= FRESH_S:
            await self._read(key)
        await self._meet(key)
        number = max(self._choice.number_wanted(self.newest, len(self._ready)) - len(self._ready), 1)
        wanted = self._choice.best(key, self._board.now(), only_own=only_own)[:number]
        if not wanted:
            return False
        self._choice.held.update(wanted)
        try:
            await self._say(key)
            await self._read(key)
            await self._meet(key)
        except NetworkError:
            self._choice.held.difference_update(wanted)
            self._unsaid.add(key)
            raise
        taken = self._holders.held(key, self._board.now()) | self._coverage.of(key[0]).trained[key[1]]
        kept = [block for block in wanted if not block.bit & taken]
        self._ready.extend(kept)
        if kept and self._awaited is not None:
            self._awaited.set()
        if len(kept) < len(wanted):
            rest_s = self._board.random() * AGAIN_AFTER_CLAIMS * self._claim_s
            self._choice.contest(set(wanted) - set(kept), self._board.now() + rest_s)
            await self._say(key)
        return bool(kept)

    # -- the directory -------------------------------------------------------------------------------------------------

    async def _read(self, key: PageKey) -> None:
        self._holders.take_in(key, await self._board.read(key), self._board.now())
        trained = self._coverage.of(key[0]).trained[key[1]]
        for block in [block for block in self._ready if page_of(block) == key and block.bit & trained]:
            self._ready.remove(block)  # somebody trained it without a lease
            self._choice.held.discard(block)

    async def _meet(self, key: PageKey) -> None:
        """Learn who they are who claim blocks of a page that was read and did not seem to be there: their claims count
        from then on. Two that come at the same time would else hold the same blocks.
        """
        if self._holders.has_strangers(key):
            known = self._holders.pace.speeds.keys()
            await self._around.look()
            self._look_around()
            if self._holders.pace.speeds.keys() - known:
                await self._read(key)

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

    def _due(self) -> list[PageKey]:
        """Pages of which we should say something now."""
        now_s, renew_s = self._board.monotonic(), self._choice.life_s() / 3
        holding = {page_of(block) for block in self._choice.held}
        changed = {key for key in self._unsaid if now_s - self._said_s.get(key, now_s - MARKS_S) >= MARKS_S}
        old = {
            key
            for key, said_s in self._said_s.items()
            if now_s - said_s >= (renew_s if key in holding else KEPT_S / 3)
        }
        return sorted(changed | old)
