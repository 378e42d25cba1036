"""Checkpoints that come from the Hub: every byte is checked before it is one of ours."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.checkpoints.aside import DAMAGED, put_aside
from collab.checkpoints.disk_errors import not_written
from collab.checkpoints.fence import Fence
from collab.checkpoints.file_names import FILE_NAME, MAX_FILES, TENSORS
from collab.checkpoints.hub_publisher import Standing, read_head, standing_of
from collab.checkpoints.hub_repository import Head, HubRepository
from collab.checkpoints.local import (
    STATE_FILE,
    UNFINISHED,
    is_whole,
    list_checkpoints,
    load_newest,
    path_of,
    read_state,
    verified_state,
)
from collab.checkpoints.rolled_back import aside_of, can_begin_again
from collab.errors import CheckpointFailed, CorruptState, StateError
from collab.swarm.orders import OrderBook
from collab.swarm.snapshots import Snapshot

NOT_EXPORTED = frozenset({"optimizer.safetensors"})
"""Two thirds of a checkpoint, and of no use to ``transformers``."""
COMING = f"{UNFINISHED}from-hub"
"""Folder for what has arrived of a checkpoint: a later start goes on with it, until another one is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What became of a checkpoint on the Hub that was asked for."""

    path: Path | None = None
    """Where it is on this disk now; None: this disk stays as it is."""
    why: str = ""
    """It does; for people."""
    hint: str = ""
    is_new: bool = True
    """False: it was on this disk before."""


def fetch_checkpoint(
    repository: HubRepository, folder: Path, *, fingerprint: str | None = None, without: Collection[str] = ()
) -> Path:
    """The checkpoint of a revision, whole and verified, in a folder of its own under ``folder``.

    A download that broke off is taken up where it was.

    Args:
        fingerprint: of the run that it should belong to; None: whatever run.
        without: files that are not fetched.

    Raises:
        HubError: it cannot be had.
        CorruptState: it is not what was published.
        StateError: it belongs to another run.
        CheckpointFailed: the disk does not take it.
    """
    head = repository.head()
    state = read_head(repository, head)
    if fingerprint is not None:
        _check_run(repository, state, fingerprint)
    return _fetch(repository, head, state, folder, without)


def bring_newest(
    repository: HubRepository, root: Path, *, fingerprint: str, orders: OrderBook | None = None
) -> Brought:
    """Have the run's checkpoint of a revision under ``root`` if it is a later one than this disk has, or the same.

    Of another history than the newest one here, such as one that was rolled back, nothing is taken. Where none here is
    whole, theirs is, and the damaged ones are put aside. Under which tenure the Hub's was published is remembered in
    any case: the next one of ours is a later one.

    Args:
        orders: as far as this disk knows them; what the last rollback among them has undone is not taken where this
            disk can go back itself.

    Raises:
        As ``fetch_checkpoint``.
    """
    head = repository.head()
    if STATE_FILE not in head.names:
        hint = "name a revision, or a repository, that a run has published in"
        return Brought(why=f"{repository.place} holds no checkpoint", hint=hint)
    state = read_head(repository, head)
    _check_run(repository, state, fingerprint)
    theirs, ours, fence = standing_of(state), load_newest(root, fingerprint=fingerprint), Fence(root)
    if theirs.tenure > fence.highest:
        fence.pass_through(theirs.tenure)
    place = path_of(root, theirs.epoch)
    if ours is not None and _is_same(path_of(root, ours.epoch), state):
        return Brought(path=path_of(root, ours.epoch), is_new=False)
    if ours is not None and (kept := _kept(ours, theirs, root, str(repository.place))):
        return kept
    if ours is None and orders is not None and _is_undone(theirs, orders, root):
        why = f"epoch {theirs.epoch} of {repository.place} is not taken over: the run was rolled back since"
        return Brought(why=why, hint="name the repository with --from to have it beside what the run goes on from")
    fetched = _fetch(repository, head, state, root / COMING)
    if ours is None:
        put_aside(list_checkpoints(root), DAMAGED)
    try:
        shutil.rmtree(place, ignore_errors=True)
        fetched.rename(place)
        shutil.rmtree(root / COMING, ignore_errors=True)
    except OSError as error:
        raise not_written(place, error) from error
    return Brought(path=place)


def _kept(ours: Snapshot, theirs: Standing, root: Path, place: str) -> Brought | None:
    """Why this disk stays as it is, and what to do; None: theirs is to be taken."""
    told = f"epoch {theirs.epoch} of {place} is not taken over"
    again = f"move {root} away and start again with the same --from; peers that hold later epochs bring them back"
    if ours.era != theirs.era:
        why = f"{told}: this disk keeps epoch {ours.epoch}, of another history: the run was rolled back in between"
        return Brought(why=why, hint=f"start without --from to go on from here; for the other history {again}")
    if theirs.epoch > ours.epoch:
        return None
    why = f"{told}: this disk keeps its epoch {ours.epoch}, which is not earlier"
    if path_of(root, theirs.epoch) in list_checkpoints(root) and theirs.epoch < ours.epoch:
        back = f"'collab-peer rollback DIR {theirs.epoch}'"
        return Brought(why=why, hint=f"start without --from; {back} takes the whole run back to that epoch")
    back = f"if they do, 'collab-peer rollback DIR {theirs.epoch}' takes all of them back"
    return Brought(why=why, hint=f"start without --from to go on from here; to go back {again}: {back}")


def _is_undone(theirs: Standing, orders: OrderBook, root: Path) -> bool:
    """Whether a rollback leaves no use for the state on the Hub: what it goes back to is here, or that state is.

    A history that we know nothing of may be that of a later rollback.
    """
    rollback = orders.rollback()
    if rollback is None or theirs.era not in orders.eras()[:-1]:
        return False
    is_set_aside = is_whole(path_of(aside_of(root, rollback.mark), theirs.epoch))
    return is_set_aside or can_begin_again(root, rollback, fingerprint=theirs.fingerprint)


def _is_same(path: Path, state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint here, which is whole, is the state on the Hub, whoever published it and when."""
    ours = read_state(path)
    has_its_tensors = all(ours["sha256"][name] == state["sha256"].get(name) for name in TENSORS)
    return has_its_tensors and all(ours.get(key, "") == state.get(key, "") for key in ("epoch", "lineage", "era"))


