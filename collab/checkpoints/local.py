"""Checkpoints on disk: directories that ``transformers`` loads, written whole or not at all.

epoch-00000120/
  model.safetensors       parameters and buffers, named as the model names them
  optimizer.safetensors   optimiser state
  collab_state.json       epoch, lineage, fingerprint, metrics, under which tenure of the publishing lease it became
                          the run's, SHA-256 of every other file and of itself
  config.json, tokenizer.json, ...  whatever the task wants beside them
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy

from collab.checkpoints.base import Checkpoint, Oversight
from collab.checkpoints.synced import counting, write_synced
from collab.durable import replace_file, sync_directory
from collab.errors import CheckpointFailed, CorruptState, Fenced, StateError
from collab.swarm.snapshots import Snapshot
from collab.types import Lineage

logger = logging.getLogger(__name__)

STATE_FILE = "collab_state.json"
OWN_DIGEST = "sha256_of_state"
"""Key of the state file's digest over all its other content."""
UNFINISHED = ".unfinished-"
NAMED = re.compile(r"epoch-([0-9]{8,})")
NO_OVERSIGHT = Oversight()


def save_checkpoint(
    root: Path,
    snapshot: Snapshot,
    *,
    fingerprint: str,
    files: Mapping[str, bytes],
    metrics: Mapping[str, Any],
    oversight: Oversight = NO_OVERSIGHT,
) -> Checkpoint:
    """Write a checkpoint under ``root``; it appears under its name only when all of it is on the disk.

    Args:
        files: further files by name, from the task.
        metrics: JSON values to keep with it (``eval_loss``, ``published``).
        oversight: asked right before it gets its name, and told of what is on the disk.

    Raises:
        CheckpointFailed: the disk is full or not writable; earlier checkpoints are untouched.
        Fenced: it may not; earlier checkpoints are untouched.
    """
    final = path_of(root, snapshot.epoch)
    unfinished = root / f"{UNFINISHED}{final.name}"
    contents = dict(files)
    contents["model.safetensors"] = _tensors(snapshot, "model.")
    contents["optimizer.safetensors"] = _tensors(snapshot, "optimizer.")
    state = {
        "epoch": snapshot.epoch,
        "lineage": snapshot.lineage,
        "era": snapshot.era,
        "fingerprint": fingerprint,
        "metrics": dict(metrics),
        "scalars": dict(snapshot.scalars),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())},
    }
    contents[STATE_FILE] = state_bytes(state)
    num_bytes = sum(map(len, contents.values()))
    wrote = counting(num_bytes, oversight.tell)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, data in contents.items():
            write_synced(unfinished / name, data, wrote)
        sync_directory(unfinished)
        if not oversight.may_finish():
            raise Fenced(f"the checkpoint of epoch {snapshot.epoch} took longer than our turn to publish")
        _put_in_place(unfinished, final)
    except OSError as error:
        raise CheckpointFailed(
            f"the checkpoint of epoch {snapshot.epoch} ({num_bytes / 1e6:.1f} MB) "
            f"could not be written to {root}: {error.strerror or error}",
            hint="free some space there, or use a directory that can be written; the last good checkpoint is untouched",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Checkpoint(final, snapshot.epoch, num_bytes)


def metrics_of(path: Path) -> Mapping[str, Any]:
    """What is kept with a checkpoint; empty when it cannot be read."""
    try:
        state = read_state(path)
        return dict(state["metrics"])
    except (OSError, ValueError, KeyError, TypeError, CorruptState):
        return {}


def change_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Keep other values with a checkpoint; its tensors stay as they are.

    Raises:
        CheckpointFailed: the disk does not take it; the checkpoint is as it was.
        CorruptState: it cannot be read.
    """
    try:
        state = read_state(path)
        replace_file(path / STATE_FILE, state_bytes({**state, "metrics": dict(metrics)}))
    except OSError as error:
        raise CheckpointFailed(
            f"{path / STATE_FILE} could not be changed: {error.strerror or error}",
            hint="free some space, or make the directory writable; the checkpoint is as it was",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(f"{path} cannot be read: {error!r}") from error


def path_of(root: Path, epoch: int) -> Path:
    """Where the checkpoint of an epoch lies, if there is one."""
    return root / f"epoch-{epoch:08d}"


def epoch_of(path: Path) -> int:
    """Of a checkpoint, by its name; -1: it is called otherwise, such as a copy that a person has made."""
    named = NAMED.fullmatch(path.name)
    return int(named[1]) if named is not None else -1


def found_in(root: Path) -> list[Path]:
    """Directories of finished checkpoints, newest first, and copies of some that a person has made."""
    return sorted((path for path in root.glob("epoch-*") if (path / STATE_FILE).is_file()), reverse=True)


def list_checkpoints(root: Path) -> list[Path]:
    """Directories of finished checkpoints, newest first."""
    return [path for path in found_in(root) if epoch_of(path) >= 0]


def load_newest(root: Path, *, fingerprint: str) -> Snapshot | None:
    """The newest checkpoint whose every byte is right; damaged ones are named in the log and passed over.

    Raises:
        StateError: the newest one belongs to another run.
    """
    for path in list_checkpoints(root):
        try:
            return load_checkpoint(path, fingerprint=fingerprint)
        except CorruptState as error:
            logger.warning("checkpoint passed over: %s", error.message)
    return None


def load_checkpoint(path: Path, *, fingerprint: str | None) -> Snapshot:
    """Read one checkpoint and verify all of it.

    Args:
        fingerprint: of the run that it should belong to; None: whatever run.

    Raises:
        CorruptState: a file is missing, cut or changed.
        StateError: it belongs to another run; both fingerprints are named.
    """
    try:
        state = read_state(path)
        contents = {name: (path / name).read_bytes() for name in state["sha256"]}
        _refuse_damaged(path, state, {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
        if fingerprint is not None and state["fingerprint"] != fingerprint:
            raise StateError(
                f"{path} belongs to the run with fingerprint {state['fingerprint']}, this run's is {fingerprint}",
                hint="the run file was changed since; restore it, or use a new directory for the new run",
            )
        tensors = {
            f"{prefix}.{name}": tensor
            for prefix in ("model", "optimizer")
            for name, tensor in safetensors.numpy.load(contents[f"{prefix}.safetensors"]).items()
        }
        return Snapshot(
            epoch=int(state["epoch"]),
            lineage=Lineage(state["lineage"]),
            tensors=tensors,
            scalars=state["scalars"],
            era=str(state.get("era", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CorruptState(f"{path} cannot be read: {error!r}") from error


def verified_state(path: Path, without: Collection[str] = ()) -> dict[str, Any]:
    """What the state file of a checkpoint says, when every file is as it says; none is held in memory.

    Args:
        without: files that are not looked at, and need not be there.

    Raises:
        CorruptState: a file is missing, cut or changed.
    """
    try:
        state = read_state(path)
        digests = {}
        for name in (name for name in state["sha256"] if name not in without):
            with (path / name).open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        _refuse_damaged(path, state, digests)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptState(f"{path} cannot be read: {error!r}") from error
    return state


def is_whole(path: Path) -> bool:
    """Whether every file of a checkpoint is as its state file says."""
    try:
        verified_state(path)
    except CorruptState:
        return False
    return True


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what a crash left unfinished."""
    _remove(list_checkpoints(root)[keep:])
    for path in root.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def forget_after(root: Path, epoch: int) -> None:
    """Delete the checkpoints of later epochs."""
    _remove([path for path in list_checkpoints(root) if epoch_of(path) > epoch])


def _remove(paths: list[Path]) -> None:
    """Of one of which a crash leaves half the name says so, and the next ``prune`` removes the rest."""
    for path in paths:
        doomed = path.with_name(f"{UNFINISHED}removed-{path.name}")
        try:
            path.rename(doomed)
        except OSError as error:
            logger.warning("a checkpoint that is not wanted any more stays path=%s: %s", path, error)
        shutil.rmtree(doomed, ignore_errors=True)


def _tensors(snapshot: Snapshot, prefix: str) -> bytes:
    tensors = {n.removeprefix(prefix): t for n, t in sorted(snapshot.tensors.items()) if n.startswith(prefix)}
    data: bytes = safetensors.numpy.save(tensors, {"format": "pt"})  # transformers insists on the word
    return data


def _refuse_damaged(path: Path, state: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    damaged = [name for name, digest in digests.items() if digest != state["sha256"][name]]
    if damaged:
        raise CorruptState(f"{path}: {', '.join(damaged)} is not what was written")


def read_state(path: Path) -> dict[str, Any]:
    """What the state file of a checkpoint says; its other files are not looked at.

    Raises ``CorruptState`` when it is not what was written, and whatever reading raises.
    """
    state = json.loads((path / STATE_FILE).read_bytes())
    if not isinstance(state, dict):
        raise CorruptState(f"{path}: {STATE_FILE} holds no object")
    if _digest_of_state(state) != state[OWN_DIGEST]:
        raise CorruptState(f"{path}: {STATE_FILE} is not what was written")
    return state


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """A state file with this content, and its own digest."""
    signed = {**state, OWN_DIGEST: _digest_of_state(state)}
    return json.dumps(signed, indent=1, sort_keys=True).encode()


def _digest_of_state(state: Mapping[str, Any]) -> str:
    content = {key: value for key, value in state.items() if key != OWN_DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _put_in_place(unfinished: Path, final: Path) -> None:
    """Give a whole checkpoint its name; an older one of that name is kept until then, and comes back on an error."""
    replaced = final.parent / f"{UNFINISHED}replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    try:
        unfinished.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
