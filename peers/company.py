"""What a backbone's keeper has from its backbone."""

from collections.abc import Callable
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.averaging.flow import Links
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.last_seen import LastSeen
from collab.swarm.lease_keeper import LeaseKeeper
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership


@dataclass(frozen=True, slots=True)
class Company:
    """Whom a keeper deals with, and how."""

    membership: Membership
    links: Links
    lease: LeaseKeeper
    mandate: Mandate
    last_seen: LastSeen
    rounds: Callable[[], list[CommitRecord]]
    """The last ones that committed."""
    off: frozenset[Duty] = NOTHING_OFF
    """What the backbone does not do."""
