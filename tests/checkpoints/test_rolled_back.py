"""Going back to a checkpoint of the own disk."""

from pathlib import Path

import pytest

from collab.checkpoints.local import list_checkpoints, load_checkpoint, set_aside
from collab.checkpoints.local_publisher import LocalPublisher
from collab.checkpoints.rolled_back import begin_again
from collab.swarm.statements import Rollback
from tests.checkpoints.test_local import snapshot
from tests.checkpoints.test_local_publisher import FILES

MARK = "m" * 16


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_rollback_that_was_cut_short_by_a_kill_finds_its_checkpoint_again(tmp_path: Path, was_killed: bool) -> None:
    """Set aside, and nothing published yet: there is no other copy."""
    publisher = LocalPublisher(tmp_path, "fingerprint", lambda: FILES, keep=10)
    for epoch in (5, 10, 15):
        publisher.keep(snapshot(epoch), "d" * 64, 1.0)
    if was_killed:
        set_aside(tmp_path, MARK)
    what = Rollback(to_epoch=10, lineage=snapshot(10).lineage)
    begun = begin_again(tmp_path, what, MARK, fingerprint="fingerprint")
    assert begun is not None
    assert (begun.epoch, begun.era) == (10, MARK)
    assert list_checkpoints(tmp_path) == []
    aside = list_checkpoints(tmp_path / f"before-rollback-{MARK}")
    kept = [load_checkpoint(path, fingerprint="fingerprint").epoch for path in aside]
    assert kept == [15, 10, 5]
