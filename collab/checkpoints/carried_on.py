"""A run goes on under a new owner: a checkpoint of the old one is the beginning of the new one's history."""

import hashlib
from dataclasses import replace
from pathlib import Path

from collab.checkpoints.local import load_checkpoint
from collab.swarm.snapshots import Snapshot
from collab.types import Lineage


def carry_on(path: Path, *, fingerprint: str) -> Snapshot:
    """The state of a checkpoint, or of a trainer's copy, as the first state of another run; its epoch stays.

    Args:
        path: of one checkpoint, of whatever run.
        fingerprint: of the new run; peers of the old one are none of it.

    Raises:
        StateError: it cannot be read, or is damaged.
    """
    old = load_checkpoint(path, fingerprint=None)
    lineage = hashlib.sha256(f"carried on:{fingerprint}:{old.lineage}".encode()).hexdigest()
    return replace(old, lineage=Lineage(lineage), era="")
