"""A checkpoint that the organiser has gone back to, as the beginning of another history."""

import logging
from pathlib import Path

from collab.checkpoints.local import aside_of, list_checkpoints, load_checkpoint, set_aside
from collab.errors import StateError
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback

logger = logging.getLogger(__name__)


def begin_again(root: Path, what: Rollback, mark: str, *, fingerprint: str) -> Snapshot | None:
    """The state to go on from; what is in ``root`` is set aside. None: the checkpoint is not there.

    It may come again: a life that was killed meanwhile has set some or all of them aside, and has published nothing.

    Args:
        mark: of the order.

    Raises:
        CheckpointFailed: the directory cannot be written.
    """
    snapshot = _found(root, what, fingerprint) or _found(aside_of(root, mark), what, fingerprint)
    set_aside(root, mark)
    return snapshot.after_rollback(mark) if snapshot is not None else None


def _found(root: Path, what: Rollback, fingerprint: str) -> Snapshot | None:
    for path in list_checkpoints(root):
        try:
            snapshot = load_checkpoint(path, fingerprint=fingerprint)
        except StateError as error:
            logger.warning("checkpoint passed over: %s", error.message)
            continue
        if (snapshot.epoch, snapshot.lineage) == (what.to_epoch, what.lineage):
            return snapshot
    return None
