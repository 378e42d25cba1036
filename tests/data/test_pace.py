"""How many blocks a peer may claim: as it reckons itself, and as everybody else reckons it."""

import random
from collections import deque
from dataclasses import replace

import pytest

from collab.data.block_set import page_of
from collab.data.blocks import PAGE_BLOCKS, BlockId, BlockPlan
from collab.data.choosing import Choice
from collab.data.coverage import Coverage
from collab.data.holders import Holders, PageKey
from collab.data.lease_records import Page, PageEntry
from collab.data.ledger import Ledger
from collab.data.pace import KNOWN_S, SLACK, Lately, Pace
from collab.data.page_talk import MARKS_S
from collab.types import PeerId

ME, OTHER, THIRD = PeerId("me"), PeerId("other"), PeerId("third")
PLAN = BlockPlan.of(600 * 8, digest="a" * 32, seed=0, microbatch_size=8)
LARGE = BlockPlan.of(4000 * 800, digest="a" * 32, seed=0, microbatch_size=8)
LATE_READERS = (27, 31, 33, 46, 67, 72, 75, 78)
"""Histories in which old words, read late, took the room of new ones when they counted in full."""
LAG_S = KNOWN_S / 2 - 0.5
"""Between what a peer says of its speed and the moment when another one has read it."""


def test_a_number_is_remembered_for_as_long_as_somebody_may_not_have_heard_of_its_change() -> None:
    number = Lately()
    for now, value in ((0.0, 5.0), (1.0, 3.0), (2.0, 4.0)):
        number.note(now, value)
    assert (number.least, number.most) == (3.0, 5.0)
    number.note(1.0 + KNOWN_S, 4.0)
    assert (number.least, number.most) == (3.0, 4.0)
    number.note(2.0 + KNOWN_S, 4.0)
    assert (number.least, number.most) == (4.0, 4.0)


def test_in_a_crowd_a_fast_peer_claims_no_more_than_those_grant_it_who_know_it_by_number() -> None:
    mine = Pace(speeds={ME: 400.0, OTHER: 8.0, THIRD: 8.0}, usual=8.0, num_unknown=900, step_s=60.0)
    theirs = Pace(speeds={OTHER: 8.0, THIRD: 8.0}, usual=8.0, num_unknown=901, step_s=60.0)
    assert 2 < mine.surely_granted(ME, LARGE) <= theirs.most_blocks(ME, LARGE)
    assert mine.most_blocks(ME, LARGE) > 4 * theirs.most_blocks(ME, LARGE), "as those believe who know its speed"


def test_in_a_crowd_who_has_shown_in_rounds_that_it_is_fast_may_claim_as_much_as_it_needs() -> None:
    shown = {ME: 300.0}
    mine = Pace(speeds={ME: 400.0, OTHER: 8.0}, usual=8.0, num_unknown=900, step_s=60.0, shown=shown)
    theirs = Pace(speeds={OTHER: 8.0, THIRD: 8.0}, usual=8.0, num_unknown=900, step_s=60.0, shown=shown)
    assert mine.surely(ME) == theirs.speed_of(ME) == 300.0
    assert 20 < mine.surely_granted(ME, LARGE) <= theirs.most_blocks(ME, LARGE)
    assert Pace(speeds={OTHER: 8.0}, shown=shown).speed_of(ME) is None, "where all are known it is not there"


def test_newcomers_take_nothing_from_what_those_are_granted_who_have_shown_something() -> None:
    alone = Pace(speeds={ME: 1000.0}, step_s=5.0)
    newcomers = {OTHER: 1000.0, THIRD: 1000.0}  # they pass for as fast as most
    theirs = Pace(
        speeds=alone.speeds | newcomers, unsaid=frozenset(newcomers), shown={ME: 900.0}, step_s=5.0
    )
    assert PLAN.num_blocks < alone.surely_granted(ME, PLAN) <= theirs.most_blocks(ME, PLAN)
    assert replace(theirs, shown={}).most_blocks(ME, PLAN) < alone.surely_granted(ME, PLAN), "as of any other one"


def test_who_has_not_said_how_fast_it_is_claims_half_of_what_anybody_is_granted() -> None:
    pace = Pace(speeds={ME: 1000.0, OTHER: 1000.0}, unsaid=frozenset({ME}), step_s=5.0)
    assert SLACK * pace.surely_granted(ME, PLAN) == pace.most_blocks(ME, PLAN) == PAGE_BLOCKS
    short = BlockPlan.of(40 * 8, digest="a" * 32, seed=0, microbatch_size=8)
    assert pace.most_blocks(ME, short) == short.num_blocks // 4, "half of an equal share"


def test_who_is_found_to_be_slower_gives_up_what_nobody_would_grant_it_any_more() -> None:
    choice, holders = choice_of(Ledger(most_per_round=1000.0))
    holders.look(Pace(speeds={ME: 8.0, OTHER: 8.0}, step_s=10.0), 0.0)
    choice.look(0.0)
    choice.hold([BlockId(0, block) for block in range(choice.room)])
    assert not choice.room
    assert not choice.is_beyond
    holders.look(Pace(speeds={ME: 0.8, OTHER: 8.0}, step_s=10.0), 1.0)
    choice.look(1.0)
    assert choice.is_beyond
    while choice.is_beyond:
        choice.held.pop()
    assert len(choice.held) == SLACK * holders.pace.surely_granted(ME, PLAN)


