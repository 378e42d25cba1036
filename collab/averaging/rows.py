"""Rounds of many windows: how long their rows and parts are, who reduces them, and how often they come. Pure.

Of a short vector a round costs the ways and not the bytes. So all rows go to one reducer, the one that is nearest to
whoever is farthest from it: a row is back after a way to it and a way back, where with a span at every peer each would
wait for the two that are farthest from each other.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from collab.averaging.messages import MAX_ROWS_S, Join
from collab.averaging.plan import SMALLEST_PART_ELEMENTS, Span
from collab.types import PeerId

ROWS_A_TRIP = 4
"""A row is on its way for a round trip and waits for its end for an interval: shorter ones shorten little."""
SHORTEST_ROW_S = 0.02
"""Messages and acknowledgements of a row cost each peer some milliseconds."""
LONGEST_ROUND_S = 8.0
"""For the last row to be over: whoever comes meanwhile waits, and a round that is lost gives so much back."""
MANY = 5
"""Who misses a round waits for all of its windows. If more than one of so many trainers does, all windows end at once,
and the round soon."""
FULL = 1.25
"""Times what the links that were seen full need for a row."""
ROW_BYTES = 4
"""An element; codecs may make it less."""


def padded(num_elements: int) -> int:
    """Length of a row for so many parameters, that parts divide: the rest is zeros."""
    if num_elements <= SMALLEST_PART_ELEMENTS:
        return num_elements
    return -(-num_elements // SMALLEST_PART_ELEMENTS) * SMALLEST_PART_ELEMENTS


def part_of_row(longest: int, row_elements: int) -> int:
    """Length of parts, at most ``longest``, of which none is of two rows.

    Raises:
        ValueError: the row is not ``padded``.
    """
    unit = SMALLEST_PART_ELEMENTS
    if row_elements < unit:
        return row_elements
    if row_elements % unit:
        raise ValueError(f"rows of {row_elements} elements are not cut into parts")
    units = row_elements // unit
    return unit * max(k for k in range(1, max(longest // unit, 1) + 1) if units % k == 0)


def hub_of(joins: Mapping[PeerId, Join], row_elements: int) -> PeerId:
    """Who reduces all rows: of those that know how far the others are the nearest, with its link's time for a row."""
    able = {peer: join for peer, join in joins.items() if join.can_reduce}
    return min(able, key=lambda peer: (_trip_s(able[peer]) + _transfer_s(able[peer], row_elements, len(joins)), peer))


def waits_for_next(trainers: Collection[PeerId], here: Collection[PeerId]) -> bool:
    """Whether so many of ``trainers`` are not here that the next round should be soon, as at the start of a run."""
    return len(set(trainers) - set(here)) * MANY > len(trainers)


def row_interval_s(
    joins: Mapping[PeerId, Join], spans: Sequence[Span], rows: int, batch_s: float, *, least_s: float = 0.0
) -> float:
    """From the end of one window to the end of the next: a target batch, if rows are not too dense or too far apart.

    Args:
        spans: as planned: one reducer has all rows.
        batch_s: in which all trainers together compute a target batch; infinite: not known; 0: the round is short.
        least_s: what the run asks for, however long the round is then.
    """
    if rows == 1 or not batch_s:
        return 0.0
    hub, row_elements = spans[0].reducer, spans[-1].stop // rows
    trip_s = _trip_s(joins[hub]) if joins[hub].farthest_s else 0.0
    wanted_s = max(batch_s if math.isfinite(batch_s) else 0.0, trip_s / ROWS_A_TRIP, SHORTEST_ROW_S)
    needed_s = max(_transfer_s(join, row_elements, len(joins) if p == hub else 2) for p, join in joins.items())
    return min(max(min(wanted_s, LONGEST_ROUND_S / rows), least_s, FULL * needed_s), MAX_ROWS_S / (rows + 1))


def _trip_s(join: Join) -> float:
    return join.farthest_s or math.inf


def _transfer_s(join: Join, row_elements: int, num_members: int) -> float:
    """For a row on a link that was seen full: what was seen of others says only how much there was to send."""
    sent = (num_members - 1) * row_elements * ROW_BYTES
    up_s = sent / join.up_bytes_per_s if join.up_is_limit and join.up_bytes_per_s > 0 else 0.0
    down_s = sent / join.down_bytes_per_s if join.down_is_limit and join.down_bytes_per_s > 0 else 0.0
    return max(up_s, down_s)


def folded(used: Collection[tuple[int, int]], row: int, row_elements: int, num_elements: int) -> list[tuple[int, int]]:
    """What of ``used``, (start, stop) of the whole vector, lies in the first ``num_elements`` of one row."""
    first = row * row_elements
    cut = ((max(start - first, 0), min(stop - first, num_elements)) for start, stop in sorted(used))
    return [(start, stop) for start, stop in cut if start < stop]
