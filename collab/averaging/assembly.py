"""A group while it forms: who should come, and who has."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from collab.averaging.messages import Join
from collab.net.base import Stream
from collab.types import Lineage, PeerId


@dataclass(frozen=True, slots=True)
class Expected:
    """Who should be in a group, as the leader sees the swarm."""

    trainers: frozenset[PeerId]
    """Fresh trainers that may be at the group's epoch: they are called, and a group needs a majority of them."""
    helpers: frozenset[PeerId]
    """Auxiliary and backbone peers that reduce for others."""
    ahead: frozenset[PeerId] = frozenset()
    """Trainers that have gone on beyond the group's epoch."""


Roster = Callable[[int, Lineage], Awaitable[Expected]]
"""Answers for an epoch and a lineage."""


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
