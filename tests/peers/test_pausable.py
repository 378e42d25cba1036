"""Which directories 'collab-peer pause' looks into: those that peers which pause have had, while they are there."""

import errno
import os
from pathlib import Path

import pytest

from collab.errors import ConfigError
from peers.pausable import list_home, note_pausable, noted_pausable
from peers.places import claim_data_dir, never_pauses
from tests.full_disk import no_file_larger_than


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_each_directory_is_noted_once_under_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "b"):
        with claim_data_dir(Path(name), "run", pauses=True):
            pass
    assert noted_pausable() == [tmp_path / "a", tmp_path / "b"]
    assert len([entry for entry in list_home().iterdir() if entry.name != ".lock"]) == 2


def test_what_is_gone_is_no_longer_named_and_is_cleared_away_at_the_next_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        note_pausable(tmp_path / name)
    (tmp_path / "a").rmdir()
    assert noted_pausable() == [tmp_path / "b"]
    note_pausable(tmp_path / "b")
    (tmp_path / "a").mkdir()
    assert noted_pausable() == [tmp_path / "b"]


def test_a_backbone_is_not_noted_and_says_in_its_lock_what_it_is(tmp_path: Path) -> None:
    with claim_data_dir(tmp_path, "run"):
        assert never_pauses(tmp_path)
        with pytest.raises(ConfigError, match="another peer uses"), claim_data_dir(tmp_path, "run", pauses=True):
            pass
        assert never_pauses(tmp_path), "whoever comes too late changes nothing"
    assert noted_pausable() == []
    with claim_data_dir(tmp_path, "run", pauses=True):
        assert not never_pauses(tmp_path)


def test_where_nothing_can_be_noted_a_peer_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with claim_data_dir(tmp_path / "peer", "run", pauses=True):
        assert noted_pausable() == []


def test_a_directory_whose_mount_has_broken_hides_no_other_and_is_noted_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        note_pausable(tmp_path / name)
    look = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if path == tmp_path / "a":
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return look(path, **how)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "stat", stat)
        assert noted_pausable() == [tmp_path / "b"]
        (tmp_path / "c").mkdir()
        note_pausable(tmp_path / "c")
        assert noted_pausable() == [tmp_path / "b", tmp_path / "c"]
    assert noted_pausable() == [tmp_path / name for name in "abc"]


def test_an_empty_note_names_nothing_and_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    note_pausable(tmp_path / "a")
    (list_home() / "empty").touch()
    assert noted_pausable() == [tmp_path / "a"]
    note_pausable(tmp_path / "a")
    assert not (list_home() / "empty").exists()


def test_a_full_disk_leaves_the_note_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    note_pausable(tmp_path / "a")
    with no_file_larger_than(1):
        note_pausable(tmp_path / "a")
    assert noted_pausable() == [tmp_path / "a"]
