"""Where snapshots are published, one after the other, by one backbone at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collab.swarm.backbone_records import Publication
from collab.swarm.lease import Tenure
from collab.swarm.snapshots import Snapshot

Listener = Callable[[int, int], None]
"""Told how many bytes are done, and of how many, by whichever thread does them."""


def nobody(done_bytes: int, whole_bytes: int) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversight:
    """Of what is being written."""

    may_finish: Callable[[], bool] = lambda: True
    """Asked when all is written, right before it counts."""
    tell: Listener = nobody


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    epoch: int
    num_bytes: int
    is_new: bool = True
    """False: it was here already, and only how it was published has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """That something is to be published."""

    publication: Publication
    authority: Tenure
    """Of the lease's holder, on whose word it is done: the publication's own tenure, or a later one that found it."""
    may_finish: Callable[[], bool] = lambda: True
    """Asked once more, in the last moment: a process may have stood still while it wrote."""


class Publisher(Protocol):
    """One place, such as a disk or a repository. Its methods block; call them off the event loop."""

    def highest(self) -> Tenure:
        """The latest tenure that this place has heard of."""
        ...

    def publish(self, snapshot: Snapshot, order: Order) -> Checkpoint:
        """Make ``snapshot`` the newest one here, whole or not at all.

        Raises:
            Fenced: this place has heard of a later tenure than the order's, or the lease has ended meanwhile; nothing
                has changed.
            CheckpointFailed: it could not be written; nothing has changed.
        """
        ...
