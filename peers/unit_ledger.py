"""Which units of work are in a checkpoint, so that a store that was lost can go on from it."""

import numpy as np

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.swarm.parameter_store.base import Kept, ParameterStore, Stored
from collab.swarm.snapshots import Snapshot
from collab.types import Vector

FIRST_OPEN, DONE = "units.first_open", "units.done"
"""Keys of a checkpoint's scalars: the first pass that is not done, and what is done of that one and later ones."""
LONGEST_LEASE = 128
"""Characters of its name."""
RESTORED = "restored"
"""Lease of units that nobody knows more of than that they are done."""


class UnitLedger:
    """Of one store."""

    def __init__(self, store: ParameterStore, shards: int) -> None:
        self._store, self._shards = store, shards
        self.first_open = 1
        """Passes before this one are done."""

    def kept(self) -> Kept:
        """The parameters with what is done of the passes that are not done. Blocks.

        Raises:
            StateError: there is nothing, or nothing any more.
        """
        while self.first_open > 1 and len(self._store.done(self.first_open - 1)) < self._shards:
            self.first_open -= 1  # the store has lost its last pushes
        while len(self._store.done(self.first_open)) == self._shards:
            self.first_open += 1
        kept = self._store.keep(self.first_open)
        if kept is None:
            raise StateError("the parameter store was emptied", hint="who else uses it?")
        return kept

    def scalars(self, kept: Kept) -> dict[str, object]:
        """For the checkpoint of what was ``kept``."""
        done = sorted([unit.pass_number, unit.shard, lease] for unit, lease in kept.done.items())
        return {FIRST_OPEN: self.first_open, DONE: done}

    def begin(self, snapshot: Snapshot, values: Vector) -> bool:
        """Begin the store with a checkpoint; whether it was empty. Blocks.

        Where the state does not tell which units are in it, as that of a client, the first ones are taken for those.
        """
        done = _done_told(snapshot, self._shards) or self._first(snapshot.epoch)
        self.first_open = 1
        return self._store.begin(Kept(Stored(snapshot.epoch, np.array(values)), done))

    def _first(self, number: int) -> dict[Unit, str]:
        return {Unit(each // self._shards + 1, each % self._shards): RESTORED for each in range(number)}


def _done_told(snapshot: Snapshot, shards: int) -> dict[Unit, str] | None:
    """What a checkpoint says is done; None: nothing that makes sense."""
    first_open, rows = snapshot.scalars.get(FIRST_OPEN), snapshot.scalars.get(DONE)
    if type(first_open) is not int or not isinstance(rows, list) or not 1 <= first_open <= snapshot.epoch + 1:
        return None
    done = {Unit(number, shard): RESTORED for number in range(1, first_open) for shard in range(shards)}
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            return None
        number, shard, lease = row
        is_unit = type(number) is int and type(shard) is int and number >= first_open and 0 <= shard < shards
        if not is_unit or not isinstance(lease, str) or len(lease) > LONGEST_LEASE:
            return None
        done[Unit(number, shard)] = lease
    return done
