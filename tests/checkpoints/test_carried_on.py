"""A run whose owner is gone goes on under another one."""

from pathlib import Path

import numpy as np
import pytest

from collab.checkpoints.carried_on import carry_on
from collab.checkpoints.local import save_checkpoint
from collab.config import parse_run
from collab.errors import CorruptState
from collab.swarm.identity import load_or_create_identity
from collab.swarm.snapshots import Snapshot
from collab.types import Lineage
from peers.assets import load_assets
from peers.carrying_on import take_up
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


def test_a_checkpoint_that_is_not_there_leaves_no_owner_behind(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("{run_id: my-run, task: {name: image_classification}}")
    done = run_cli("backbone", str(tmp_path), "--from", str(tmp_path / "gone"), "--new-owner", "--host", "127.0.0.1")
    assert done.returncode == 1
    assert "there is no checkpoint" in done.stderr
    assert not (tmp_path / "owner.key").exists(), "or the next attempt is refused"


def test_tokens_mean_what_they_meant_whatever_text_is_on_the_new_owners_machine(tmp_path: Path) -> None:
    content = "{run_id: my-run, task: {name: causal_lm, model: {model_type: gpt2}, vocab_size: 300}}"
    run = parse_run(content, origin="the test")
    theirs = save_checkpoint(tmp_path, OLD, fingerprint="f", files={"tokenizer.json": b"theirs"}, metrics={}).path
    assert take_up(str(tmp_path), run, tmp_path / "new", tmp_path / "new" / "backbone") == theirs
    assert load_assets(run, tmp_path / "new") == {"tokenizer.json": b"theirs"}
