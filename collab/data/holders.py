"""Who holds which blocks, as one reader sees it: what others say, as far as their word goes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from collab.data.blocks import MAX_BLOCKS, BlockPlan, blocks_in
from collab.data.coverage import Coverage
from collab.data.lease_records import PageEntry
from collab.data.ledger import Ledger
from collab.types import PeerId

AHEAD_S = 30.0
"""Of work that a peer claims before it begins it: some heartbeats, and little to give up when it dies."""
SPARE_BLOCKS = 2
"""That any trainer may hold: the one that it trains, and the next."""
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
    """Samples per second of each trainer that is there; who is missing holds nothing."""
    step_s: float = 0.0
    """Expected seconds between two steps: so long may what is computed wait for its commit."""

    def most_blocks(self, peer: PeerId, plan: BlockPlan, slack: float = SLACK) -> int:
        """What ``peer`` may hold at once: work for ``AHEAD_S`` and for what waits for its step, and no more than its
        share of a pass.
        """
        speed = self.speeds.get(peer)
        if speed is None:
            return 0
        needed = slack * speed * (AHEAD_S + self.step_s) / plan.block_samples
        share = plan.num_blocks * speed / math.fsum(self.speeds.values())
        return SPARE_BLOCKS + math.ceil(min(needed, share, MAX_BLOCKS))

    def patience_s(self, peer: PeerId, plan: BlockPlan) -> float:
        """For how long ``peer`` may hold one block."""
        speed = self.speeds.get(peer, 0.0)
        block_s = plan.block_samples / speed if speed > 0 else 0.0
        return max(SHORTEST_PATIENCE_S, PATIENCE * (AHEAD_S + self.step_s + block_s))


PageKey = tuple[int, int]
"""Pass and page."""


@dataclass(slots=True)
class _Seen:
    """One page as it was when it was read."""

    at_s: float
    entries: Mapping[PeerId, PageEntry]


class Holders:
    """What all others hold and have trained, by the pages that were read."""

    def __init__(self, me: PeerId, coverage: Coverage, ledger: Ledger) -> None:
        self._me, self._plan, self._coverage, self._ledger = me, coverage.plan, coverage, ledger
        self.pace = Pace()
        self._seen: dict[PageKey, _Seen] = {}
        self._marks: dict[tuple[PageKey, PeerId], int] = {}
        """Blocks of which it is believed that this peer has trained them."""
        self._since: dict[tuple[PageKey, PeerId], dict[int, float]] = {}
        """When each block was first seen to be held."""
        self._lapsed: dict[PeerId, set[tuple[int, int]]] = {}
        """Pass and block that each peer has held for too long."""

    def read_at_s(self, key: PageKey) -> float:
        """When a page was read last; -inf: never."""
        seen = self._seen.get(key)
        return seen.at_s if seen else -math.inf

    def take_in(self, key: PageKey, entries: Mapping[PeerId, PageEntry], now: float) -> None:
        """A page was read: believe what can be believed of what others have trained."""
        self._seen[key] = _Seen(now, entries)
        for peer, entry in entries.items():
            if peer == self._me:
                self._remember_ourselves(key, entry)
                continue
            since = self._since.setdefault((key, peer), {})
            for block in blocks_in(self._unproven(key, peer, entry), key[1]):
                samples = self._plan.samples_in(block)
                if self._ledger.can_pay(peer, samples, self._plan.block_samples):
                    self._ledger.pay(peer, samples)
                    self._believe(key, peer, 1 << block - self._first(key), block)
            wanted = entry.held | self._unproven(key, peer, entry)
            for block in list(since):
                if not wanted >> (block - self._first(key)) & 1:
                    del since[block]
            for block in blocks_in(wanted & self._plan.full_page(key[1]), key[1]):
                since.setdefault(block, now)

    def held(self, key: PageKey, now: float) -> int:
        """Bits of the blocks of a page that others hold, when it was read last."""
        seen, bits = self._seen.get(key), 0
        if seen is None:
            return 0
        for peer, entry in seen.entries.items():
            if peer != self._me:
                bits |= self._held_by(key, peer, entry, now)
        return bits

    def strangers(self, key: PageKey) -> bool:
        """Whether somebody claims blocks of a page who does not seem to be there: perhaps it has just come."""
        seen = self._seen.get(key)
        return seen is not None and any(
            entry.held and peer not in self.pace.speeds and peer != self._me for peer, entry in seen.entries.items()
        )

    def forget(self, oldest_pass: int) -> None:
        """Nothing about passes before ``oldest_pass`` is wanted any more."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] >= oldest_pass}
        self._marks = {place: bits for place, bits in self._marks.items() if place[0][0] >= oldest_pass}
        self._since = {place: since for place, since in self._since.items() if place[0][0] >= oldest_pass}
        for lapsed in self._lapsed.values():
            lapsed.difference_update({block for block in lapsed if block[0] < oldest_pass})

    # -- inside --------------------------------------------------------------------------------------------------------

    def _first(self, key: PageKey) -> int:
        return key[1] * self._plan.page_blocks

    def _unproven(self, key: PageKey, peer: PeerId, entry: PageEntry) -> int:
        """What ``peer`` says it has trained, and it is not believed yet."""
        known = self._marks.get((key, peer), 0) | self._coverage.of(key[0]).assumed[key[1]]
        return entry.trained & ~known & self._plan.full_page(key[1])

    def _believe(self, key: PageKey, peer: PeerId, bit: int, block: int) -> None:
        self._marks[key, peer] = self._marks.get((key, peer), 0) | bit
        self._coverage.note(key[0], key[1], bit)
        self._lapsed.get(peer, set()).discard((key[0], block))

    def _remember_ourselves(self, key: PageKey, entry: PageEntry) -> None:
        """What we have trained in an earlier life, if our disk has forgotten it."""
        known = self._coverage.of(key[0])
        bits = entry.trained & ~known.ours[key[1]] & self._plan.full_page(key[1])
        known.ours[key[1]] |= bits
        known.trained[key[1]] |= bits

    def _held_by(self, key: PageKey, peer: PeerId, entry: PageEntry, now: float) -> int:
        """What ``peer`` holds of a page: while it lives, as long as a block takes, and as much as it can train."""
        if peer not in self.pace.speeds or not entry.is_live(now):
            return 0
        patience_s = self.pace.patience_s(peer, self._plan)
        lapsed = self._lapsed.setdefault(peer, set())
        since = self._since.get((key, peer), {})
        lapsed |= {(key[0], block) for block, since_s in since.items() if now - since_s > patience_s}
        left = self.pace.most_blocks(peer, self._plan) - len(lapsed) - self._held_elsewhere(key, peer, now)
        blocks = [block for block in since if (key[0], block) not in lapsed]
        blocks.sort(key=lambda block: (since[block], block))
        bits = 0
        for block in blocks[: max(left, 0)]:
            bits |= 1 << block - self._first(key)
        return bits

    def _held_elsewhere(self, key: PageKey, peer: PeerId, now: float) -> int:
        """Blocks that ``peer`` holds on the other pages that were read of late."""
        number = 0
        for other, seen in self._seen.items():
            if other != key and peer in seen.entries and seen.entries[peer].is_live(now):
                lapsed = self._lapsed.get(peer, set())
                number += sum((other[0], block) not in lapsed for block in self._since.get((other, peer), ()))
        return number
