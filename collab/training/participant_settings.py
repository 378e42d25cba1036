"""What a peer that trains is told by its machine's owner."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collab.types import Reachability


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSettings:
    """What is this machine's own business."""

    name: str
    reach: Reachability = Reachability.DIRECT
    """How others get to this machine."""
    max_epochs: int | None = None
    """Finished after contributing to this many steps."""
    state_dir: Path | None = None
    """Where this peer keeps the run's state for its next life; None: nowhere."""
    allowed_modules: tuple[str, ...] = ()
    """Of others' code, what this machine's owner has allowed to run."""
    wants_credit: bool = False
    """Whether the name may be published with the model."""
    tell_download: Callable[[int, int], None] = lambda _here, _whole: None
    """Hears how far a download of the state is, in bytes."""
