"""What of the units is in a checkpoint, and what of it is believed."""

import json

import numpy as np
import pytest

from collab.data.work_units import Unit
from collab.swarm.parameter_store.base import Kept, Push, lineage_of
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.swarm.snapshots import Snapshot
from peers.unit_ledger import DONE, FIRST_OPEN, RESTORED, UnitLedger
from tests.simulation.mortal_store import Way, units_done

SHARDS = 3
VALUES = np.array([1.0, 2.0], np.float32)


def state(version: int, scalars: dict[str, object]) -> Snapshot:
    return Snapshot(epoch=version, lineage=lineage_of(version), tensors={}, scalars=json.loads(json.dumps(scalars)))


def with_done(*units: Unit) -> InProcessStore:
    store = InProcessStore()
    store.begin(Kept.at_first(VALUES))
    for number, unit in enumerate(units):
        store.assimilate(Push(unit=unit, lease=f"l{number}", values=VALUES + 1, based_on=0, alpha=0.5))
    return store


def test_a_checkpoint_knows_which_units_of_open_passes_are_in_it() -> None:
    """One unit of the second pass is slow: the third has begun."""
    done = [Unit(1, 2), Unit(1, 0), Unit(1, 1), Unit(2, 0), Unit(2, 2), Unit(3, 1)]
    ledger = UnitLedger(with_done(*done), SHARDS)
    kept = ledger.kept()
    scalars = ledger.scalars(kept)
    assert scalars == {FIRST_OPEN: 2, DONE: [[2, 0, "l3"], [2, 2, "l4"], [3, 1, "l5"]]}
    other = InProcessStore()
    assert UnitLedger(other, SHARDS).begin(state(6, scalars), kept.stored.values)
    assert units_done(other, SHARDS) == sorted(done)
    assert other.done(2) == {0: "l3", 2: "l4"}
    assert other.version() == 6


def test_a_store_that_has_lost_its_last_pushes_has_an_earlier_pass_open_again() -> None:
    done = [Unit(1, 0), Unit(1, 1), Unit(1, 2), Unit(2, 0)]
    ledger = UnitLedger(with_done(*done), SHARDS)
    assert ledger.kept().first_open == 2
    ledger._store = with_done(*done[:2])
    assert ledger.scalars(ledger.kept()) == {FIRST_OPEN: 1, DONE: [[1, 0, "l0"], [1, 1, "l1"]]}


def test_a_checkpoint_knows_what_was_done_far_ahead() -> None:
    """Of the passes between nothing is done yet."""
    ledger = UnitLedger(with_done(Unit(1, 0), Unit(9, 2)), SHARDS)
    assert ledger.scalars(ledger.kept()) == {FIRST_OPEN: 1, DONE: [[1, 0, "l0"], [9, 2, "l1"]]}


def test_a_store_keeps_a_few_passes_however_many_are_done() -> None:
    done = [Unit(number, shard) for number in range(1, 20) for shard in range(SHARDS)]
    ledger = UnitLedger(store := with_done(*done, Unit(20, 1)), SHARDS)
    scalars = ledger.scalars(ledger.kept())
    assert scalars == {FIRST_OPEN: 20, DONE: [[20, 1, "l57"]]}
    assert list(store.passes()) == [17, 18, 19, 20]
    assert ledger.scalars(ledger.kept()) == scalars, "as often as it is asked"
    assert units_done(store, SHARDS) == [*done, Unit(20, 1)]


def test_what_a_full_store_holds_can_be_in_a_checkpoint() -> None:
    """It takes nothing, not even what it need not know any more."""
    done = [Unit(number, shard) for number in range(1, 9) for shard in range(SHARDS)]
    way = Way(with_done(*done))
    way.is_full = True
    assert UnitLedger(way, SHARDS).kept().stored.version == len(done)


def test_a_store_that_has_something_is_left_alone() -> None:
    store = with_done(Unit(1, 0))
    assert not UnitLedger(store, SHARDS).begin(state(0, {}), VALUES)
    assert store.version() == 1


@pytest.mark.parametrize(
    "scalars",
    [
        {},
        {FIRST_OPEN: 2},
        {FIRST_OPEN: 1 << 40, DONE: []},
        {FIRST_OPEN: 0, DONE: []},
        {FIRST_OPEN: True, DONE: []},
        {FIRST_OPEN: 2, DONE: [[1, 0, "x"]]},
        {FIRST_OPEN: 2, DONE: [[2, 3, "x"]]},
        {FIRST_OPEN: 2, DONE: [[2, 0]]},
        {FIRST_OPEN: 2, DONE: [[2, 0, "x" * 1000]]},
        {FIRST_OPEN: 2, DONE: [["2", 0, "x"]]},
        {FIRST_OPEN: 2, DONE: "x"},
    ],
)
def test_a_state_that_tells_nothing_sensible_counts_for_the_first_units(scalars: dict[str, object]) -> None:
    store = InProcessStore()
    assert UnitLedger(store, SHARDS).begin(state(4, scalars), VALUES)
    assert units_done(store, SHARDS) == [Unit(1, 0), Unit(1, 1), Unit(1, 2), Unit(2, 0)]
    assert store.done(2) == {0: RESTORED}
