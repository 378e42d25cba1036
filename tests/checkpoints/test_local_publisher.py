"""A backbone's disk: what is published there never goes back to an earlier tenure."""

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from collab.checkpoints import local, synced
from collab.checkpoints.base import Order
from collab.checkpoints.fence import FENCE_FILE
from collab.checkpoints.file_names import PAGES, TENSORS, why_unfit
from collab.checkpoints.local import STATE_FILE, list_checkpoints
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import CheckpointFailed, DataError, Fenced
from collab.swarm.backbone_records import Publication
from collab.swarm.lease import NOBODY, Tenure
from collab.swarm.snapshots import pack
from collab.swarm.statements import Rollback
from collab.types import Lineage, PeerId
from tests.checkpoints.test_local import check_equal, snapshot

A, B = PeerId("a"), PeerId("b")
FILES = {"config.json": b"{}"}


def publisher(root: Path, keep: int = 3) -> LocalPublisher:
    return LocalPublisher(root, "f", lambda: FILES, keep)


def order(epoch: int, tenure: Tenure, *, value: float = 1.0, authority: Tenure | None = None) -> Order:
    digest = pack(snapshot(epoch, value), fingerprint="f").manifest.digest
    publication = Publication(
        epoch=epoch, lineage=Lineage("l"), digest=digest, term=tenure.term, holder=tenure.holder, eval_loss=0.5
    )
    return Order(publication=publication, authority=authority or tenure)


def tenure_on_disk(root: Path, epoch: int) -> tuple[int, str]:
    told = json.loads((root / f"epoch-{epoch:08d}" / "collab_state.json").read_bytes())["metrics"]["published"]
    return told["term"], told["holder"]


def test_what_was_published_is_found_again_with_its_tenure(tmp_path: Path) -> None:
    publisher(tmp_path).publish(snapshot(10), order(10, Tenure(2, A)))
    again = publisher(tmp_path)
    held = again.newest()
    assert held is not None
    check_equal(held.snapshot, snapshot(10))
    assert held.publication == order(10, Tenure(2, A)).publication
    assert held.is_newest
    assert again.highest() == Tenure(2, A)


def test_a_checkpoint_that_says_oddly_how_it_was_published_counts_as_never_published(tmp_path: Path) -> None:
    """An earlier version has taken it from the Hub."""
    path = publisher(tmp_path).publish(snapshot(10), order(10, Tenure(2, A))).path
    local.change_metrics(path, {"published": {**local.metrics_of(path)["published"], "term": "2"}})
    (tmp_path / FENCE_FILE).unlink()
    again = publisher(tmp_path)
    held = again.newest()
    assert held is not None
    assert held.publication is None
    assert again.highest() == NOBODY


def test_an_earlier_tenure_publishes_nothing_and_changes_nothing_also_after_a_restart(tmp_path: Path) -> None:
    publisher(tmp_path).publish(snapshot(10), order(10, Tenure(2, A)))
    for late in (Tenure(1, B), Tenure(1, A)):
        with pytest.raises(Fenced):
            publisher(tmp_path).publish(snapshot(15), order(15, late))
    with pytest.raises(Fenced):
        publisher(tmp_path).publish(snapshot(10, 5.0), order(10, Tenure(1, B), value=5.0))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000010"]
    check_equal(publisher(tmp_path).newest().snapshot, snapshot(10))


