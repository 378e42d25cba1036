"""What stands in the way of a backbone, as its panel has it for as long as it does."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peers.serving import watch

WELL = "", ""
FULL, FREE = "the disk takes no checkpoints", "free some space"
AWAY, WAIT = "epoch 7 is not on the Hub", "it is tried again"
OLD, UPGRADE = "this run needs version 0.2.0 of collab, this is 0.1.0", "upgrade this machine"


@pytest.mark.parametrize(
    ("not_saved", "problem", "not_published", "too_old", "shown"),
    [
        (WELL, "", WELL, WELL, ""),
        (WELL, "", WELL, (OLD, UPGRADE), f"{OLD}\n  -> {UPGRADE}"),
        (WELL, "", (AWAY, WAIT), (OLD, UPGRADE), f"{AWAY}\n  -> {WAIT}"),
        (WELL, "no state of the run is here yet", (AWAY, WAIT), WELL, "no state of the run is here yet"),
        ((FULL, FREE), FULL, (AWAY, WAIT), (OLD, UPGRADE), f"{FULL}\n  -> {FREE}"),
    ],
)
def test_the_worst_that_lasts_is_told_with_what_to_do(
    not_saved: tuple[str, str], problem: str, not_published: tuple[str, str], too_old: tuple[str, str], shown: str
) -> None:
    """What was told once goes with the next step; this stays."""
    backbone = SimpleNamespace(
        statutes=SimpleNamespace(mandate=None), membership=None, reporter=SimpleNamespace(credible=None),
        not_saved=lambda: not_saved, problem=lambda: problem,
        outdated=SimpleNamespace(problem=lambda: too_old),
    )  # fmt: skip
    started = SimpleNamespace(ports=SimpleNamespace(clock=None), refusals=SimpleNamespace(rows=list))
    bundle = SimpleNamespace(run=SimpleNamespace(run_id="a-run"))
    watched = watch(cast(Any, backbone), cast(Any, started), cast(Any, bundle), "", lambda: not_published)
    assert watched.problem() == shown
