"""Fleets of preemptible machines worked through in simulation, with the units' real bookkeeping, beside the formula."""

import heapq
import itertools
import math
import random
import statistics
from dataclasses import dataclass
from typing import Any

from collab.data.work_units import Unit, WorkUnits
from collab.fleet_cost import Fleet, compare
from collab.types import PeerId


@dataclass(frozen=True, slots=True)
class Worked:
    """One fleet's run."""

    lost_s: float
    """That a place lost to preemptions, in the mean over places."""
    seconds: float
    """Until the last unit was done."""


def work_through(fleet: Fleet, rng: random.Random) -> Worked:
    """All units of a fleet; a machine that is preempted is replaced when its unit's lease is over.

    Whether a unit's machine is preempted is drawn anew for each attempt. The unit goes out again, to whichever place is
    free first, as ``WorkUnits`` has it.

    Raises:
        ValueError: leases do not last for ``lost_s``.
    """
    names, turns = itertools.count(), itertools.count()
    units = WorkUnits(shards=fleet.units, passes=1, first_s=fleet.lost_s, name=lambda: f"{next(names)}")
    places, lost_s, now_s = fleet.clients * fleet.at_once, 0.0, 0.0
    free: list[tuple[float, int, int, Unit | None]] = [(0.0, next(turns), place, None) for place in range(places)]
    """When each place is free, in turns, and the unit that it has done then."""
    while True:
        now_s, _, place, done = heapq.heappop(free)
        if done is not None:
            units.note_done(done, now_s)
        if units.is_finished:
            return Worked(lost_s / places, now_s)
        lease = units.take(PeerId(f"{next(names)}"), now_s)  # who was preempted has been replaced
        if lease is None:  # all that is left is out at others
            ends = [lease.until_s for lease in units.out()] + [at_s for at_s, _, _, busy in free if busy is not None]
            then_s, unit = min(ends), None
        elif rng.random() >= fleet.preemption:
            then_s, unit = now_s + fleet.unit_s, lease.unit
        elif not math.isclose(lease.until_s - now_s, fleet.lost_s):
            raise ValueError(f"a lease of {lease.until_s - now_s} s, and not of {fleet.lost_s}")
        else:
            lost_s += fleet.lost_s
            then_s, unit = lease.until_s, None
        heapq.heappush(free, (then_s, next(turns), place, unit))


def preempted(fleet: Fleet, *, runs: int, seed: int) -> dict[str, Any]:
    """Many runs of a fleet beside what is expected, in minutes."""
    rng, expected = random.Random(seed), compare(fleet)
    worked = [work_through(fleet, rng) for _ in range(runs)]
    lost_s = [each.lost_s for each in worked]
    error_s = statistics.stdev(lost_s) / math.sqrt(runs)
    off = (statistics.fmean(lost_s) - expected.extra_s) / error_s
    return {
        "p": fleet.preemption,
        "runs": runs,
        "lost_min": round(statistics.fmean(lost_s) / 60, 3),
        "standard_error_min": round(error_s / 60, 3),
        "expected_min": round(expected.extra_s / 60, 3),
        "published_min": round(expected.extra_once_s / 60, 3),
        "standard_errors_off": round(off, 2),
        "longer_min": round((statistics.fmean(e.seconds for e in worked) - expected.staying.seconds) / 60, 3),
    }
