"""Which blocks a peer should claim next, and how many: decided from what it knows, without asking anybody."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from collab.data.assignment import Cut, page_order, preferences
from collab.data.block_set import BlockSet
from collab.data.blocks import PAGE_BLOCKS, BlockId, BlockPlan, blocks_in
from collab.data.coverage import Coverage
from collab.data.holders import Holders, PageKey
from collab.data.pace import AHEAD_S, PATIENCE, SLACK, Claimed, Lately
from collab.types import PeerId

PREFERENCES_S = 60.0
"""How long it holds whose blocks are whose, unless trainers come or go."""
SHORTEST_LIFE_S, LONGEST_LIFE_S = 45.0, 600.0
"""Of a claim. A third of it goes by until it is said again, so that two lost words in a row cost nobody a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preferred:
    """Whose blocks of a pass are whose, as it was reckoned last."""

    at: float
    """Swarm time."""
    peers: frozenset[str]
    cut: Cut
    own: Mapping[int, list[int]]
    """Ours, by pages."""


class Choice:
    """What one peer holds, and what it may take."""

    def __init__(self, me: PeerId, coverage: Coverage, holders: Holders) -> None:
        self._me, self._plan, self._coverage, self._holders = me, coverage.plan, coverage, holders
        self.held = BlockSet()
        """Claimed by us and not done, those included that are trained without a lease."""
        self.left = BlockSet()
        """Blocks that we shall not train: they gave us nothing finite."""
        self.contested: dict[BlockId, float] = {}
        """Blocks that somebody else claimed at the same time, and until when (swarm time) we leave them alone."""
        self._preferred: dict[int, _Preferred] = {}
        self._orders: dict[int, list[int]] = {}
        """Of each pass its pages, as we visit them."""
        self._most, self._speed = Lately(), Lately()
        """Blocks that everybody grants us, and samples per second that everybody believes of us."""
        self._claimed: Claimed | None = None
        """By us, as others reckon it. None: nothing is known of anybody yet."""
        self._shown = Lately()
        """Blocks that rounds have shown of us."""

    def look(self, now: float) -> None:
        """Take note of what everybody has just been found to need."""
        pace, shown = self._holders.pace, self._holders.shown_blocks(self._me)
        self._most.note(now, pace.surely_granted(self._me, self._plan))
        self._speed.note(now, pace.surely(self._me))
        self._shown.note(now, shown)
        self._claimed = self._claimed or Claimed(0.0, now, shown)
        self._claimed.settle(now, shown, per_s=self._speed.least / self._plan.block_samples)

    @property
    def _used(self) -> float:
        """Blocks that we have claimed, as others reckon it; of what we hold still some may come to read only later."""
        return max(self._claimed.blocks if self._claimed is not None else 0.0, len(self.held))

    @property
    def most_granted(self) -> int:
        """Blocks that we may claim beside those that we have: others would claim what is beyond that, too. Who has not
        heard of the last round expects that we trained as much in it as in the one before.
        """
        return max(int(SLACK * self._most.least - self._used - self._shown.growth_of_rise), 0)

    @property
    def room(self) -> int:
        """Of these so many as we need. Who has just become faster waits until everybody can have read it."""
        return min(max(int(self._most.least - self._used), 0), self.most_granted)

    @property
    def is_beyond(self) -> bool:
        """Whether we hold more than others grant us, since we have turned out to be slower than everybody believed."""
        return len(self.held) > SLACK * self._most.least

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """We claim these, or train them without a lease."""
        new = set(blocks) - self.held
        self.held |= new
        if self._claimed is not None:
            self._claimed.blocks += len(new)

    @property
    def plan(self) -> BlockPlan:
        """How passes are cut."""
        return self._plan

    @property
    def our_speed(self) -> float:
        """Samples per second."""
        return self._holders.pace.speeds.get(self._me, 0.0)

    def forget(self, oldest_pass: int) -> None:
        """Nothing about passes before ``oldest_pass`` is wanted any more. What we hold of them we still train."""
        self._preferred = {number: known for number, known in self._preferred.items() if number >= oldest_pass}
        self._orders = {number: pages for number, pages in self._orders.items() if number >= oldest_pass}
        self.left = BlockSet(block for block in self.left if block.pass_number >= oldest_pass)
        self.contested = {block: until for block, until in self.contested.items() if block.pass_number >= oldest_pass}

    def contest(self, blocks: set[BlockId], until: float) -> None:
        """Somebody else claimed these when we did: we give them up, and leave them alone until then (swarm time)."""
        self.held -= blocks
        self.contested.update(dict.fromkeys(blocks, until))

    def is_contested(self, pass_number: int, now: float) -> bool:
        """Whether some of a pass is left alone for now."""
        return any(block.pass_number == pass_number and now < until for block, until in self.contested.items())

    def number_wanted(self, pass_number: int, in_hand: int) -> int:
        """Leases that we should have in hand: work for a while, but not more than half of our share of what is left.

        One at a time, as far as others grant it, when what we hold waits for longer than expected: a round was lost.

        The latter is guided self-scheduling: near the end of a pass nobody sits on blocks that others could train.

        Args:
            in_hand: leases that nobody has begun to train.

        Source: Polychronopoulos and Kuck, "Guided Self-Scheduling" (IEEE Transactions on Computers, 1987).
        """
        ahead = -(-int(self.our_speed * AHEAD_S) // self._plan.block_samples)
        room = self.room + in_hand or min(self.most_granted, 1)
        return min(max(min(ahead, self._guided(pass_number)), 1), room)

    def work_in(self, seconds: float) -> int:
        """Blocks that are trained here in so long, the last one perhaps not to its end."""
        return math.ceil(self.our_speed * seconds / self._plan.block_samples)

    def number_short(self, pass_number: int, in_hand: int, work_s: float, now: float) -> int:
        """Leases of the next pass that we should claim as well, so that there is work in hand for ``work_s``.

        Only where a block lasts less than that, and near the end of a pass: what we may claim of it does not last so
        long, or nothing is free that is ours by the assignment, so that claims may be in vain.

        Args:
            in_hand: leases of any pass that nobody has begun to train.
        """
        needed = self.work_in(work_s)
        short = min(needed - in_hand, self.room)
        if needed < 2 or short <= 0:
            return 0
        if self._guided(pass_number) >= needed and any(self.own(key, now) for key in self.pages(pass_number)):
            return 0
        return short

    def _guided(self, pass_number: int) -> int:
        """Half of our share of what is left of a pass."""
        left = self._plan.num_blocks - sum(bits.bit_count() for bits in self._coverage.of(pass_number).trained)
        return int(left * self.our_speed / self._holders.pace.together / 2)

    def life_s(self) -> float:
        """Of a claim: some times what a block takes from here to its step."""
        block_s = self._plan.block_samples / self.our_speed if self.our_speed > 0 else 0.0
        return min(max(PATIENCE * (block_s + self._holders.pace.step_s), SHORTEST_LIFE_S), LONGEST_LIFE_S)

    def pages(self, pass_number: int) -> Iterator[PageKey]:
        """All pages of a pass, as we visit them."""
        if pass_number not in self._orders:
            self._orders[pass_number] = page_order(self._plan, pass_number, self._me)
        for page in self._orders[pass_number]:
            yield pass_number, page

    def held_on(self, key: PageKey) -> int:
        """Bits of what we hold of a page."""
        return self.held.bits(key)

    def untrained(self, key: PageKey) -> int:
        """Bits of what nobody has trained, as far as we know, and we do not hold."""
        trained = self._coverage.of(key[0]).trained[key[1]]
        return self._plan.full_page(key[1]) & ~trained & ~self.held.bits(key) & ~self.left.bits(key)

    def free(self, key: PageKey, now: float) -> int:
        """Of these what nobody else holds, when the page was read last, and nobody claimed when we did."""
        contested = BlockSet(block for block, until in self.contested.items() if now < until)
        return self.untrained(key) & ~self._holders.held(key, now) & ~contested.bits(key)

    @property
    def is_parted(self) -> bool:
        """Whether all trainers are known, so that nobody else begins with a block that is ours."""
        return not self._holders.pace.num_unknown

    def own(self, key: PageKey, now: float) -> list[int]:
        """Free blocks of a page that are ours by the assignment."""
        pace = self._holders.pace
        made = self._preferred.get(key[0])
        if made is None or made.peers != pace.speeds.keys() or now - made.at > PREFERENCES_S:
            made = self._preferred[key[0]] = self._prefer(key[0], now)
        free = self.free(key, now) if key[1] in made.own else 0
        return [block for block in made.own.get(key[1], ()) if free & BlockId(key[0], block).bit]

    def best(self, key: PageKey, now: float, *, only_own: bool = False) -> list[BlockId]:
        """Free blocks of a page, ours first; when we have none there, those of others."""
        chosen = self.own(key, now)
        if not chosen and not only_own:
            free = list(blocks_in(self.free(key, now), key[1]))
            cut = self._preferred[key[0]].cut
            now_own, others = preferences(self._plan, key[0], free, self._me, self._holders.pace.speeds, cut)
            chosen = now_own + others  # speeds have changed since it was reckoned which are ours
        return [BlockId(key[0], block) for block in chosen]

    def _prefer(self, pass_number: int, now: float) -> _Preferred:
        pace = self._holders.pace
        cut = Cut.among(self._plan, pace.trainers, pace.num_unknown * pace.usual)
        everything = range(self._plan.num_blocks)
        own: dict[int, list[int]] = {}
        for block in preferences(self._plan, pass_number, everything, self._me, pace.speeds, cut)[0]:
            own.setdefault(block // PAGE_BLOCKS, []).append(block)
        return _Preferred(at=now, peers=frozenset(pace.speeds), cut=cut, own=own)

    def without_lease(self, pass_number: int, now: float) -> BlockId | None:
        """A block that should be ours, else any that is free; None: there is none in this pass."""
        keys = list(self.pages(pass_number))
        for key in keys:
            if own := self.own(key, now):
                return BlockId(pass_number, own[0])
        for key in keys:
            if free := self.free(key, now):
                return BlockId(pass_number, next(blocks_in(free, key[1])))
        return None
