"""Checkpoints that come from the Hub: every byte is checked before it is one of ours."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collab.checkpoints.fence import Fence
from collab.checkpoints.hub_publisher import read_head, standing_of
from collab.checkpoints.hub_repository import Head, HubRepository
from collab.checkpoints.local import STATE_FILE, list_checkpoints, load_newest, path_of, verified_state
from collab.errors import CheckpointFailed, CorruptState, StateError

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""Names come from others, and become names on our disk."""
MAX_FILES = 64


def fetch_checkpoint(repository: HubRepository, folder: Path, *, fingerprint: str | None = None) -> Path:
    """The checkpoint of a revision, whole and verified, in a folder of its own under ``folder``.

    A download that broke off is taken up where it was.

    Args:
        fingerprint: of the run that it should belong to; None: whatever run.

    Raises:
        HubError: it cannot be had.
        CorruptState: it is not what was published.
        StateError: it belongs to another run.
        CheckpointFailed: the disk does not take it.
    """
    head = repository.head()
    return _fetch(repository, head, read_head(repository, head), folder, fingerprint)


def bring_newest(repository: HubRepository, root: Path, *, fingerprint: str) -> Path | None:
    """Have the run's newest checkpoint under ``root`` if the Hub has a later one than this disk; None: it has none.

    Of another history than the newest one here, such as one that was rolled back, nothing is taken. Under which tenure
    the Hub's was published is remembered in any case: the next one of ours is a later one.

    Raises:
        As ``fetch_checkpoint``.
    """
    head = repository.head()
    if STATE_FILE not in head.names:
        return None
    state = read_head(repository, head)
    _check_run(repository, state, fingerprint)
    theirs, ours, fence = standing_of(state), load_newest(root, fingerprint=fingerprint), Fence(root)
    if theirs.tenure > fence.highest:
        fence.pass_through(theirs.tenure)
    if ours is not None and (ours.era != theirs.era or ours.epoch >= theirs.epoch):
        return None
    if list_checkpoints(root) and ours is None and theirs.epoch <= _newest_named(root):
        return None  # ours are damaged, and somebody else may hold a later one
    fetched = _fetch(repository, head, state, root / ".from-hub", fingerprint)
    place = path_of(root, theirs.epoch)
    try:
        shutil.rmtree(place, ignore_errors=True)
        fetched.rename(place)
        shutil.rmtree(root / ".from-hub", ignore_errors=True)
    except OSError as error:
        raise _not_written(place, error) from error
    return place


def export(checkpoint: Path, target: Path) -> int:
    """Copy what ``transformers`` loads to a new directory, whole or not at all; its epoch.

    Raises:
        CorruptState: the checkpoint is not whole.
        CheckpointFailed: the directory is there already, or cannot be written.
    """
    state = verified_state(checkpoint)
    unfinished = target.with_name(f".{target.name}.unfinished")
    if target.exists():
        raise CheckpointFailed(f"{target} exists already", hint="name a new directory")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name in state["sha256"]:
            if name != "optimizer.safetensors":
                shutil.copyfile(checkpoint / name, unfinished / name)
        unfinished.rename(target)
    except OSError as error:
        raise _not_written(target, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return int(state["epoch"])


def _fetch(
    repository: HubRepository, head: Head, state: Mapping[str, Any], folder: Path, fingerprint: str | None
) -> Path:
    names = [str(name) for name in state["sha256"]]
    if len(names) > MAX_FILES or not all(FILE_NAME.fullmatch(name) for name in names):
        raise CorruptState(f"{repository.place} holds a checkpoint with files that no checkpoint has")
    if fingerprint is not None:
        _check_run(repository, state, fingerprint)
    place = folder / head.commit
    try:
        for other in folder.glob("*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        repository.fetch([*names, STATE_FILE], head, place)
        shutil.rmtree(place / ".cache", ignore_errors=True)  # of the Hub's client
    except OSError as error:
        raise _not_written(place, error) from error
    try:
        verified_state(place)
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


def _newest_named(root: Path) -> int:
    return max(int(path.name.removeprefix("epoch-")) for path in list_checkpoints(root))


def _not_written(path: Path, error: OSError) -> CheckpointFailed:
    return CheckpointFailed(
        f"{path} could not be written: {error.strerror or error}", hint="free some space, or name a writable directory"
    )
