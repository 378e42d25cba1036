"""A group while it forms: who should come, and who has."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from collab.averaging.calls import Reply
from collab.averaging.messages import Join
from collab.net.base import Stream
from collab.types import Lineage, PeerId

OTHERS_ASKED = 16
"""Beyond those at hand; the members of a round are seldom more, and any of them knows of it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Who should be in a group, as the leader sees the swarm."""

    trainers: frozenset[PeerId]
    """Fresh trainers that may be at the group's epoch: they are called, and a group needs a majority of them."""
    helpers: frozenset[PeerId]
    """Auxiliary and backbone peers that reduce for others."""
    ahead: frozenset[PeerId] = frozenset()
    """Trainers that have gone on beyond the group's epoch."""
    behind: frozenset[PeerId] = frozenset()
    """Fresh trainers whose last word is of an epoch too early for this group; it may be older than their last step."""
    syncing: frozenset[PeerId] = frozenset()
    """Trainers that take over a newer state than the one that they hold."""
    left: Mapping[PeerId, int] = field(default_factory=dict)
    """Peers that have said goodbye, with no seat since; and the first epoch about which each has promised nothing."""
    absent_s: Callable[[PeerId], float] = lambda _: 0.0
    """For how long we have looked for a peer in vain."""
    backbones: frozenset[PeerId] = frozenset()
    """Those that we have ever seen and that said no goodbye, here or not."""
    has_met: Callable[[PeerId], bool] = lambda _: True
    """Whether we have ever seen a peer that could vote."""
    is_vouched: Callable[[PeerId], bool] = lambda _: False
    """Whether the owner has named a peer as a backbone."""

    def whom_to_ask(self, first: Collection[PeerId]) -> list[PeerId]:
        """Peers that may know what became of a history: ``first``, and some of the others, most likely ones first."""
        asked = dict.fromkeys(sorted(first))
        others = [
            peer
            for group in (self.ahead, self.helpers, self.trainers, self.behind)
            for peer in sorted(group)
            if peer not in asked
        ]
        return [*asked, *dict.fromkeys(others[:OTHERS_ASKED])]

    def left_behind(self, joined: Collection[PeerId]) -> frozenset[PeerId]:
        """Trainers that have not joined, and may have missed a round: they can take over what it came to, and come."""
        return (self.trainers | self.behind | self.syncing) - self.ahead - set(joined)

    seatless: frozenset[PeerId] = frozenset()
    """Of the trainers at this very history, those that say they have no seat, since they were started again."""

    @property
    def present(self) -> frozenset[PeerId]:
        """Everybody whose word is fresh."""
        return self.trainers | self.helpers | self.ahead | self.behind

    @property
    def able(self) -> frozenset[PeerId]:
        """Those here who can vote, as far as they say."""
        return self.present - self.seatless


class Roster(Protocol):
    """Answers for an epoch and a lineage."""

    async def __call__(self, epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        """
        Args:
            since_s: monotonic seconds; what was read from the directory before is not enough.
        """
        ...


@dataclass(slots=True)
class Assembly:
    """A group while it forms."""

    epoch: int
    lineage: Lineage
    joined: dict[PeerId, tuple[Stream, Join]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    left_out: set[PeerId] = field(default_factory=set)
    """Peers that made an earlier attempt at this epoch fail; not called again."""
    is_open: bool = True
    arrived_s: dict[PeerId, float] = field(default_factory=dict)
    """When each peer joined first, by the loop's clock."""

    def add(self, stream: Stream, join: Join) -> None:
        """Take a peer in; a peer that joins again replaces its older stream."""
        previous = self.joined.pop(stream.remote, None)
        if previous is not None:
            previous[0].close()
        self.joined[stream.remote] = (stream, join)
        self.arrived_s.setdefault(stream.remote, asyncio.get_running_loop().time())
        self.changed.set()


@dataclass(slots=True, kw_only=True)
class Gathering:
    """What a leader has heard of those whom it called."""

    began_s: float
    trainers: frozenset[PeerId]
    replies: dict[PeerId, Reply] = field(default_factory=dict)
    comes_at_s: dict[PeerId, float] = field(default_factory=dict)
    """By the loop's clock; -inf: not at all."""

    def heard(self, peer: PeerId, reply: Reply, now_s: float) -> None:
        """Take a peer's answer."""
        self.replies[peer] = reply
        self.comes_at_s[peer] = now_s + reply.comes_in_s if reply.is_coming else -math.inf

    def computing_s(self) -> list[float]:
        """How long the microbatches of those trainers who answered still take."""
        replies = [reply for peer, reply in self.replies.items() if peer in self.trainers]
        return [reply.free_in_s for reply in replies if reply.is_coming or reply.free_in_s > 0]