def choice_of(ledger: Ledger) -> tuple[Choice, Holders]:
    coverage = Coverage(PLAN)
    holders = Holders(ME, coverage, ledger)
    return Choice(ME, coverage, holders), holders


class Pair:
    """One that claims as much as it may, and one that reads of it now and then, and hears of each round one later."""

    def __init__(self, seed: int) -> None:
        self._rng, self.now = random.Random(seed), 1000.0
        self._ledger, self._reader_ledger = Ledger(most_per_round=1e6), Ledger(most_per_round=1e6)
        self._choice, self._holders = choice_of(self._ledger)
        self._reader = Holders(OTHER, Coverage(PLAN), self._reader_ledger)
        self._speeds = {ME: 0.0, OTHER: 0.0, THIRD: 0.0}
        self._said = {peer: deque([(0.0, 0.0)]) for peer in self._speeds}
        self._free = deque(BlockId(0, block) for block in self._rng.sample(range(PLAN.num_blocks), PLAN.num_blocks))
        self._trained: dict[PageKey, int] = {}
        self._words: dict[PageKey, PageEntry] = {}
        """What it said of pages last: of what it has trained since then it says nothing for a while."""
        self._unheard: tuple[str, float] | None = None
        self._rounds = 0
        self.claimed = 0

    def step(self) -> None:
        """Some of what may happen, happens."""
        self.now += self._rng.choice((0.01, 0.1, 0.5))
        if self._rng.random() < 0.1 and self.now > 1000.0 + KNOWN_S:
            peer = self._rng.choice(list(self._speeds))
            self._speeds[peer] = self._rng.choice((2.0, 8.0, 30.0, 1000.0))
            self._said[peer].append((self.now, self._speeds[peer]))
        self._holders.look(self._pace(ME), self.now)
        self._reader.look(self._pace(OTHER), self.now)
        self._choice.look(self.now)
        if self._choice.is_beyond:
            for block in sorted(self._choice.held, key=lambda one: one.block)[: len(self._choice.held) // 2]:
                self._choice.held.discard(block)
                self._say(page_of(block))
        for key in [key for key, word in self._words.items() if self.now - word.said_at >= MARKS_S]:
            self._say(key)
        for _ in range(self._rng.choice((0, 1, self._choice.most_granted))):
            if self._choice.most_granted and self._free:
                block = self._free.popleft()
                self._choice.hold([block])
                self._say(page_of(block))
                self.claimed += 1
        if self._rng.random() < 0.3:
            self._commit()

    def refused(self) -> set[BlockId]:
        """Blocks that the reader would not leave to the other one, if it read all pages now; it reads some."""
        pages = sorted(self._words)
        for key in self._rng.sample(pages, min(self._rng.choice((0, 1, 2, 8)), len(pages))):
            self._reader.take_in(key, {ME: self._words[key]}, self.now)
        return {
            block
            for block in self._choice.held
            if self._reader.read_at_s(page_of(block)) == self.now
            and not self._reader.held(page_of(block), self.now) & block.bit
        }

    def _pace(self, reader: PeerId) -> Pace:
        """What ``reader`` knows of speeds: its own at once."""
        known = {}
        for peer, said in self._said.items():
            late_s = 0.0 if peer == reader else LAG_S
            known[peer] = [speed for at_s, speed in said if at_s <= self.now - late_s][-1] or 2.0
        return Pace(speeds=known, step_s=5.0)

    def _commit(self) -> None:
        used = {block for block in self._choice.held if self._rng.random() < 0.7}
        self._rounds += 1
        told = f"{self._rounds}", 8.0 * len(used)
        if self._unheard is not None:
            self._reader_ledger.note_round(self._unheard[0], [(ME, self._unheard[1])], self.now)
        self._ledger.note_round(told[0], [(ME, told[1])], self.now)
        self._unheard = told
        for block in used:
            self._choice.held.discard(block)
            self._trained[page_of(block)] = self._trained.get(page_of(block), 0) | block.bit

    def _say(self, key: PageKey) -> None:
        page = Page(fingerprint="f", data=PLAN.data, pass_number=0, page=key[1])
        trained, held = self._trained.get(key, 0), self._choice.held_on(key)
        self._words[key] = PageEntry(page=page, said_at=self.now, life_s=600.0, held=held, trained=trained)


@pytest.mark.parametrize("seed", [*range(12), *LATE_READERS])
def test_whatever_a_peer_claims_is_granted_by_who_reads_it_at_any_time_and_hears_of_rounds_late(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(600):
        pair.step()
        assert pair.refused() == set(), f"at {pair.now - 1000.0:.2f} s"
    assert pair.claimed > 300
