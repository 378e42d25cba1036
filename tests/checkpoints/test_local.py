"""Checkpoints on disk: whole or not there at all."""

import errno
import itertools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from collab.checkpoints import local, synced
from collab.checkpoints.base import Oversight
from collab.checkpoints.local import (
    forget_after,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    path_of,
    prune,
    save_checkpoint,
    verified_state,
)
from collab.errors import CheckpointFailed, CorruptState, StateError
from collab.swarm.snapshots import Snapshot
from collab.types import Lineage

FILES = {"config.json": b'{"model_type": "x"}', "tokenizer.json": b"[]"}


def snapshot(epoch: int, value: float = 1.0) -> Snapshot:
    return Snapshot(
        epoch=epoch,
        lineage=Lineage(f"lineage-{epoch}"),
        tensors={
            "model.layer.weight": np.full((3, 2), value, np.float32),
            "model.count": np.array(epoch, np.int64),
            "optimizer.layer.weight.exp_avg": np.full((3, 2), value / 2, np.float32),
            "optimizer.layer.weight.state1": np.arange(6, dtype=np.uint8).reshape(3, 2),
            "optimizer.layer.weight.step": np.array(4.0, np.float32),
        },
        scalars={"optimizer.layer.bias.step": 9, "optimizer.layer.bias.rate": 0.1, "optimizer.layer.bias.none": None},
    )


def save(root: Path, epoch: int, value: float = 1.0, **metrics: Any) -> Path:
    saved = save_checkpoint(root, snapshot(epoch, value), fingerprint="f", files=FILES, metrics=metrics)
    assert saved.epoch == epoch
    return saved.path


def check_equal(loaded: Snapshot | None, expected: Snapshot) -> None:
    assert loaded is not None
    assert (loaded.epoch, loaded.lineage, loaded.scalars) == (expected.epoch, expected.lineage, expected.scalars)
    assert set(loaded.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype, name
        assert loaded.tensors[name].shape == tensor.shape, name
        assert np.array_equal(loaded.tensors[name], tensor), name


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if not path.name.startswith("epoch-")]


def test_a_checkpoint_comes_back_with_scalars_and_8_bit_tensors(tmp_path: Path) -> None:
    path = save(tmp_path, 12, eval_loss=0.5)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(12))
    assert path.name == "epoch-00000012"
    assert json.loads((path / "collab_state.json").read_text())["metrics"] == {"eval_loss": 0.5}
    assert (path / "config.json").read_bytes() == FILES["config.json"]
    assert leftovers(tmp_path) == []


def test_the_model_file_names_tensors_as_the_model_does(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    assert set(safetensors.numpy.load_file(path / "model.safetensors")) == {"layer.weight", "count"}


def test_the_size_of_a_checkpoint_is_that_of_its_files(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, snapshot(1), fingerprint="f", files=FILES, metrics={})
    assert saved.num_bytes == sum(path.stat().st_size for path in saved.path.iterdir())


def test_without_checkpoints_there_is_nothing_to_load(tmp_path: Path) -> None:
    assert load_newest(tmp_path, fingerprint="f") is None
    assert load_newest(tmp_path / "missing", fingerprint="f") is None
    assert list_checkpoints(tmp_path / "missing") == []


def test_the_newest_checkpoint_is_loaded(tmp_path: Path) -> None:
    for epoch in (2, 100, 30):
        save(tmp_path, epoch)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(100))
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"epoch-{n:08d}" for n in (100, 30, 2)]


def test_a_copy_that_somebody_has_made_beside_the_checkpoints_is_none_of_them(tmp_path: Path) -> None:
    for epoch in (10, 20, 30):
        save(tmp_path, epoch)
    copy = shutil.copytree(path_of(tmp_path, 30), tmp_path / "epoch-00000030.copy")
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"epoch-{n:08d}" for n in (30, 20, 10)]
    prune(tmp_path, 2)
    forget_after(tmp_path, 20)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000020"]
    assert verified_state(copy)["epoch"] == 30, "it is that person's"


@pytest.mark.parametrize("number", range(5))
def test_a_full_disk_leaves_the_last_good_checkpoint_and_no_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save(tmp_path, 1)
    write, written = local.write_synced, list[Path]()

    def fill_up(path: Path, data: bytes, *_: object) -> None:
        if len(written) == number:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(path, data)

    monkeypatch.setattr(local, "write_synced", fill_up)
    with pytest.raises(CheckpointFailed) as caught:
        save(tmp_path, 2)
    assert "epoch 2" in caught.value.message
    assert "No space left" in caught.value.message
    assert "free some space" in caught.value.hint
    assert leftovers(tmp_path) == []
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))
    written.clear()
    with pytest.raises(CheckpointFailed):  # the same epoch again must not cost the good one either
        save(tmp_path, 1, 5.0)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))
    monkeypatch.setattr(local, "write_synced", write)
    save(tmp_path, 2)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(2))


