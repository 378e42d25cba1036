"""How full each member's links were in a round."""

import math
from typing import Any

from collab.types import PeerId
from peers.dashboard.link_use import fullest, links_used

A, B, NEW = (PeerId(name) for name in ("a", "b", "new"))
ENDED: dict[str, Any] = {"round_id": "r", "committed": True, "seconds": 2.0}
PLANNED: dict[str, Any] = {
    "round_id": "r",
    "links": [[A, 100.0, 400.0, "none"], [B, 50.0, 0.0, "none"], [NEW, 0.0, 0.0, "none"]],
    "moves": [[A, 100, 80], [B, 100, 80], [NEW, 10, 80]],
}


def test_use_is_what_was_planned_by_what_the_link_carries_in_that_time() -> None:
    used = links_used([ENDED], [PLANNED])["r"]
    assert used[A] == (0.5, 0.1)
    assert used[B][0] == 1.0
    assert all(math.isnan(share) for share in (used[B][1], *used[NEW])), "a rate that is not known has no share"


def test_nothing_is_said_of_rounds_that_were_lost_or_planned_elsewhere_or_by_an_earlier_version() -> None:
    assert links_used([{**ENDED, "committed": False}], [PLANNED]) == {}
    assert links_used([ENDED], [{**PLANNED, "round_id": "s"}]) == {}
    earlier = {name: value for name, value in PLANNED.items() if name != "moves"}
    assert links_used([ENDED], [earlier]) == {"r": {}}


def test_the_fullest_link_is_named_with_its_way_among_those_that_are_known() -> None:
    used = links_used([ENDED], [PLANNED])["r"]
    assert fullest(used) == (B, "up", 1.0)
    assert fullest({A: used[A]}) == (A, "up", 0.5)
    assert fullest({NEW: used[NEW]}) is None
    assert fullest({}) is None
