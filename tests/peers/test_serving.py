"""What stands in the way of a backbone, as its panel has it for as long as it does."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peers.serving import watch

WELL = "", ""
FULL, FREE = "the disk takes no checkpoints", "free some space"
AWAY, WAIT = "epoch 7 is not on the Hub", "it is tried again"


@pytest.mark.parametrize(
    ("not_saved", "problem", "not_published", "shown"),
    [
        (WELL, "", WELL, ""),
        (WELL, "", (AWAY, WAIT), f"{AWAY}\n  -> {WAIT}"),
        (WELL, "no state of the run is here yet", (AWAY, WAIT), "no state of the run is here yet"),
        ((FULL, FREE), FULL, (AWAY, WAIT), f"{FULL}\n  -> {FREE}"),
    ],
)
def test_the_worst_that_lasts_is_told_with_what_to_do(
    not_saved: tuple[str, str], problem: str, not_published: tuple[str, str], shown: str
) -> None:
    """What was told once goes with the next step; this stays."""
    backbone = SimpleNamespace(
        statutes=SimpleNamespace(mandate=None), membership=None, reporter=SimpleNamespace(credible=None),
        not_saved=lambda: not_saved, problem=lambda: problem,
    )  # fmt: skip
    started = SimpleNamespace(ports=SimpleNamespace(clock=None), refusals=SimpleNamespace(rows=list))
    bundle = SimpleNamespace(run=SimpleNamespace(run_id="a-run"))
    watched = watch(cast(Any, backbone), cast(Any, started), cast(Any, bundle), "", lambda: not_published)
    assert watched.problem() == shown
