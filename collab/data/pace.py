"""How fast everybody is, as far as it is believed, and how many blocks that lets a peer claim.

Whoever claims reckons, as others do of it, what it has claimed and not had the time to train; and it is the stricter.
It goes by the least that it has been found to need lately, they by the most, so that it does not matter who knows of
a change first. Some may not have heard of the last round yet: they expect that it was like the one before, and what
it trained beyond that it takes as claimed still. So what a peer trains is within what everybody else grants it.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from collab.data.assignment import believed_speeds
from collab.data.blocks import MAX_BLOCKS, PAGE_BLOCKS, BlockPlan
from collab.types import PeerId

AHEAD_S = 30.0
"""Of work that a peer claims before it begins it: some heartbeats, and little to give up when it dies."""
KNOWN_S = 5.0
"""Everybody has read by then what a trainer said of its speed: some heartbeats."""
SPARE_BLOCKS, SPARE_SHARDS = 2, 4
"""That any trainer may hold: the one that it trains, and the next; of shards also one whose end waits for its step, and
one that is being read."""
SLACK = 2.0
"""A peer may hold so many times what it needs: its reader knows its speed and the length of a step by and large."""
PATIENCE = 3.0
"""Times what a block should take from its claim to the step it is in; then its holder has had it for long enough."""
SHORTEST_PATIENCE_S = 60.0
"""A round that is lost, and some more."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast everybody is, as far as it is believed."""

    speeds: Mapping[PeerId, float] = field(default_factory=dict)
    """Samples per second of each trainer that is there."""
    unsaid: frozenset[PeerId] = frozenset()
    """Of these who have not said how fast they are: they pass for as fast as most, and claim next to nothing."""
    usual: float = 0.0
    """Of a trainer of whom we know only that there are more; 0: who is missing above is not there and holds nothing."""
    num_unknown: int = 0
    """Of these."""
    shown: Mapping[PeerId, float] = field(default_factory=dict)
    """Samples per second that committed rounds show; of those who are unknown nothing else is known."""
    step_s: float = 0.0
    """Expected seconds between two steps: so long may what is computed wait for its commit."""

    @classmethod
    def believed(cls, claimed: Mapping[PeerId, float], shown: Mapping[PeerId, float]) -> "Pace":
        """Of trainers that are all known, as far as their word goes.

        Args:
            claimed: samples per second, by the peers themselves; 0: it has said nothing.
            shown: samples per second that committed rounds show.
        """
        unsaid = frozenset(peer for peer, speed in claimed.items() if not speed > 0)
        return cls(speeds=believed_speeds(claimed, shown), unsaid=unsaid, shown=shown)

    def speed_of(self, peer: PeerId) -> float | None:
        """Samples per second; None: it is not there."""
        if peer in self.speeds or not self.usual:
            return self.speeds.get(peer)
        return self._by_number(peer)

    def surely(self, peer: PeerId) -> float:
        """Samples per second that everybody believes of ``peer``, those included to whom it is one of a crowd."""
        speed = self.speed_of(peer) or 0.0
        return min(speed, self._by_number(peer)) if self.num_unknown else speed

    @property
    def trainers(self) -> int:
        """Who is there."""
        return len(self.speeds) + self.num_unknown

    @cached_property
    def together(self) -> float:
        """Samples per second of all."""
        return max(math.fsum(self.speeds.values()) + self.num_unknown * self.usual, 1e-9)

    def most_blocks(self, peer: PeerId, plan: BlockPlan) -> int:
        """What ``peer`` may hold at once, as its readers see it: a page, or half of an equal share, in any case.

        Who has just come takes nothing of that from those who have shown something: they may not have heard of it.
        """
        speed = self.speed_of(peer)
        if speed is None:
            return 0
        together = max(self.together - self._unsaid_together, 1e-9) if self.shown.get(peer) else self.together
        needed = _spare(plan) if peer in self.unsaid else self._needed(speed, plan, together)
        return max(int(SLACK * needed), self._any(plan))

    def surely_granted(self, peer: PeerId, plan: BlockPlan) -> int:
        """What ``peer`` may claim, so that every reader grants it."""
        needed = _spare(plan) if peer in self.unsaid else self._needed(self.surely(peer), plan, self.together)
        return max(needed, int(self._any(plan) / SLACK))

    def patience_s(self, peer: PeerId, plan: BlockPlan) -> float:
        """For how long ``peer`` may hold one block."""
        speed = self.speed_of(peer) or 0.0
        block_s = plan.block_samples / speed if speed > 0 else 0.0
        return max(SHORTEST_PATIENCE_S, PATIENCE * (AHEAD_S + self.step_s + block_s))

    def _any(self, plan: BlockPlan) -> int:
        """Blocks that anybody is granted, however slow it seems to be."""
        return min(PAGE_BLOCKS, plan.num_blocks // (2 * self.trainers))

    def _by_number(self, peer: PeerId) -> float:
        """Samples per second of one of whom we know only that it is there."""
        return max(self.usual, self.shown.get(peer, 0.0))

    @cached_property
    def _unsaid_together(self) -> float:
        return math.fsum(self.speeds[peer] for peer in self.unsaid)

    def _needed(self, speed: float, plan: BlockPlan, together: float) -> int:
        """Blocks that somebody so fast needs at once: work for ``AHEAD_S`` and for what waits for its step, and no more
        than its share of two passes: at the end of one the next has begun.

        Args:
            together: samples per second of all who share them.
        """
        ahead = speed * (AHEAD_S + self.step_s) / plan.block_samples
        share = 2 * plan.num_blocks * speed / together
        return _spare(plan) + math.ceil(min(ahead, share, MAX_BLOCKS))


def _spare(plan: BlockPlan) -> int:
    return SPARE_BLOCKS if plan.num_samples is not None else SPARE_SHARDS


class Lately:
    """What a number has been within the last ``KNOWN_S``."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        """Since when (swarm time) it was what."""

    def note(self, now: float, value: float) -> None:
        """It is so much now."""
        if not self._seen or self._seen[-1][1] != value:
            self._seen.append((now, value))
        while len(self._seen) > 1 and self._seen[1][0] <= now - KNOWN_S:
            self._seen.popleft()

    @property
    def least(self) -> float:
        """0 before anything was noted."""
        return min((value for _, value in self._seen), default=0.0)

    @property
    def most(self) -> float:
        """0 before anything was noted."""
        return max((value for _, value in self._seen), default=0.0)

    @property
    def last_rise(self) -> float:
        """By how much it rose when it changed last; 0: that was longer ago."""
        return self._rise(1)

    @property
    def growth_of_rise(self) -> float:
        """By how much more it rose then than when it changed before that."""
        return max(self._rise(1) - self._rise(2), 0.0)

    def _rise(self, back: int) -> float:
        return max(self._seen[-back][1] - self._seen[-back - 1][1], 0.0) if len(self._seen) > back else 0.0


@dataclass(slots=True)
class Claimed:
    """Blocks that one peer has claimed, less what it can have trained since, and less what rounds show that it has.

    Not less what its marks show: who does not read the page that they are on would know nothing of them.
    """

    blocks: float
    """Below 0: so many are trained whose claims were not read yet."""
    at_s: float
    """Swarm time."""
    trained: float
    """Blocks that rounds had shown of it then."""

    def settle(self, now: float, trained: float, *, per_s: float, unread: float = 0.0) -> None:
        """Time has passed, and rounds have committed.

        Args:
            trained: blocks that rounds have shown of it so far.
            per_s: blocks that it can train.
            unread: blocks of these whose claims may have been overlooked so far, and may still be read.
        """
        self.less(per_s * max(0.0, now - self.at_s))
        self.blocks = max(self.blocks - max(0.0, trained - self.trained), -unread)
        self.at_s, self.trained = now, trained

    def less(self, blocks: float) -> None:
        """So many are not held any more."""
        self.blocks = max(self.blocks - blocks, min(self.blocks, 0.0))
