"""What a backbone needs of the run's task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collab.swarm.forms import Forms
from collab.swarm.snapshots import Snapshot

if TYPE_CHECKING:
    from collab.tasks.base import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a backbone needs of the task, without holding a model itself."""

    make_first_state: Callable[[], Snapshot] | None
    """None: somebody else makes it, and this backbone fetches what there is."""
    checkpoint_files: Callable[[], Mapping[str, bytes]]
    evaluate: "Callable[[Snapshot], Evaluation] | None" = None
    """What a state is worth on the held-out split; None: this backbone does not measure."""
    copied_names: Callable[[], tuple[str, ...]] = tuple
    """Of what a client's copy of the model is made of, in the order of the vector; for parameter servers."""
    model_forms: Callable[[], Forms] | None = None
    """What each state of the run has of the model; None: this backbone compares with the state that it has only. Raises
    ``CollabError`` where the task cannot be had here."""
