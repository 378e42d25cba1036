"""Leases: each peer claims blocks of the pass before it trains them, so that all together train each sample once.

A claim is a word in the directory that expires. Whoever wants blocks reads the page that they are on, says which of the
free ones it takes, and reads again: blocks that anybody else claims by then it gives up at once. Of two that claim the
same block the one that said so later sees the other, so never do both keep it; when both give it up, it is free again.
"""

import asyncio
import logging
from contextlib import suppress

from collab.data.blocks import BlockId
from collab.data.choosing import Choice
from collab.data.claiming import Claims
from collab.data.coverage import Coverage
from collab.data.holders import Holders
from collab.data.lease_board import LeaseBoard
from collab.data.lease_records import ENTRY_BYTES
from collab.data.ledger import Ledger
from collab.data.pace import KNOWN_S
from collab.data.surroundings import Surroundings
from collab.errors import NetworkError
from collab.swarm.progress import SwarmView

logger = logging.getLogger(__name__)

SHORTEST_REVISIT_S, PAGES_REVISITED = 5.0, 8
REVISIT_BYTES_PER_S, MANY = 400.0, 20
"""How often pages are looked at that we want nothing of, to see how far others are, and whether somebody has died that
held blocks of an older pass: the rarer, the more is said of them, and the more there are who look."""
PASSES_A_CLAIM = 3
"""That are looked through for blocks, one after the other, while the trainer waits; two while it does not."""
CLAIMS_COVERED = 3.0
"""Claims' time for which there is work in hand."""
RETRY_S = 5.0
"""When the directory does not answer, it is asked again so much later."""
TICK_S = 1.0
"""Between two looks at what is due."""
SHORTEST_PATIENCE_S = 0.3
RECKON_S = KNOWN_S
"""Between two times that speeds are reckoned while nobody has said anything new, and no round has committed: what the
rounds before have shown counts for less and less."""


