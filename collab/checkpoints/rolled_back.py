"""A checkpoint that the organiser has gone back to, as the beginning of another history.

checkpoints/epoch-*                   those of the present history
checkpoints/before-rollback-MARK/     those that were there when a backbone heard of the rollback of this mark
checkpoints/held-for-rollback-MARK/   the one to go back to, from before anybody heard of that
"""

import logging
import os
import shutil
from itertools import chain, count
from pathlib import Path

from collab.checkpoints.local import (
    STATE_FILE,
    UNFINISHED,
    found_in,
    load_checkpoint,
    path_of,
    read_state,
    verified_state,
)
from collab.durable import sync_directory
from collab.errors import CheckpointFailed, CorruptState, StateError
from collab.swarm.orders import Order
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback

logger = logging.getLogger(__name__)


def checkpoints_to_go_back_to(root: Path, era: str, fingerprint: str) -> dict[int, tuple[Path, Rollback]]:
    """By epoch: those of the present history, else what the rollback that began it has set aside, or will when a
    backbone hears of it; only their state files are read.

    Args:
        era: mark of that rollback; empty: there was none.
    """
    found: dict[int, tuple[Path, Rollback]] = {}
    is_unheard = bool(era) and not aside_of(root, era).exists()
    places = (aside_of(root, era), _held_for(root, era)) if era else ()
    before = [path for place in places for path in found_in(place)]
    for path in [*before, *found_in(root)]:
        try:
            state = read_state(path)
            epoch, lineage, its_era = int(state["epoch"]), str(state["lineage"]), str(state.get("era", ""))
            is_ours = state["fingerprint"] == fingerprint
        except (OSError, ValueError, KeyError, TypeError, CorruptState) as error:
            logger.warning("checkpoint passed over path=%s: %r", path, error)
            continue
        if is_ours and (its_era == era or is_unheard or path in before):
            found[epoch] = path, Rollback(to_epoch=epoch, lineage=lineage)
    return found


def hold(root: Path, path: Path, what: Rollback, mark: str) -> None:
    """Have the checkpoint of the rollback of this mark, whatever becomes of ``path`` until a backbone hears of that.

    Raises:
        CorruptState: it is not whole, or another one; it may have been deleted or replaced meanwhile.
        CheckpointFailed: the directory cannot be written.
    """
    held = _held_for(root, mark)
    final = path_of(held, what.to_epoch)
    unfinished = held / f"{UNFINISHED}{final.name}"
    try:
        shutil.copytree(path, unfinished, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
        state = verified_state(unfinished)
        if (int(state["epoch"]), str(state["lineage"])) != (what.to_epoch, what.lineage):
            raise CorruptState(f"{path} was replaced a moment ago")
        for made in (held, unfinished):
            _belongs_as(root, made)
        unfinished.rename(final)
        sync_directory(held)
        sync_directory(root)
    except BaseException as error:
        shutil.rmtree(held, ignore_errors=True)
        if isinstance(error, OSError) and (path / STATE_FILE).is_file():
            hint = "free some space there, or give this order as the user whose backbone it is"
            raise CheckpointFailed(f"{path} cannot be held in {held.name}: {error}", hint=hint) from error
        if isinstance(error, OSError | CorruptState):
            raise CorruptState(f"{path} is not whole, or was deleted a moment ago") from error
        raise


def begin_again(root: Path, what: Rollback, mark: str, *, fingerprint: str) -> Snapshot | None:
    """The state to go on from; what is in ``root`` is set aside. None: the checkpoint is not there.

    It may come again: a life that was killed meanwhile has set some or all of them aside, and has published nothing.

    Args:
        mark: of the order.

    Raises:
        CheckpointFailed: the directory cannot be written.
    """
    snapshot = _found_anywhere(root, what, mark, fingerprint)
    set_aside(root, mark)
    return snapshot.after_rollback(mark) if snapshot is not None else None


def can_begin_again(root: Path, rollback: Order, *, fingerprint: str) -> bool:
    """Whether the checkpoint that a rollback goes back to is here, and whole."""
    what = rollback.what
    return isinstance(what, Rollback) and _found_anywhere(root, what, rollback.mark, fingerprint) is not None


def set_aside(root: Path, mark: str) -> None:
    """Move all checkpoints to a folder that is named for a rollback: kept, and never loaded by themselves.

    One that an earlier life has put there keeps its name, and another one of its epoch gets a number.

    Raises:
        CheckpointFailed: they cannot be moved.
    """
    aside = aside_of(root, mark)
    try:
        for path in found_in(root):
            aside.mkdir(exist_ok=True)
            path.rename(_free(aside / path.name))
    except OSError as error:
        raise CheckpointFailed(
            f"the checkpoints in {root} cannot be moved to {aside.name}: {error.strerror or error}",
            hint="make the directory writable",
        ) from error


def aside_of(root: Path, mark: str) -> Path:
    """Where ``set_aside`` puts them."""
    return root / f"before-rollback-{mark}"


def _free(place: Path) -> Path:
    """This one, or, where something lies there, one beside it with a number."""
    numbered = (place.with_name(f"{place.name}-{number}") for number in count(2))
    return next(one for one in chain([place], numbered) if not one.exists())


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
        with Path(target).open("rb") as copied:
            os.fsync(copied.fileno())


def _belongs_as(root: Path, made: Path) -> None:
    """A backbone may enter it that may enter ``root``, whoever gives the order."""
    shutil.copymode(root, made)
    if os.geteuid() == 0:
        os.chown(made, root.stat().st_uid, root.stat().st_gid)


def _found_anywhere(root: Path, what: Rollback, mark: str, fingerprint: str) -> Snapshot | None:
    places = root, aside_of(root, mark), _held_for(root, mark)
    return next(filter(None, (_found(place, what, fingerprint) for place in places)), None)


def _found(place: Path, what: Rollback, fingerprint: str) -> Snapshot | None:
    path = path_of(place, what.to_epoch)
    try:
        snapshot = load_checkpoint(path, fingerprint=fingerprint) if path.is_dir() else None
    except (StateError, OSError) as error:
        logger.warning("checkpoint passed over path=%s: %s", path, error)
        return None
    if snapshot is None or (snapshot.epoch, snapshot.lineage) != (what.to_epoch, what.lineage):
        return None
    return snapshot
