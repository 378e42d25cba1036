"""How full the links of a round's members were: what was planned for them, against what they could have carried."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from collab.types import PeerId

Use = tuple[float, float]
"""Of a link up and down, while the round lasted; 1: full at its measured rate. NaN: its rate is not known."""


def links_used(
    ended: Iterable[Mapping[str, Any]], planned: Iterable[Mapping[str, Any]]
) -> dict[str, dict[PeerId, Use]]:
    """By round that has committed, and whose plan was made here.

    Args:
        ended, planned: ``RoundEnded`` and ``RoundPlanned`` as ``event_fields``; some of an earlier version, perhaps.
    """
    plans = {told["round_id"]: told for told in planned}
    used: dict[str, dict[PeerId, Use]] = {}
    for told in ended:
        plan, seconds = plans.get(told["round_id"]), told["seconds"]
        if plan is None or not told["committed"] or not seconds:
            continue
        rates = {peer: (up, down) for peer, up, down, _ in plan["links"]}
        used[told["round_id"]] = {
            PeerId(peer): (_share(up, seconds, rates[peer][0]), _share(down, seconds, rates[peer][1]))
            for peer, up, down in plan.get("moves", ())
            if peer in rates
        }
    return used


def _share(moved_bytes: float, seconds: float, bytes_per_s: float) -> float:
    return moved_bytes / (seconds * bytes_per_s) if bytes_per_s > 0 else math.nan
