"""Going back to a checkpoint of the own disk."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from collab.checkpoints import rolled_back
from collab.checkpoints.local import list_checkpoints, load_checkpoint, prune
from collab.checkpoints.local_publisher import LocalPublisher
from collab.checkpoints.rolled_back import begin_again, checkpoints_to_go_back_to, hold, set_aside
from collab.errors import CheckpointFailed, CorruptState
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback
from tests.checkpoints.test_local import check_equal, snapshot
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


def test_a_checkpoint_of_an_epoch_that_was_set_aside_before_comes_to_lie_beside_it(tmp_path: Path) -> None:
    """Of the new history, all of whose checkpoints are damaged, or brought meanwhile from elsewhere."""
    publisher = shelf(tmp_path, 5, 10)
    for _ in range(2):
        begun = go_back(tmp_path, 5)
        assert begun is not None
        assert (begun.epoch, begun.era) == (5, MARK)
        publisher.keep(begun, "d" * 64, 1.0)
        (tmp_path / "epoch-00000005" / "model.safetensors").write_bytes(b"torn")
    begun = go_back(tmp_path, 5)
    assert begun is not None
    check_equal(replace(begun, lineage=snapshot(5).lineage, era=""), snapshot(5))
    aside = tmp_path / f"before-rollback-{MARK}"
    assert sorted(path.name for path in aside.iterdir()) == [
        "epoch-00000005", "epoch-00000005-2", "epoch-00000005-3", "epoch-00000010",
    ]  # fmt: skip


def shelf(root: Path, *epochs: int) -> LocalPublisher:
    publisher = LocalPublisher(root, "fingerprint", lambda: FILES, keep=10)
    for epoch in epochs:
        publisher.keep(snapshot(epoch), "d" * 64, 1.0)
    return publisher


def to(epoch: int) -> Rollback:
    return Rollback(to_epoch=epoch, lineage=snapshot(epoch).lineage)


def go_back(root: Path, epoch: int, mark: str = MARK) -> Snapshot | None:
    return begin_again(root, to(epoch), mark, fingerprint="fingerprint")


@pytest.mark.parametrize("has_links", [True, False])
def test_what_is_held_outlives_the_checkpoint_that_the_backbone_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Between the command and the backbone's hearing of it newer checkpoints push the oldest out."""

    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    shelf(tmp_path, 5, 10, 15)
    hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    prune(tmp_path, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000015"], "it was pushed out"
    begun = go_back(tmp_path, 5)
    assert begun is not None
    assert (begun.epoch, begun.era) == (5, MARK)
    assert list_checkpoints(tmp_path) == []


def test_what_is_deleted_while_it_is_being_held_is_no_checkpoint_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf(tmp_path, 5, 10)
    linked: list[str] = []
    real = rolled_back._link

    def link_then_lose(source: str, target: str) -> None:
        if len(linked) == 1:
            shutil.rmtree(tmp_path / "epoch-00000005")
        linked.append(source)
        real(source, target)

    monkeypatch.setattr(rolled_back, "_link", link_then_lose)
    with pytest.raises(CorruptState, match="deleted a moment ago"):
        hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000010"]


def test_a_damaged_checkpoint_is_not_held_and_does_not_hide_others(tmp_path: Path) -> None:
    shelf(tmp_path, 5, 10, 15)
    (tmp_path / "epoch-00000005" / "model.safetensors").write_bytes(b"x")
    (tmp_path / "epoch-00000010" / "collab_state.json").write_bytes(b"{")
    with pytest.raises(CorruptState):
        hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    assert not list(tmp_path.glob("held-*"))
    found = checkpoints_to_go_back_to(tmp_path, "", "fingerprint")
    assert sorted(found) == [5, 15], "of one only the state file was read"


def test_a_disk_that_does_not_take_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rolled_back, "_link", is_full)
    shelf(tmp_path, 5)
    with pytest.raises(CheckpointFailed, match="cannot be held"):
        hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000005"]


def test_one_can_go_back_to_what_the_last_rollback_set_aside(tmp_path: Path) -> None:
    """It was one epoch too many, or to a checkpoint that nobody has any more."""
    shelf(tmp_path, 5, 10)
    assert go_back(tmp_path, 7) is None
    assert sorted(checkpoints_to_go_back_to(tmp_path, "", "fingerprint")) == []
    found = checkpoints_to_go_back_to(tmp_path, MARK, "fingerprint")
    assert sorted(found) == [5, 10]
    assert checkpoints_to_go_back_to(tmp_path, MARK, "another") == {}
    path, order = found[10]
    hold(tmp_path, path, order, "n" * 16)
    begun = begin_again(tmp_path, order, "n" * 16, fingerprint="fingerprint")
    assert begun is not None
    assert (begun.epoch, begun.era) == (10, "n" * 16)


def test_the_present_historys_checkpoint_of_an_epoch_goes_before_one_that_was_set_aside(tmp_path: Path) -> None:
    publisher = shelf(tmp_path, 5, 10)
    begun = go_back(tmp_path, 5)
    assert begun is not None
    publisher.keep(begun, "d" * 64, 1.0)
    found = checkpoints_to_go_back_to(tmp_path, MARK, "fingerprint")
    assert found[5] == (tmp_path / "epoch-00000005", Rollback(to_epoch=5, lineage=begun.lineage))
    assert found[10][0].parent.name == f"before-rollback-{MARK}"


def test_a_copy_under_another_name_can_be_gone_back_to(tmp_path: Path) -> None:
    shelf(tmp_path, 5, 10)
    (tmp_path / "epoch-00000005").rename(tmp_path / "epoch-00000005-good")
    path, order = checkpoints_to_go_back_to(tmp_path, "", "fingerprint")[5]
    hold(tmp_path, path, order, MARK)
    shutil.rmtree(path)
    assert go_back(tmp_path, 5) is not None


def test_what_was_replaced_after_it_was_looked_at_is_not_held(tmp_path: Path) -> None:
    shelf(tmp_path, 5)
    with pytest.raises(CorruptState):
        hold(tmp_path, tmp_path / "epoch-00000005", Rollback(to_epoch=5, lineage="another"), MARK)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000005"]


def test_while_no_backbone_has_heard_of_a_rollback_another_one_can_take_its_place(tmp_path: Path) -> None:
    shelf(tmp_path, 5, 10)
    hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    prune(tmp_path, keep=1)
    found = checkpoints_to_go_back_to(tmp_path, MARK, "fingerprint")
    assert {epoch: path.parent.name for epoch, (path, _) in found.items()} == {
        5: f"held-for-rollback-{MARK}", 10: tmp_path.name,
    }  # fmt: skip


def test_a_backbone_may_enter_what_is_held_as_it_may_enter_its_directory(tmp_path: Path) -> None:
    shelf(tmp_path, 5)
    tmp_path.chmod(0o750)
    before = os.umask(0o077)
    try:
        hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    finally:
        os.umask(before)
    held = tmp_path / f"held-for-rollback-{MARK}"
    assert [path.stat().st_mode & 0o777 for path in (held, held / "epoch-00000005")] == [0o750, 0o750]


def test_a_command_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> dict[str, object]:
        raise KeyboardInterrupt

    shelf(tmp_path, 5)
    monkeypatch.setattr(rolled_back, "verified_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold(tmp_path, tmp_path / "epoch-00000005", to(5), MARK)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000005"]