def test_a_place_that_is_no_directory_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointFailed) as caught:
        save(tmp_path / "file", 1)
    assert "use a directory that can be written" in caught.value.hint


def test_saving_an_epoch_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 1, 5.0)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1, 5.0))
    assert leftovers(tmp_path) == []


def test_what_a_crash_left_behind_does_not_stop_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in (".unfinished-epoch-00000001", ".unfinished-replaced"):
        shutil.copytree(tmp_path / "epoch-00000001", tmp_path / name)
    save(tmp_path, 1, 5.0)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1, 5.0))
    assert leftovers(tmp_path) == []


def test_a_new_checkpoint_that_cannot_take_its_name_leaves_the_old_one_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == ".unfinished-epoch-00000001":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointFailed):
        save(tmp_path, 1, 5.0)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "longer":
            path.write_bytes(data + b" ")
        case "flipped":
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "flipped"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, how: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2) / name, how)
    with caplog.at_level(logging.WARNING):
        check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))
    assert "epoch-00000002" in caplog.text
    with pytest.raises(CorruptState, match="epoch-00000002"):
        load_checkpoint(tmp_path / "epoch-00000002", fingerprint="f")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"{}", b'{"sha256": []}', b'{"sha256": {}}', b"\xff\xfe"])
def test_a_damaged_state_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "collab_state.json").write_bytes(content)
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epoch": 2', '"epoch": 3'),
        ("lineage-2", "lineage-7"),
        ('"optimizer.layer.bias.step": 9', '"optimizer.layer.bias.step": 8'),
        ('"eval_loss": 0.5', '"eval_loss": 0.4'),
    ],
)
def test_a_changed_character_in_the_state_file_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    save(tmp_path, 1)
    state = save(tmp_path, 2, eval_loss=0.5) / "collab_state.json"
    text = state.read_text()
    assert old in text
    state.write_text(text.replace(old, new))
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))


def test_a_checkpoint_of_another_run_is_an_error_that_names_both(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(StateError) as caught:
        load_newest(tmp_path, fingerprint="other")
    assert not isinstance(caught.value, CorruptState)
    assert "fingerprint f," in caught.value.message
    assert "run's is other" in caught.value.message
    assert caught.value.hint


def test_pruning_keeps_the_newest_and_removes_what_a_crash_left(tmp_path: Path) -> None:
    for epoch in (1, 2, 3, 10):
        save(tmp_path, epoch)
    (tmp_path / ".unfinished-epoch-00000011").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    prune(tmp_path, 2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch-00000010", "epoch-00000003"]
    assert leftovers(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("remove", [lambda root: prune(root, 2), lambda root: forget_after(root, 2)])
def test_a_kill_while_a_checkpoint_is_deleted_leaves_nothing_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], None]
) -> None:
    for epoch in (1, 2, 3):
        save(tmp_path, epoch)

    def is_killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / "collab_state.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", is_killed)
        with pytest.raises(KeyboardInterrupt):
            remove(tmp_path)
    (left,) = (path for path in tmp_path.iterdir() if not (path / "collab_state.json").exists())
    assert (left / "model.safetensors").exists()
    prune(tmp_path, 2)
    assert not left.exists()
    assert len(list_checkpoints(tmp_path)) == 2


def test_pruning_an_empty_directory_is_fine(tmp_path: Path) -> None:
    prune(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_how_much_of_a_checkpoint_is_on_the_disk_is_told_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def tell(done_bytes: int, whole_bytes: int) -> None:
        told.append((done_bytes, whole_bytes))
        here = sum(file.stat().st_size for file in tmp_path.glob(f"{local.UNFINISHED}*/*"))
        assert here == done_bytes

    def write() -> int:
        oversight = Oversight(tell=tell)
        return save_checkpoint(
            tmp_path, snapshot(1), fingerprint="f", files=FILES, metrics={}, oversight=oversight
        ).num_bytes

    write()
    assert told == [], "it is written at once"
    monkeypatch.setattr(synced, "STRETCH_BYTES", 100)
    num_bytes = write()
    assert told[-1] == (num_bytes, num_bytes)
    done = [one for one, _ in told]
    assert len(done) >= num_bytes // 100
    assert max(later - earlier for earlier, later in itertools.pairwise(done)) <= 100
    check_equal(load_newest(tmp_path, fingerprint="f"), snapshot(1))
