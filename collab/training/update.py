"""What a trainer fetches to be where the swarm is."""

from dataclasses import dataclass

from collab.averaging.base import Committed
from collab.strategies.base import NOTHING, Spans
from collab.swarm.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Update:
    """What takes a replica to the swarm's state, in this order."""

    used: Spans = NOTHING
    """Of what we hold, what the round after our history has used: it is ``round_id``."""
    round_id: str = ""
    snapshot: Snapshot | None = None
    """None: the rounds continue our own history."""
    rounds: tuple[Committed, ...] = ()