def export(checkpoint: Path, target: Path) -> int:
    """Copy what ``transformers`` loads to a new directory, whole or not at all; its epoch.

    Raises:
        CorruptState: the checkpoint is not whole.
        CheckpointFailed: the directory is there already, or cannot be written.
    """
    state = verified_state(checkpoint, NOT_EXPORTED)
    check_is_new(target)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name in state["sha256"]:
            if name not in NOT_EXPORTED:
                shutil.copyfile(checkpoint / name, unfinished / name)
        unfinished.rename(target)
    except OSError as error:
        raise not_written(target, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return int(state["epoch"])


def check_is_new(target: Path) -> None:
    """
    Raises:
        CheckpointFailed: there is something in the place of a directory that is to be made, or nobody can tell.
    """
    try:
        is_there = target.exists()
    except OSError as error:
        raise not_written(target, error) from error
    if is_there:
        raise CheckpointFailed(f"{target} exists already", hint="name a new directory")


def _fetch(
    repository: HubRepository, head: Head, state: Mapping[str, Any], folder: Path, without: Collection[str] = ()
) -> Path:
    names = [str(name) for name in state["sha256"] if name not in without]
    if len(names) > MAX_FILES or not all(FILE_NAME.fullmatch(name) for name in names):
        raise CorruptState(f"{repository.place} holds a checkpoint with files that no checkpoint has")
    place = folder / head.commit
    try:
        for other in folder.glob("*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        repository.fetch([*names, STATE_FILE], head, place)
        shutil.rmtree(place / ".cache", ignore_errors=True)  # of the Hub's client
    except OSError as error:
        raise not_written(place, error) from error
    try:
        verified_state(place, without)
    except CorruptState as error:
        shutil.rmtree(place, ignore_errors=True)  # another attempt begins anew
        raise CorruptState(f"{repository.place}: {error.message}", hint="try an earlier revision") from error
    return place


def _check_run(repository: HubRepository, state: Mapping[str, Any], fingerprint: str) -> None:
    if state["fingerprint"] != fingerprint:
        raise StateError(
            f"{repository.place} belongs to the run with fingerprint {state['fingerprint']}, "
            f"this run's is {fingerprint}",
            hint="the run file or the owner is another one; carry that run on with --from and --new-owner",
        )
