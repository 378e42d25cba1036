"""A checkpoint that the organiser has gone back to, as the beginning of another history.

checkpoints/epoch-*                   those of the present history
checkpoints/before-rollback-MARK/     those that were there when a backbone heard of the rollback of this mark
checkpoints/held-for-rollback-MARK/   the one to go back to, from before anybody heard of that
"""

import logging
import os
import shutil
from pathlib import Path

from collab.checkpoints.local import (
    STATE_FILE,
    UNFINISHED,
    aside_of,
    list_checkpoints,
    load_checkpoint,
    read_state,
    set_aside,
    verified_state,
)
from collab.checkpoints.synced import sync_directory
from collab.errors import CheckpointFailed, CorruptState, StateError
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback

logger = logging.getLogger(__name__)


def checkpoints_to_go_back_to(root: Path, era: str, fingerprint: str) -> dict[int, tuple[Path, Rollback]]:
    """By epoch: those of the present history, and what the rollback that began it set aside; only their state files
    are read.

    Args:
        era: mark of that rollback; empty: there was none.
    """
    found: dict[int, tuple[Path, Rollback]] = {}
    aside = list_checkpoints(aside_of(root, era)) if era else []
    for path in [*aside, *list_checkpoints(root)]:
        try:
            state = read_state(path)
            epoch, lineage, its_era = int(state["epoch"]), str(state["lineage"]), str(state.get("era", ""))
            is_ours = state["fingerprint"] == fingerprint
        except (OSError, ValueError, KeyError, TypeError, CorruptState) as error:
            logger.warning("checkpoint passed over path=%s: %r", path, error)
            continue
        if is_ours and (its_era == era or path in aside):
            found[epoch] = path, Rollback(to_epoch=epoch, lineage=lineage)
    return found


def hold(root: Path, path: Path, mark: str) -> None:
    """Have a checkpoint for the rollback of this mark, whatever becomes of ``path`` until a backbone hears of that.

    Raises:
        CorruptState: it is not whole; it may have been deleted meanwhile.
        CheckpointFailed: the directory cannot be written.
    """
    held = _held_for(root, mark)
    unfinished = held / f"{UNFINISHED}{path.name}"
    try:
        shutil.copytree(path, unfinished, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
        verified_state(unfinished)
        unfinished.rename(held / path.name)
        sync_directory(held)
        sync_directory(root)
    except (OSError, CorruptState) as error:
        shutil.rmtree(held, ignore_errors=True)
        if isinstance(error, OSError) and (path / STATE_FILE).is_file():
            text = f"{path} cannot be held in {held.name}: {error.strerror or error}"
            raise CheckpointFailed(text, hint="give this order as the user whose backbone it is") from error
        raise CorruptState(f"{path} is not whole, or was deleted a moment ago") from error


def begin_again(root: Path, what: Rollback, mark: str, *, fingerprint: str) -> Snapshot | None:
    """The state to go on from; what is in ``root`` is set aside. None: the checkpoint is not there.

    It may come again: a life that was killed meanwhile has set some or all of them aside, and has published nothing.

    Args:
        mark: of the order.

    Raises:
        CheckpointFailed: the directory cannot be written.
    """
    places = root, aside_of(root, mark), _held_for(root, mark)
    snapshot = next(filter(None, (_found(place, what, fingerprint) for place in places)), None)
    set_aside(root, mark)
    return snapshot.after_rollback(mark) if snapshot is not None else None


def _held_for(root: Path, mark: str) -> Path:
    return root / f"held-for-rollback-{mark}"


def _link(source: str, target: str) -> None:
    """The same file under a second name; a copy, where the file system has no such thing."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def _found(root: Path, what: Rollback, fingerprint: str) -> Snapshot | None:
    path = root / f"epoch-{what.to_epoch:08d}"
    if not path.is_dir():
        return None
    try:
        snapshot = load_checkpoint(path, fingerprint=fingerprint)
    except StateError as error:
        logger.warning("checkpoint passed over: %s", error.message)
        return None
    return snapshot if (snapshot.epoch, snapshot.lineage) == (what.to_epoch, what.lineage) else None