def test_of_two_holders_of_one_term_only_the_later_tenure_goes_on(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    ours.publish(snapshot(10), order(10, Tenure(2, A)))
    ours.publish(snapshot(15), order(15, Tenure(2, B)))
    with pytest.raises(Fenced):
        ours.publish(snapshot(20), order(20, Tenure(2, A)))


def test_a_tenure_that_was_only_heard_of_counts(tmp_path: Path) -> None:
    publisher(tmp_path).note(Tenure(4, B))
    with pytest.raises(Fenced):
        publisher(tmp_path).publish(snapshot(10), order(10, Tenure(3, A)))


def test_what_an_earlier_holder_published_may_be_copied_on_the_word_of_the_present_one(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    ours.note(Tenure(5, B))
    ours.publish(snapshot(10), order(10, Tenure(2, A), authority=Tenure(5, B)))
    assert tenure_on_disk(tmp_path, 10) == (2, A)


def test_a_lease_that_ends_while_a_snapshot_is_written_publishes_nothing(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    ours.publish(snapshot(5), order(5, Tenure(1, A)))
    late = order(10, Tenure(1, A))
    with pytest.raises(Fenced, match="longer than our turn"):
        ours.publish(snapshot(10), replace(late, may_finish=lambda: False))
    assert [path.name for path in tmp_path.glob("*epoch*")] == ["epoch-00000005"]


def test_a_tenure_heard_of_while_a_snapshot_is_written_stops_it(tmp_path: Path) -> None:
    ours = publisher(tmp_path)

    def hear() -> bool:
        ours.note(Tenure(2, B))
        return True

    late = order(10, Tenure(1, A))
    with pytest.raises(Fenced):
        ours.publish(snapshot(10), replace(late, may_finish=hear))
    assert list_checkpoints(tmp_path) == []


def test_what_was_kept_is_published_without_being_written_again(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    wanted = order(10, Tenure(1, A))
    ours.keep(snapshot(10), wanted.publication.digest, 0.5)
    assert ours.newest().publication is None
    model = tmp_path / "epoch-00000010" / "model.safetensors"
    written = model.stat().st_mtime_ns
    assert not ours.publish(snapshot(10), wanted).is_new
    assert model.stat().st_mtime_ns == written
    assert ours.newest().publication == wanted.publication
    check_equal(ours.newest().snapshot, snapshot(10))


def test_other_bytes_of_one_epoch_are_replaced_by_those_published(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    ours.keep(snapshot(10, 5.0), "0" * 64, 0.5)
    assert ours.publish(snapshot(10), order(10, Tenure(1, A))).is_new
    check_equal(ours.newest().snapshot, snapshot(10))


def test_a_damaged_newest_checkpoint_is_passed_over_and_said(tmp_path: Path) -> None:
    ours = publisher(tmp_path)
    for epoch in (5, 10):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
    (tmp_path / "epoch-00000010" / "model.safetensors").write_bytes(b"torn")
    held = ours.newest()
    assert held.snapshot.epoch == 5
    assert not held.is_newest
    assert ours.damaged_epoch == 10


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    """Its number is higher than that of what comes now."""
    ours = publisher(tmp_path, keep=2)
    for epoch in (5, 20, 30):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
        (tmp_path / f"epoch-{epoch:08d}" / "model.safetensors").write_bytes(b"torn")
    again = publisher(tmp_path, keep=2)
    assert again.newest() is None
    assert again.damaged_epoch == 30
    assert len(list_checkpoints(tmp_path)) == 2, "nothing is touched before there is something in their place"
    for epoch in (7, 8, 9):
        again.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000009", "epoch-00000008"]
    check_equal(again.newest().snapshot, snapshot(9))
    assert {path.name for path in (tmp_path / "damaged").iterdir()} == {"epoch-00000020", "epoch-00000030"}
    (tmp_path / FENCE_FILE).unlink()
    assert publisher(tmp_path).highest() == Tenure(1, A)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json"])
def test_a_damaged_checkpoint_that_comes_again_is_written_anew(tmp_path: Path, name: str) -> None:
    """Somebody else has had it, and gives it back: its state file still says that it is here."""
    ours = publisher(tmp_path)
    ours.publish(snapshot(10), order(10, Tenure(1, A)))
    (tmp_path / "epoch-00000010" / name).write_bytes(b"torn")
    assert ours.publish(snapshot(10), order(10, Tenure(2, B))).is_new
    check_equal(ours.newest().snapshot, snapshot(10))
    assert (tmp_path / "epoch-00000010" / "config.json").read_bytes() == FILES["config.json"]
    assert not ours.publish(snapshot(10), order(10, Tenure(3, A))).is_new


@pytest.mark.parametrize("content", ["", "{", "[]", '{"term": "x", "holder": 1}', '{"term": -1, "holder": "a"}'])
def test_a_fence_that_cannot_be_read_is_made_anew_from_the_checkpoints(tmp_path: Path, content: str) -> None:
    publisher(tmp_path).publish(snapshot(10), order(10, Tenure(3, A)))
    (tmp_path / FENCE_FILE).write_text(content)
    assert publisher(tmp_path).highest() == Tenure(3, A)
    (tmp_path / FENCE_FILE).unlink()
    assert publisher(tmp_path).highest() == Tenure(3, A)


def test_an_empty_directory_has_heard_of_nobody(tmp_path: Path) -> None:
    assert publisher(tmp_path / "new").highest() == NOBODY
    assert publisher(tmp_path / "new").newest() is None


def test_a_full_disk_publishes_nothing_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = publisher(tmp_path)
    ours.publish(snapshot(5), order(5, Tenure(1, A)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local, "write_synced", full)
    monkeypatch.setattr(local, "replace_file", full)
    with pytest.raises(CheckpointFailed):
        ours.publish(snapshot(10), order(10, Tenure(1, A)))
    with pytest.raises(CheckpointFailed):
        ours.publish(snapshot(5), order(5, Tenure(1, B)))  # only its tenure would change
    assert ours.newest().publication == order(5, Tenure(1, A)).publication


def test_checkpoints_of_a_history_that_was_left_are_put_aside_not_deleted(tmp_path: Path) -> None:
    ours = publisher(tmp_path, keep=9)
    for epoch in (5, 10, 15):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
    assert ours.set_aside_after(5) == 2
    assert ours.newest().snapshot.epoch == 5
    assert {path.name for path in (tmp_path / "set-aside").iterdir()} == {"epoch-00000010", "epoch-00000015"}


def test_whoever_listens_hears_how_much_of_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced, "STRETCH_BYTES", 100)
    told: list[tuple[int, int]] = []
    ours = LocalPublisher(tmp_path, "f", lambda: FILES, keep=3, tell=lambda *so_far: told.append(so_far))
    saved = ours.publish(snapshot(5), order(5, Tenure(1, A)))
    assert told[-1] == (saved.num_bytes, saved.num_bytes)


# -- files of the task -------------------------------------------------------------------------------------------------


def test_the_tasks_files_are_asked_for_once_a_life(tmp_path: Path) -> None:
    asked: list[int] = []

    def files() -> Mapping[str, bytes]:
        asked.append(1)
        return FILES

    ours = LocalPublisher(tmp_path, "f", files, keep=3)
    for epoch in (10, 20):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
        assert (tmp_path / f"epoch-{epoch:08d}" / "config.json").read_bytes() == b"{}"
    assert len(asked) == 1


def test_a_full_disk_for_temporary_files_is_a_checkpoint_that_failed_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``CausalLM``: transformers writes to a directory, wherever that is."""

    def files() -> Mapping[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_bytes(b"{}")
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def is_full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ours = LocalPublisher(tmp_path, "f", files, keep=3)
    with monkeypatch.context() as full:
        full.setattr(tempfile, "mkdtemp", is_full)
        for do in (
            lambda: ours.publish(snapshot(10), order(10, Tenure(1, A))),
            lambda: ours.keep(snapshot(10), "digest", 0.5),
        ):
            with pytest.raises(CheckpointFailed, match="No space left on device") as told:
                do()
            assert tempfile.gettempdir() in told.value.message
            assert "free some space" in told.value.hint
    assert list_checkpoints(tmp_path) == []
    ours.publish(snapshot(20), order(20, Tenure(1, A)))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000020"]


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (DataError("no tokenizer", hint="make one"), "no tokenizer", "make one"),
        (Exception("Permission of the tokenizer"), "Permission of the tokenizer", "see the log"),
    ],
)
def test_whatever_a_tasks_files_fail_with_is_a_checkpoint_that_failed(
    tmp_path: Path, error: Exception, said: str, hint: str
) -> None:
    def files() -> Mapping[str, bytes]:
        raise error

    ours = LocalPublisher(tmp_path, "f", files, keep=3)
    with pytest.raises(CheckpointFailed, match=said) as told:
        ours.publish(snapshot(10), order(10, Tenure(1, A)))
    assert hint in told.value.hint
    assert list_checkpoints(tmp_path) == []


def test_a_file_with_the_name_of_the_state_file_is_refused_as_nothing_could_be_read_again(tmp_path: Path) -> None:
    ours = LocalPublisher(tmp_path, "f", lambda: {**FILES, STATE_FILE: b""}, keep=3)
    with pytest.raises(CheckpointFailed, match="the checkpoint's own state file") as told:
        ours.publish(snapshot(10), order(10, Tenure(1, A)))
    assert "change checkpoint_files() of the task" in told.value.hint
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("name", ["README.md", "collab_history.json", "a name"])
def test_a_name_that_the_hub_does_not_give_back_is_saved_here_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The code of a run cannot be changed without it being another one."""
    ours = LocalPublisher(tmp_path, "f", lambda: {**FILES, name: b"3"}, keep=3)
    for epoch in (10, 20):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
    assert ours.newest().snapshot.epoch == 20
    assert (tmp_path / "epoch-00000020" / name).read_bytes() == b"3"
    assert caplog.text.count("cannot be published on the Hub") == 1


@pytest.mark.parametrize(
    "names", [["README.md"], sorted(PAGES)[:1], list(TENSORS), ["a/b"], ["../up"], [".hidden"], [""], ["collab_x"]]
)
def test_names_that_could_not_be_had_back_from_the_hub(names: list[str]) -> None:
    assert "the task's file" in why_unfit(names)


def test_a_damaged_checkpoint_that_a_rollback_has_set_aside_is_not_looked_for_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = publisher(tmp_path)
    for epoch in (18, 20):
        ours.publish(snapshot(epoch), order(epoch, Tenure(1, A)))
    (tmp_path / "epoch-00000020" / "model.safetensors").write_bytes(b"torn")
    earlier = tmp_path / "damaged" / "epoch-00000020"
    earlier.mkdir(parents=True)
    assert ours.newest().snapshot.epoch == 18
    ours.begin_again(Rollback(to_epoch=18, lineage=snapshot(18).lineage), "mark")
    ours.publish(snapshot(21), order(21, Tenure(1, A)))
    assert earlier.exists()
    assert "in the way" not in caplog.text


def test_a_task_has_at_most_as_many_files_as_are_taken_from_the_hub() -> None:
    names = [f"part-{one}" for one in range(63)]
    assert why_unfit(names) == "the task has 63 files for each checkpoint, and 62 have room"
    assert why_unfit(names[1:]) == ""
