"""A run whose owner is gone goes on under another one."""

from pathlib import Path

import numpy as np
import pytest

from collab.checkpoints.carried_on import carry_on
from collab.checkpoints.local import save_checkpoint
from collab.config import parse_run
from collab.errors import ConfigError, CorruptState
from collab.swarm.identity import load_or_create_identity
from collab.swarm.snapshots import Snapshot
from collab.types import Lineage
from peers.assets import load_assets
from peers.carrying_on import bring_run_file, take_up, told_before
from peers.places import DataDir
from tests.live.processes import run_cli

OLD = Snapshot(
    epoch=12,
    lineage=Lineage("a" * 64),
    tensors={"model.w": np.arange(4.0, dtype=np.float32), "optimizer.w.step": np.array(3.0, np.float32)},
    scalars={"optimizer.w.count": 3},
    era="b" * 16,
)


def saved(root: Path) -> Path:
    return save_checkpoint(root, OLD, fingerprint="the old run", files={}, metrics={}).path


def test_the_state_and_its_epoch_stay_and_the_history_is_another(tmp_path: Path) -> None:
    path = saved(tmp_path)
    new = carry_on(path, fingerprint="the new run")
    assert (new.epoch, new.era, new.scalars) == (12, "", OLD.scalars)
    assert all(np.array_equal(new.tensors[name], OLD.tensors[name]) for name in OLD.tensors)
    assert new.lineage not in (OLD.lineage, carry_on(path, fingerprint="a third run").lineage)


def test_a_damaged_checkpoint_is_not_carried_on(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptState):
        carry_on(path, fingerprint="the new run")


def test_a_directory_that_has_an_owner_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("{run_id: my-run, task: {name: image_classification}}")
    load_or_create_identity(tmp_path / "owner.key")
    done = run_cli("backbone", str(tmp_path), "--from", str(tmp_path), "--new-owner", "--host", "127.0.0.1")
    assert done.returncode == 1
    assert "has an owner already" in done.stderr
    assert "in a new directory" in done.stderr


def test_a_checkpoint_that_is_not_there_leaves_no_owner_behind(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("{run_id: my-run, task: {name: image_classification}}")
    done = run_cli("backbone", str(tmp_path), "--from", str(tmp_path / "gone"), "--new-owner", "--host", "127.0.0.1")
    assert done.returncode == 1
    assert "there is no checkpoint" in done.stderr
    assert not (tmp_path / "owner.key").exists(), "or the next attempt is refused"


def test_a_first_start_that_came_to_no_state_is_remembered_until_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = parse_run("{run_id: my-run, task: {name: image_classification}}", origin="the test")
    path, mine = saved(tmp_path / "theirs"), tmp_path / "mine"
    data_dir = DataDir(mine / "backbone")
    assert told_before(mine) == ""
    monkeypatch.chdir(tmp_path)
    take_up("theirs", run, mine, data_dir)
    load_or_create_identity(mine / "owner.key")
    monkeypatch.chdir(mine)
    for _ in range(2):
        assert told_before(mine) == str(tmp_path / "theirs")
        bring_run_file(str(path), mine)
    assert f"remove {data_dir.begins_with}" in capsys.readouterr().err
    save_checkpoint(data_dir.checkpoints, OLD, fingerprint="the new run", files={}, metrics={})
    assert told_before(mine) == ""
    with pytest.raises(ConfigError, match="has an owner already") as told:
        bring_run_file(str(path), mine)
    assert "leave out --from and --new-owner" in told.value.hint


def test_a_run_that_others_have_gone_on_with_does_not_begin_once_more(tmp_path: Path) -> None:
    """Its checkpoints are lost, and peers hold later states."""
    data_dir = DataDir(tmp_path / "backbone")
    data_dir.path.mkdir()
    data_dir.begins_with.write_text("org/name")
    data_dir.last_seen.write_text('{"epoch": 0}')
    assert told_before(tmp_path) == "org/name"
    data_dir.last_seen.write_text('{"epoch": 30}')
    assert told_before(tmp_path) == ""


def test_tokens_mean_what_they_meant_whatever_text_is_on_the_new_owners_machine(tmp_path: Path) -> None:
    content = "{run_id: my-run, task: {name: causal_lm, model: {model_type: gpt2}, vocab_size: 300}}"
    run = parse_run(content, origin="the test")
    theirs = save_checkpoint(tmp_path, OLD, fingerprint="f", files={"tokenizer.json": b"theirs"}, metrics={}).path
    assert take_up(str(tmp_path), run, tmp_path / "new", DataDir(tmp_path / "new" / "backbone")) == theirs
    assert load_assets(run, tmp_path / "new") == {"tokenizer.json": b"theirs"}