class Leases:
    """The blocks that one peer holds. One task runs it; one other takes blocks, and says when they are done."""

    def __init__(self, board: LeaseBoard, coverage: Coverage, ledger: Ledger, surroundings: Surroundings) -> None:
        self._board, self._coverage, self._ledger, self._around = board, coverage, ledger, surroundings
        self._plan, self._me = board.plan, board.me
        self._holders = Holders(self._me, coverage, ledger, surroundings.is_behind)
        self._choice = Choice(self._me, coverage, self._holders)
        self._claims = Claims(board, coverage, self._holders, self._choice, self._meet)
        self._talk = self._claims.talk
        self._revisit_at_s = board.monotonic() + SHORTEST_REVISIT_S
        self._looks = 0
        """At pages that we wanted nothing of."""
        self._failed_s = board.monotonic() - RETRY_S
        self._is_silent = False
        """Whether the directory did not answer when it was asked last: a trainer waits for no claim until it does."""
        self._wanted = asyncio.Event()
        self._is_awaited = False
        """Whether the trainer waits for a lease."""
        self._attending, self._is_closed = asyncio.Lock(), False
        self.newest = max(coverage.passes, default=0)
        """The pass that we claim blocks of; of those before only what is left."""
        coverage.of(self.newest)
        self.unleased = 0
        """Blocks that were taken without a lease."""
        self._unleased: set[BlockId] = set()
        self._reckoned: tuple[SwarmView, int, float] | None = None
        """From what, of how many changes of the ledger, and when (swarm time) it was reckoned how fast everybody is."""
        self._usual_pass = 0
        """Of the others."""

    # -- the trainer's side --------------------------------------------------------------------------------------------

    async def next_block(self) -> BlockId:
        """A block to train now: a lease if there is one, or comes as soon as leases usually do; else one that should be
        ours, without a lease, for training never stops.
        """
        if not self._claims.ready:
            self._is_awaited = True
            self._claims.arrived.clear()
            self._wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._claims.arrived.wait()
            self._is_awaited = False
        block = self._claims.ready.popleft() if self._claims.ready else self._without_lease()
        self._wanted.set()
        return block

    def done(self, block: BlockId) -> None:
        """All samples of a block are in steps."""
        self._choice.held.discard(block)
        self._coverage.note_ours(block)
        self._talk.note(block)
        self._around.note_trained(block, block not in self._unleased)
        self._unleased.discard(block)

    def give_up(self, block: BlockId) -> None:
        """A block gave us nothing finite; somebody else may have more luck."""
        self._choice.held.discard(block)
        self._choice.left.add(block)
        self._unleased.discard(block)
        self._talk.note(block)

    def give_back(self, block: BlockId) -> None:
        """What was computed of a block is worth nothing any more; whoever comes first may train it again."""
        self._choice.held.discard(block)
        self._unleased.discard(block)
        self._talk.note(block)

    async def close(self) -> None:
        """Say that we hold nothing any more.

        Raises:
            NetworkError: the directory does not answer; our claims then end by themselves.
        """
        async with self._attending:
            self._is_closed = True
            pages = self._choice.held.pages | self._talk.unsaid
            self._choice.held.clear()
            self._claims.ready.clear()
            await self._talk.say(pages)

    def _patience_s(self) -> float:
        """For a claim that is under way."""
        self._look_around()
        if self._is_silent or not self._claims.may_arrive:
            return 0.0
        return max(SHORTEST_PATIENCE_S, 3 * self._claims.claim_s)

    def _without_lease(self) -> BlockId:
        if not self._holders.pace.speeds:
            self._look_around()
        while (block := self._choice.without_lease(self.newest, self._board.now())) is None:
            self._begin(self.newest + 1)
        self._choice.hold([block])
        self._talk.hurry(block)
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
                    self._is_silent = False
            except NetworkError as error:
                self._failed_s, self._is_silent = self._board.monotonic(), True
                self._claims.arrived.set()  # nothing will
                logger.info("leases: the directory does not answer; training goes on without: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wanted.wait()

    async def _attend(self) -> None:
        if self._is_closed:
            return
        self._look_around()
        await self._look_ahead()
        in_hand = self._claims.in_hand(self.newest)
        if 2 * in_hand < self._choice.number_wanted(self.newest, in_hand):
            began_s = self._board.monotonic()
            if await self._claim():
                self._note_claim(began_s)
        if self._board.monotonic() >= self._revisit_at_s:
            await self._revisit()
        await self._talk.say(self._talk.due())

    def _look_around(self) -> None:
        """Who is there, how fast, and in which pass."""
        now = self._board.now()
        if self._has_news(now):
            ours = self._around.trainers(self._plan.data, self._me)
            self._holders.look(self._around.pace(ours, self._me, self._ledger.rates(now)), now)
            others = sorted(record.data_pass for record in ours if record.peer != self._me)
            self._usual_pass = others[(len(others) - 1) // 2] if others else 0
        self._choice.look(now)
        self._claims.shed()
        if self._usual_pass > self.newest:
            self._begin(self._usual_pass)
        elif self._coverage.is_complete(self.newest):
            self._begin(self.newest + 1)

    def _has_news(self, now: float) -> bool:
        """Whether anybody may be faster or slower than when it was reckoned last: in a crowd that is seldom so."""
        view, changes = self._around.view(), self._ledger.changes
        if self._reckoned is not None:
            seen, known, at_s = self._reckoned
            if seen is view and known == changes and (not changes or now - at_s < RECKON_S):
                return False
        self._reckoned = view, changes, now
        return True

    def _begin(self, pass_number: int) -> None:
        self.newest = pass_number
        self._coverage.of(pass_number)
        oldest = min(self._coverage.passes)
        self._holders.forget(oldest, self._board.now())
        self._choice.forget(oldest)
        self._talk.forget(oldest)

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _claim(self) -> bool:
        """Get some leases; whether there are more than before."""
        for passes in range(PASSES_A_CLAIM):
            if passes:
                self._begin(self.newest + 1)
            if await self._claims.claim_in(self.newest, self._look_ahead):
                return True
            if not self._is_awaited and (passes or self._choice.is_contested(self.newest, self._board.now())):
                break  # it is free again, or somebody's, in a moment; nobody waits so long
            if not self._claims.number(self.newest):
                break  # it was not looked for
        return False

    async def _look_ahead(self) -> None:
        """Near the end of a pass claims are small, and some in vain: what is trained meanwhile is of the next one; of
        the one after that where all of ours is claimed there, and others still share out the last of this one.
        """
        work_s = CLAIMS_COVERED * self._claims.claim_s
        for number in (self.newest + 1, self.newest + 2):
            short = self._choice.number_short(self.newest, len(self._claims.ready), work_s, self._board.now())
            began_s = self._board.monotonic()
            if short > 0 and await self._claims.claim_own(number, short):
                self._note_claim(began_s)

    def _note_claim(self, began_s: float) -> None:
        """There are more leases, and this is how long they took."""
        self._claims.claim_s += 0.3 * (self._board.monotonic() - began_s - self._claims.claim_s)

    async def _revisit(self) -> None:
        """Look at the pages, not all trained, that were read longest ago; take what is left of an older pass."""
        passes = sorted(number for number in self._coverage.passes if number <= self.newest)
        keys = [key for number in passes for key in self._choice.pages(number) if self._choice.untrained(key)]
        older = [key for key in keys if key[0] < self.newest]
        self._looks += 1
        chosen = sorted(older if older and self._looks % 4 else keys, key=self._holders.read_at_s)[:PAGES_REVISITED]
        await self._claims.read(chosen, roughly=True)
        left = [key for key in chosen if key[0] < self.newest and self._choice.free(key, self._board.now())]
        if left:
            await self._claims.claim_on(left, self._claims.number(self.newest))
        cost_bytes = ENTRY_BYTES * sum(1 + self._holders.num_entries(key) for key in chosen)
        rest_s = cost_bytes * (1 + self._holders.pace.trainers / MANY) / REVISIT_BYTES_PER_S
        rest_s = max(SHORTEST_REVISIT_S, rest_s)
        self._revisit_at_s = self._board.monotonic() + rest_s

    async def _meet(self) -> bool:
        """Learn who is there; whether somebody is whom we did not know."""
        known = self._holders.pace.speeds.keys()
        await self._around.look()
        self._look_around()
        return bool(self._holders.pace.speeds.keys() - known)
