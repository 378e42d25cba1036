"""Which units of work are in a checkpoint, so that a store that was lost can go on from it."""

import logging
from collections import Counter

import numpy as np

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.swarm.parameter_store.base import Kept, ParameterStore, Stored
from collab.swarm.snapshots import Snapshot
from collab.types import Vector

logger = logging.getLogger(__name__)

FIRST_OPEN, DONE = "units.first_open", "units.done"
"""Keys of a checkpoint's scalars: the first pass that is not done, and what is done of that one and later ones."""
LONGEST_LEASE = 128
"""Characters of its name."""
PASSES_KEPT = 3
"""Done ones of which the store knows whose push is in it: one whose answer was lost comes again, and is told so."""
RESTORED = "restored"
"""Lease of units that nobody knows more of than that they are done."""


class UnitLedger:
    """Of one store."""

    def __init__(self, store: ParameterStore, shards: int) -> None:
        self._store, self._shards = store, shards

    def kept(self) -> Kept:
        """The parameters with what is done of the passes that are not done; what is older is settled. Blocks.

        Raises:
            StateError: there is nothing, or nothing any more.
        """
        kept = self._store.keep()
        if kept is None:
            raise StateError("the parameter store was emptied", hint="who else uses it?")
        shards, first_open = Counter(unit.pass_number for unit in kept.done), kept.first_open
        while shards[first_open] == self._shards:
            first_open += 1
        self._settle(first_open - PASSES_KEPT)
        done = {unit: lease for unit, lease in kept.done.items() if unit.pass_number >= first_open}
        return Kept(kept.stored, done, first_open)

    def _settle(self, first_open: int) -> None:
        """What is taken can be in a checkpoint though a store is full."""
        try:
            self._store.settle(first_open)
        except StateError as error:
            logger.warning("the parameter store still knows who did what is done: %s; %s", error.message, error.hint)

    def scalars(self, kept: Kept) -> dict[str, object]:
        """For the checkpoint of what was ``kept``."""
        done = sorted([unit.pass_number, unit.shard, lease] for unit, lease in kept.done.items())
        return {FIRST_OPEN: kept.first_open, DONE: done}

    def begin(self, snapshot: Snapshot, values: Vector) -> bool:
        """Begin the store with a checkpoint; whether it was empty. Blocks.

        Where the state does not tell which units are in it, as that of a client, the first ones are taken for those.
        """
        stored = Stored(snapshot.epoch, np.array(values))
        return self._store.begin(_told(snapshot, stored, self._shards) or _first(stored, self._shards))


def _first(stored: Stored, shards: int) -> Kept:
    passes, units = divmod(stored.version, shards)
    return Kept(stored, {Unit(passes + 1, shard): RESTORED for shard in range(units)}, passes + 1)


def _told(snapshot: Snapshot, stored: Stored, shards: int) -> Kept | None:
    """What a checkpoint says is done; None: nothing that makes sense."""
    first_open, rows = snapshot.scalars.get(FIRST_OPEN), snapshot.scalars.get(DONE)
    if type(first_open) is not int or not isinstance(rows, list) or not 1 <= first_open <= snapshot.epoch + 1:
        return None
    done: dict[Unit, str] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            return None
        number, shard, lease = row
        is_unit = type(number) is int and type(shard) is int and number >= first_open and 0 <= shard < shards
        if not is_unit or not isinstance(lease, str) or len(lease) > LONGEST_LEASE:
            return None
        done[Unit(number, shard)] = lease
    return Kept(stored, done, first_open)
