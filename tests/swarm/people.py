"""Peers with real keys, and what they say."""

from typing import Any

from collab.swarm.identity import Identity
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, Role
from tests.fakes import NOW

PEOPLE = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(1, 9)), key=lambda identity: identity.peer_id)
"""In the order of their peer ids."""


def record(person: int, **changes: Any) -> PeerRecord:
    """A fresh trainer's record, with ``changes``."""
    values: dict[str, Any] = {
        "peer": PEOPLE[person].peer_id,
        "fingerprint": "f" * 64,
        "name": f"person-{person}",
        "role": Role.TRAINER,
        "state": PeerState.TRAINING,
        "said_at": NOW,
        "can_be_dialled": True,
        "epoch": 3,
        "lineage": Lineage("l"),
    }
    return PeerRecord(**{**values, **changes})


def backbone(person: int, **changes: Any) -> PeerRecord:
    """A backbone's record."""
    return record(person, **{"role": Role.BACKBONE, "state": PeerState.SERVING, **changes})
