"""The swarm as leases see it: who trains on our data, and how fast."""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collab.data.blocks import BlockId
from collab.data.pace import Pace
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import PeerId, Role

HERE = (PeerState.SYNCING, PeerState.TRAINING)
"""States of a trainer that has not left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What leases need to know of the swarm, and whom they tell."""

    view: Callable[[], SwarmView]
    look: Callable[[], Awaitable[object]]
    """Reads everybody's records anew."""
    target_samples: int
    """Of one global step."""
    is_behind: Callable[[], bool] = lambda: False
    """Whether we may have missed rounds, and with them what others have shown."""
    note_trained: Callable[[BlockId, bool], None] = lambda _block, _was_leased: None
    """Called when all samples of a block are in steps; whether there was a lease."""

    def trainers(self, data: str, me: PeerId) -> list[PeerRecord]:
        """Who trains on this data; ``me``, whatever our record says as yet."""
        here = [record for record in self.view().records if record.role is Role.TRAINER and record.state in HERE]
        return [record for record in here if record.data == data or record.peer == me]

    def pace(self, trainers: Sequence[PeerRecord], me: PeerId, proven: Mapping[PeerId, float]) -> Pace:
        """How fast they are, as far as it is believed.

        Args:
            proven: samples per second that committed rounds show.
        """
        claimed = {record.peer: record.samples_per_s for record in trainers}
        claimed.setdefault(me, 0.0)
        pace, crowd = Pace.believed(claimed, proven), self.view().crowd
        unknown = max(crowd.trainers - len(pace.speeds), 0) if crowd is not None else 0
        if unknown:
            pace = replace(pace, usual=statistics.median(pace.speeds.values()), num_unknown=unknown)
        return replace(pace, step_s=self.target_samples / pace.together)
