"""Who holds which blocks, as one reader sees it: what others say, as far as their word goes."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from collab.data.blocks import MAX_BLOCKS, BlockPlan, blocks_in
from collab.data.coverage import Coverage
from collab.data.lease_records import PageEntry
from collab.data.ledger import Ledger
from collab.types import PeerId

AHEAD_S = 30.0
"""Of work that a peer claims before it begins it: some heartbeats, and little to give up when it dies."""
SPARE_BLOCKS, SPARE_SHARDS = 2, 4
"""That any trainer may hold: the one that it trains, and the next; of shards also one whose end waits for its step, and
one that is being read."""
SLACK = 2.0
"""A peer may hold so many times what it needs: its reader knows its speed and the length of a step by and large."""
PATIENCE = 3.0
"""Times what a block should take from its claim to the step it is in; then its holder has had it for long enough."""
SHORTEST_PATIENCE_S = 60.0
"""A round that is lost, and some more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast everybody is, as far as it is believed."""

    speeds: Mapping[PeerId, float] = field(default_factory=dict)
    """Samples per second of each trainer that is there."""
    usual: float = 0.0
    """Of a trainer of whom we know only that there are more; 0: who is missing above is not there and holds nothing."""
    num_unknown: int = 0
    """Of these."""
    step_s: float = 0.0
    """Expected seconds between two steps: so long may what is computed wait for its commit."""

    def speed_of(self, peer: PeerId) -> float | None:
        """Samples per second; None: it is not there."""
        return self.speeds.get(peer, self.usual or None)

    @property
    def trainers(self) -> int:
        """Who is there."""
        return len(self.speeds) + self.num_unknown

    @property
    def together(self) -> float:
        """Samples per second of all."""
        return max(math.fsum(self.speeds.values()) + self.num_unknown * self.usual, 1e-9)

    def most_blocks(self, peer: PeerId, plan: BlockPlan, slack: float = SLACK) -> int:
        """What ``peer`` may hold at once: work for ``AHEAD_S`` and for what waits for its step, and no more than its
        share of two passes: at the end of one the next has begun.
        """
        speed = self.speed_of(peer)
        if speed is None:
            return 0
        needed = speed * (AHEAD_S + self.step_s) / plan.block_samples
        share = 2 * plan.num_blocks * speed / self.together
        spare = SPARE_BLOCKS if plan.num_samples is not None else SPARE_SHARDS
        return spare + math.ceil(slack * min(needed, share, MAX_BLOCKS))

    def patience_s(self, peer: PeerId, plan: BlockPlan) -> float:
        """For how long ``peer`` may hold one block."""
        speed = self.speed_of(peer) or 0.0
        block_s = plan.block_samples / speed if speed > 0 else 0.0
        return max(SHORTEST_PATIENCE_S, PATIENCE * (AHEAD_S + self.step_s + block_s))


PageKey = tuple[int, int]
"""Pass and page."""


@dataclass(slots=True)
class _Word:
    """What one peer said of one page, and what of it counts."""

    entry: PageEntry
    proven: int = 0
    """Blocks of which it is believed that this peer has trained them."""
    waiting: int = 0
    """Blocks that it says it has trained, and that are in the line of what is to be proven."""
    granted: dict[int, float] = field(default_factory=dict)
    """Blocks of which it is believed that it holds them, and since when."""
    lapsed: int = 0
    """Blocks that it has held for too long, and never holds again."""
    is_there: bool = True
    """Whether it was there when the page was read last."""


@dataclass(slots=True)
class _Allowance:
    """Blocks that one peer may still claim: a bucket that fills as fast as the peer can train, and by what it has."""

    blocks: float
    at_s: float
    proven: int = 0
    """Blocks that it has trained."""
    lapsed: int = 0
    """Blocks that it has held for too long; whoever has more of these than of the others gets no more."""


class Holders:
    """What all others hold and have trained, by the pages that were read."""

    def __init__(self, me: PeerId, coverage: Coverage, ledger: Ledger) -> None:
        self._me, self._plan, self._coverage, self._ledger = me, coverage.plan, coverage, ledger
        self.pace = Pace()
        self._read_s: dict[PageKey, float] = {}
        self._words: dict[PageKey, dict[PeerId, _Word]] = {}
        self._allowances: dict[PeerId, _Allowance] = {}
        self._lines: dict[PeerId, deque[tuple[PageKey, int]]] = {}
        """Bits of what each peer says it has trained, in the order in which we heard of it, until it is proven."""

    def read_at_s(self, key: PageKey) -> float:
        """When a page was read last; -inf: never."""
        return self._read_s.get(key, -math.inf)

    def num_entries(self, key: PageKey) -> int:
        """How many peers have said something of a page."""
        return len(self._words.get(key, ()))

    def take_in(self, key: PageKey, entries: Mapping[PeerId, PageEntry], now: float) -> None:
        """A page was read: believe what can be believed of what others have trained, and hold."""
        self._read_s[key] = now
        words = self._words.setdefault(key, {})
        for peer in words.keys() - entries.keys():
            words[peer].is_there = False
            words[peer].granted.clear()
        for peer in sorted(entries):
            if peer == self._me:
                self._remember_ourselves(key, entries[peer])
                continue
            word = words.setdefault(peer, _Word(entries[peer]))
            word.entry, word.is_there = entries[peer], True
            self._line_up(key, peer, word)
            self._prove(peer)
            self._grant(key, peer, word, now)

    def held(self, key: PageKey, now: float) -> int:
        """Bits of the blocks of a page that others hold, when it was read last."""
        bits = 0
        for peer, word in self._words.get(key, {}).items():
            if self.pace.speed_of(peer) is not None:
                counts = self._asked(key, word, now)
                bits |= counts & sum(map(self._bit, word.granted))
        return bits

    def has_strangers(self, key: PageKey) -> bool:
        """Whether somebody claims blocks of a page who does not seem to be there: perhaps it has just come."""
        return any(
            word.is_there and word.entry.held and self.pace.speed_of(peer) is None
            for peer, word in self._words.get(key, {}).items()
        )

    def forget(self, oldest_pass: int) -> None:
        """Nothing about passes before ``oldest_pass`` is wanted any more."""
        self._read_s = {key: at_s for key, at_s in self._read_s.items() if key[0] >= oldest_pass}
        self._words = {key: words for key, words in self._words.items() if key[0] >= oldest_pass}
        self._allowances = {peer: left for peer, left in self._allowances.items() if self.pace.speed_of(peer)}
        lines = {peer: deque(word for word in line if word[0][0] >= oldest_pass) for peer, line in self._lines.items()}
        self._lines = {peer: line for peer, line in lines.items() if line}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bit(self, block: int) -> int:
        return 1 << block % self._plan.page_blocks

    def _unproven(self, key: PageKey, word: _Word) -> int:
        """What a peer says it has trained, and it is not believed yet."""
        known = word.proven | self._coverage.of(key[0]).assumed[key[1]]
        return word.entry.trained & ~known & self._plan.full_page(key[1])

    def _asked(self, key: PageKey, word: _Word, now: float) -> int:
        """What nobody else should train: claims that hold, and what was trained, however long ago that was said: of a
        page that it has done its author says nothing more.
        """
        claimed = word.entry.held if word.entry.is_live(now) else 0
        return (claimed | self._unproven(key, word)) & self._plan.full_page(key[1])

    def _line_up(self, key: PageKey, peer: PeerId, word: _Word) -> None:
        new = self._unproven(key, word) & ~word.waiting
        if new:
            word.waiting |= new
            self._lines.setdefault(peer, deque()).append((key, new))

    def _prove(self, peer: PeerId) -> None:
        """A peer has trained what it says, as far as committed rounds show samples of it; the oldest word first.

        Whatever page it is on: we may have seen less of a peer than it has done, for good (after a restart of everybody
        we know of rounds until we last wrote). All its marks are then late by as much, and none is left for ever.
        """
        line = self._lines.get(peer, deque())
        while line:
            key, bits = line.popleft()
            word = self._words.get(key, {}).get(peer)
            if word is not None and (left := self._prove_on(key, peer, word, bits)):
                line.appendleft((key, left))
                break

    def _prove_on(self, key: PageKey, peer: PeerId, word: _Word, bits: int) -> int:
        """Believe what was paid for of one word; bits of what was not."""
        left = bits
        for block in blocks_in(bits, key[1]):
            if self._unproven(key, word) & self._bit(block):
                samples = self._plan.proof_samples(block)
                if not self._ledger.can_pay(peer, samples, self._plan.proof_samples(0)):
                    break
                self._ledger.pay(peer, samples)
                self._believe(key, peer, word, block)
            left &= ~self._bit(block)
            word.waiting &= ~self._bit(block)
        return left

    def _believe(self, key: PageKey, peer: PeerId, word: _Word, block: int) -> None:
        word.proven |= self._bit(block)
        if peer in self._allowances:
            self._allowances[peer].proven += 1
            self._allowances[peer].blocks += word.granted.pop(block, None) is not None
        self._coverage.note(key[0], key[1], self._bit(block))

    def _grant(self, key: PageKey, peer: PeerId, word: _Word, now: float) -> None:
        """A peer holds what it says, and what it says it has trained, as far and as long as it can work on it.

        A grant lasts while the peer asks for it; who asks for more than it can train is granted what it can.
        """
        asked = (word.entry.held | self._unproven(key, word)) & self._plan.full_page(key[1])
        patience_s = self.pace.patience_s(peer, self._plan)
        for block, since_s in list(word.granted.items()):
            if now - since_s > patience_s:
                word.lapsed |= self._bit(block)
                if peer in self._allowances:
                    self._allowances[peer].lapsed += 1
            if word.lapsed & self._bit(block):
                del word.granted[block]
            elif not asked & self._bit(block):  # given up: two had claimed it at once
                del word.granted[block]
                if peer in self._allowances:
                    self._allowances[peer].blocks += 1
        if self.pace.speed_of(peer) is None:
            return
        allowance = self._allowance(peer, now)
        for block in blocks_in(self._asked(key, word, now) & ~word.lapsed, key[1]):
            if block not in word.granted and allowance.blocks >= 1:
                allowance.blocks -= 1
                word.granted[block] = now

    def _allowance(self, peer: PeerId, now: float) -> _Allowance:
        most = float(self.pace.most_blocks(peer, self._plan))
        left = self._allowances.setdefault(peer, _Allowance(most, now))
        is_working = left.lapsed <= left.proven + SPARE_BLOCKS
        per_s = SLACK * (self.pace.speed_of(peer) or 0.0) / self._plan.block_samples if is_working else 0.0
        left.blocks = min(left.blocks + per_s * max(0.0, now - left.at_s), most)
        left.at_s = now
        return left

    def _remember_ourselves(self, key: PageKey, entry: PageEntry) -> None:
        """What we have trained in an earlier life, if our disk has forgotten it."""
        known = self._coverage.of(key[0])
        bits = entry.trained & ~known.ours[key[1]] & self._plan.full_page(key[1])
        known.ours[key[1]] |= bits
        known.trained[key[1]] |= bits
