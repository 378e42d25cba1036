"""How full the links of a round's members were: what was planned for them, against what they could have carried."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from collab.types import PeerId

WAYS = ("up", "down")
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


def fullest(used: Mapping[PeerId, Use]) -> tuple[PeerId, str, float] | None:
    """Whose link held the round up most, which way, and how full it was; None: nobody's rate is known."""
    shares = [(share, peer, way) for peer, use in used.items() for way, share in zip(WAYS, use, strict=True)]
    known = [one for one in shares if math.isfinite(one[0])]
    if not known:
        return None
    share, peer, way = max(known)
    return peer, way, share


def _share(moved_bytes: float, seconds: float, bytes_per_s: float) -> float:
    return moved_bytes / (seconds * bytes_per_s) if bytes_per_s > 0 else math.nan
