"""What a backbone needs of the run's task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collab.swarm.snapshots import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a backbone needs of the task, without holding a model itself."""

    make_first_state: Callable[[], Snapshot] | None
    """None: somebody else makes it, and this backbone fetches what there is."""
    checkpoint_files: Callable[[], Mapping[str, bytes]]
    parameter_names: Callable[[], tuple[str, ...]] = tuple
    """Of the model's trainable parameters, in the order of the vector; for parameter servers."""
