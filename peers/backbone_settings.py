"""What an organiser decides of one backbone."""

from dataclasses import dataclass

from collab.checkpoints.base import Listener, nobody
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.identity import Identity
from collab.swarm.parameter_store.eras import EraStores
from peers.places import DataDir


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSettings:
    """What the organiser decides on the machine."""

    name: str
    data_dir: DataDir
    """Where it keeps its checkpoints, and what belongs to them."""
    stores: EraStores | None = None
    """Where the parameters of a run with parameter servers are; None: this backbone is none."""
    owner: Identity | None = None
    """Whose word ends a run that has reached its goal; None: another machine has the owner's key."""
    off: frozenset[Duty] = NOTHING_OFF
    """What it does not do. Relaying and metrics are not made here."""
    noted_era: str | None = None
    """Mark of the last rollback that its curves know of; None: they know what its newest checkpoint does."""
    tell_writing: Listener = nobody
    """How much of a checkpoint is on the disk."""
