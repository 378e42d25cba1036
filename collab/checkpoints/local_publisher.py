"""A backbone's own disk as a place where snapshots are published, and kept."""

import logging
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.checkpoints.aside import DAMAGED, SET_ASIDE, put_aside
from collab.checkpoints.base import Checkpoint, Listener, Order, Oversight, nobody
from collab.checkpoints.disk_errors import not_written
from collab.checkpoints.fence import Fence
from collab.checkpoints.file_names import why_unfit
from collab.checkpoints.local import (
    STATE_FILE,
    change_metrics,
    epoch_of,
    is_whole,
    list_checkpoints,
    load_checkpoint,
    metrics_of,
    path_of,
    prune,
    save_checkpoint,
)
from collab.checkpoints.rolled_back import begin_again
from collab.errors import CheckpointFailed, CollabError, CorruptState
from collab.swarm.backbone_records import Publication
from collab.swarm.lease import Tenure
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback
from collab.types import PeerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint that was read, and is whole."""

    snapshot: Snapshot
    publication: Publication | None
    """None: it is kept here, and was never published."""
    is_newest: bool
    """Whether no newer one is there that could not be read."""


class LocalPublisher:
    """Implements ``Publisher`` in one directory."""

    def __init__(
        self,
        root: Path,
        fingerprint: str,
        files: Callable[[], Mapping[str, bytes]],
        keep: int,
        tell: Listener = nobody,
    ) -> None:
        """
        Args:
            files: of the task, to lie beside the tensors: always the same ones, so they are asked for once.
            keep: how many of the newest checkpoints stay.
            tell: how much of one is on the disk.
        """
        self.root, self._tell = root, tell
        self._fingerprint, self._make_files, self._keep = fingerprint, files, keep
        self._files: Mapping[str, bytes] | None = None
        self._fence = Fence(root)
        self._damaged: list[Path] = []

    @property
    def damaged_epoch(self) -> int:
        """Of the newest checkpoint that was passed over when they were read last; -1: none was."""
        return max(map(epoch_of, self._damaged), default=-1)

    def highest(self) -> Tenure:
        """See ``Publisher``; also what the checkpoints say, should the fence's own file be lost."""
        paths = [*list_checkpoints(self.root), *list_checkpoints(self.root / DAMAGED)]
        published = map(_publication, paths)
        return max([self._fence.highest, *(one.tenure for one in published if one is not None)])

    def note(self, seen: Tenure) -> None:
        """A tenure was heard of.

        Raises:
            CheckpointFailed: that cannot be written down.
        """
        if seen > self._fence.highest:
            self._fence.pass_through(seen)

    def newest(self) -> Held | None:
        """The newest checkpoint whose every byte is right; damaged ones are named in the log and passed over.

        Raises:
            StateError: the newest one belongs to another run.
        """
        self._damaged = []
        for path in list_checkpoints(self.root):
            try:
                snapshot = load_checkpoint(path, fingerprint=self._fingerprint)
            except CorruptState as error:
                logger.warning("checkpoint passed over: %s", error.message)
                self._damaged.append(path)
            else:
                return Held(snapshot, _publication(path), is_newest=not self._damaged)
        return None

    def publish(self, snapshot: Snapshot, order: Order) -> Checkpoint:
        """See ``Publisher``. What is here already, whole and with the same bytes, only gets its new tenure."""
        self._fence.pass_through(order.authority)
        publication, path = order.publication, path_of(self.root, snapshot.epoch)
        is_same = metrics_of(path).get("published", {}).get("digest") == publication.digest
        if is_same and is_whole(path) and order.may_finish():
            change_metrics(path, _metrics(publication))
            num_bytes = sum(file.stat().st_size for file in path.iterdir())
            return Checkpoint(path, snapshot.epoch, num_bytes, is_new=False)
        return self._save(
            snapshot,
            _metrics(publication),
            lambda: order.may_finish() and self._fence.highest == order.authority,
        )

    def keep(self, snapshot: Snapshot, digest: str, eval_loss: float) -> Checkpoint:
        """Have a snapshot on the disk that is not the run's yet: nobody else may hold it.

        Raises:
            CheckpointFailed: it could not be written.
        """
        unpublished = Publication(
            epoch=snapshot.epoch,
            lineage=snapshot.lineage,
            digest=digest,
            term=0,
            holder=PeerId(""),
            eval_loss=eval_loss,
        )
        return self._save(snapshot, _metrics(unpublished), lambda: True)

    def set_aside_after(self, epoch: int) -> int:
        """Put the checkpoints of later epochs away: the swarm has gone on from an earlier one. How many there were."""
        later = [path for path in list_checkpoints(self.root) if epoch_of(path) > epoch]
        put_aside(later, SET_ASIDE)
        return len(later)

    def begin_again(self, what: Rollback, mark: str) -> Snapshot | None:
        """See the function of this name."""
        self._damaged = []  # what is here is set aside, whole or not
        return begin_again(self.root, what, mark, fingerprint=self._fingerprint)

    def _save(self, snapshot: Snapshot, metrics: Mapping[str, Any], may_finish: Callable[[], bool]) -> Checkpoint:
        saved = save_checkpoint(
            self.root,
            snapshot,
            fingerprint=self._fingerprint,
            files=self._made_files(),
            metrics=metrics,
            oversight=Oversight(may_finish=may_finish, tell=self._tell),
        )
        put_aside((path for path in self._damaged if path != saved.path), DAMAGED)
        self._damaged = []
        prune(self.root, self._keep)
        return saved

    def _made_files(self) -> Mapping[str, bytes]:
        """Of the task, which may need a disk of its own for them, and is somebody else's code.

        Raises:
            CheckpointFailed: they cannot be made; it is tried again with the next checkpoint.
        """
        if self._files is None:
            try:
                files = dict(self._make_files())
            except OSError as error:
                raise not_written(_temporary(), error) from error
            except CollabError as error:
                raise CheckpointFailed(error.message, hint=error.hint) from error
            except Exception as error:
                logger.exception("the task's files for checkpoints cannot be made")
                text = f"the task's files for checkpoints cannot be made: {error!r}"
                raise CheckpointFailed(text, hint="see the log, mend what it names, and start again") from error
            if STATE_FILE in files:
                why = f"the task's file {STATE_FILE} has the name of the checkpoint's own state file"
                raise CheckpointFailed(why, hint="change checkpoint_files() of the task")
            if why := why_unfit(files):
                logger.warning("%s: these checkpoints cannot be published on the Hub", why)
            self._files = files
        return self._files


def _temporary() -> Path:
    """Where the libraries that make a task's files put them down, unless an error names the place."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # there is none that takes anything
        return Path("the directory for temporary files (TMPDIR)")


def _metrics(publication: Publication) -> dict[str, Any]:
    published = {
        "term": publication.term,
        "holder": publication.holder,
        "digest": publication.digest,
        "lineage": publication.lineage,
    }
    measured = {"eval_loss": publication.eval_loss} if math.isfinite(publication.eval_loss) else {}
    return {**measured, "published": published}


def _publication(path: Path) -> Publication | None:
    """What a checkpoint says of how it was published."""
    metrics = metrics_of(path)
    try:
        told = metrics["published"]
        publication = Publication(
            epoch=epoch_of(path),
            lineage=told["lineage"],
            digest=told["digest"],
            term=told["term"],
            holder=PeerId(told["holder"]),
            eval_loss=float(metrics.get("eval_loss", math.nan)),
        )
        return publication if publication.term > 0 else None
    except (KeyError, TypeError, ValueError):
        return None
