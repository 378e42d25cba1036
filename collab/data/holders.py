"""Who holds which blocks, as one reader sees it: what others say, as far as their word goes."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collab.data.blocks import blocks_in
from collab.data.coverage import Coverage
from collab.data.lease_records import PageEntry
from collab.data.ledger import Ledger
from collab.data.pace import SLACK, SPARE_BLOCKS, Claimed, Lately, Pace
from collab.types import PeerId

PageKey = tuple[int, int]
"""Pass and page."""
FORGOTTEN_S = 600.0
"""Whose word was gone for so long is a stranger when it comes again; as long after it was read last a page that is done
is read by nobody any more.
"""


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
    gone_since_s: float | None = None
    """When the page was read without it for the first time; None: it was there when it was read last."""


@dataclass(slots=True)
class _Known:
    """What we know of one peer, whatever page it speaks of."""

    since: float
    """Blocks that rounds had shown of it when we came to know it, or what it had claimed."""
    most: Lately = field(default_factory=Lately)
    """Blocks that it may hold, as we believed lately: it may not know yet why we believe less now."""
    shown: Lately = field(default_factory=Lately)
    """Blocks that rounds have shown of it: we may not have heard of the last one yet."""
    claimed: Claimed | None = None
    """None: it has not claimed anything."""
    proven: int = 0
    """Blocks that it has trained."""
    lapsed: int = 0
    """Blocks that it has held for too long."""

    @property
    def is_working(self) -> bool:
        """Whoever has more blocks that lapsed than blocks that it has trained gets no more with time."""
        return self.lapsed <= self.proven + SPARE_BLOCKS


class Holders:
    """What all others hold and have trained, by the pages that were read."""

    def __init__(
        self, me: PeerId, coverage: Coverage, ledger: Ledger, is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """
        Args:
            is_behind: whether we may have missed rounds. Then all claims count: what makes room for them is not known.
        """
        self._me, self._plan, self._coverage, self._ledger = me, coverage.plan, coverage, ledger
        self._is_behind, self.pace = is_behind, Pace()
        self._read_s: dict[PageKey, float] = {}
        self._words: dict[PageKey, dict[PeerId, _Word]] = {}
        self._known: dict[PeerId, _Known] = {}
        self._lines: dict[PeerId, deque[tuple[PageKey, int]]] = {}
        """Bits of what each peer says it has trained, in the order in which we heard of it, until it is proven."""

    def look(self, pace: Pace, now: float) -> None:
        """So fast everybody is found to be now."""
        self.pace = pace
        for peer in pace.speeds:
            known, shown = self._of(peer), self.shown_blocks(peer)
            known.most.note(now, pace.most_blocks(peer, self._plan))
            known.shown.note(now, shown)
            if self._is_behind():
                known.since = shown

    def shown_blocks(self, peer: PeerId) -> float:
        """Blocks' worth of samples that rounds have shown of a peer."""
        return self._ledger.total(peer) / self._plan.proof_samples(0)

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
            self._miss(key, peer, words[peer], now)
        for peer in sorted(entries):
            if peer == self._me:
                self._remember_ourselves(key, entries[peer])
                continue
            word = words.setdefault(peer, _Word(entries[peer]))
            word.entry, word.gone_since_s = entries[peer], None
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
            word.gone_since_s is None and word.entry.held and self.pace.speed_of(peer) is None
            for peer, word in self._words.get(key, {}).items()
        )

    def forget(self, oldest_pass: int, now: float) -> None:
        """Nothing about passes before ``oldest_pass`` is wanted any more, nor who has trained pages long done."""
        self._read_s = {key: at_s for key, at_s in self._read_s.items() if key[0] >= oldest_pass}
        self._words = {key: words for key, words in self._words.items() if key[0] >= oldest_pass}
        self._known = {peer: known for peer, known in self._known.items() if self.pace.speed_of(peer)}
        for key, words in self._words.items():
            if now - self.read_at_s(key) > FORGOTTEN_S and self._is_done(key):
                for peer in list(words):
                    self._let_go(key, peer)
        lines = {peer: deque(word for word in line if word[0][0] >= oldest_pass) for peer, line in self._lines.items()}
        self._lines = {peer: line for peer, line in lines.items() if line}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _of(self, peer: PeerId) -> _Known:
        known = self._known.get(peer)
        if known is None:
            known = self._known[peer] = _Known(self.shown_blocks(peer))
        return known

    def _miss(self, key: PageKey, peer: PeerId, word: _Word, now: float) -> None:
        """A page was read, and what ``peer`` had said is gone; it may be at work elsewhere, and proven there."""
        self._take_back(peer, word, list(word.granted))
        is_over = self.pace.speed_of(peer) is None or not self._unproven(key, word)
        if word.gone_since_s is None:
            word.gone_since_s = now
        elif is_over and now - word.gone_since_s > FORGOTTEN_S:
            self._let_go(key, peer)

    def _let_go(self, key: PageKey, peer: PeerId) -> None:
        """Of what a peer has trained only remains that it is trained; else there are more words with each who comes."""
        self._coverage.of(key[0]).assumed[key[1]] |= self._words[key].pop(peer).proven

    def _is_done(self, key: PageKey) -> bool:
        return self._coverage.of(key[0]).trained[key[1]] == self._plan.full_page(key[1])

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
        word.granted.pop(block, None)
        if peer in self._known:
            self._known[peer].proven += 1
        self._coverage.note(key[0], key[1], self._bit(block))

    def _grant(self, key: PageKey, peer: PeerId, word: _Word, now: float) -> None:
        """A peer holds what it says, and what it says it has trained, as far and as long as it can work on it.

        A grant lasts while the peer asks for it; who asks for more than it can train is granted what it can.
        """
        asked = (word.entry.held | self._unproven(key, word)) & self._plan.full_page(key[1])
        patience_s = self.pace.patience_s(peer, self._plan)
        known = self._of(peer)
        for block, since_s in list(word.granted.items()):
            if now - since_s > patience_s:
                word.lapsed |= self._bit(block)
                known.lapsed += 1
                del word.granted[block]
        self._take_back(peer, word, [block for block in word.granted if not asked & self._bit(block)])
        if self.pace.speed_of(peer) is None:
            return
        claims = blocks_in(self._asked(key, word, now) & ~word.lapsed, key[1])
        new = [block for block in claims if block not in word.granted]
        if known.is_working and self._is_behind():
            known.claimed = None  # counted anew from when it is known what makes room
            word.granted |= dict.fromkeys(new, now)
            return
        most = max(self.pace.most_blocks(peer, self._plan), known.most.most) + known.shown.last_rise
        claimed = self._settled(peer, known, now, most)
        granted = new[: max(int(most - claimed.blocks), 0)]
        claimed.blocks += len(granted)
        word.granted |= dict.fromkeys(granted, now)

    def _take_back(self, peer: PeerId, word: _Word, blocks: list[int]) -> None:
        """Given up: two had claimed them at once. Or nothing is heard of them any more."""
        for block in blocks:
            del word.granted[block]
        known = self._known.get(peer)
        if known is not None and known.claimed is not None:
            known.claimed.less(len(blocks))

    def _settled(self, peer: PeerId, known: _Known, now: float, most: float) -> Claimed:
        """What a peer has claimed, as of now.

        A page that it has done still says for a while that it holds all of it, and may be read only then. As many
        blocks as it has trained since we know it, and not said which, may be such ones.

        Args:
            most: blocks that it may hold; so many claims may have been overlooked.
        """
        shown = self.shown_blocks(peer)
        per_s, unread = 0.0, 0.0
        if known.is_working:
            per_s = SLACK * (self.pace.speed_of(peer) or 0.0) / self._plan.block_samples
            unread = min(shown - known.since, self._ledger.unspent(peer) / self._plan.proof_samples(0), most)
            unread = max(unread, 0.0)
        if known.claimed is None:
            known.claimed = Claimed(-unread, now, shown)
        known.claimed.settle(now, shown, per_s=per_s, unread=unread)
        return known.claimed

    def _remember_ourselves(self, key: PageKey, entry: PageEntry) -> None:
        """What we have trained in an earlier life, if our disk has forgotten it."""
        known = self._coverage.of(key[0])
        bits = entry.trained & ~known.ours[key[1]] & self._plan.full_page(key[1])
        known.ours[key[1]] |= bits
        known.trained[key[1]] |= bits
