"""Data directories of other versions: earlier ones are brought up to date, later ones refused; a kill spoils none."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collab.errors import ConfigError
from collab.version import VERSION
from peers import upgrading
from peers.places import claim_data_dir
from peers.upgrading import MARK, STEPS, Step, bring_up_to_date

LAST_SEEN, COVERAGE = b'{"epoch": 41}', b'{"passes": {}}'


class Killed(BaseException):
    """The process ends here: nothing after it is done."""


def of_today(path: Path) -> Path:
    """A backbone's directory from before there were marks."""
    checkpoint = path / "checkpoints" / "epoch-00000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (path / "checkpoints" / "publishing.json").write_text('{"term": 3, "holder": "x"}')
    (path / "checkpoints" / "last-seen.json").write_bytes(LAST_SEEN)
    (path / "checkpoints" / "coverage.json").write_bytes(COVERAGE)
    (path / "identity.key").write_bytes(b"key")
    (path / "metrics.sqlite").write_bytes(b"database")
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Everything but what is unfinished."""
    files = (one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    return {str(one.relative_to(path)): one.read_bytes() for one in files}


def is_old(path: Path) -> bool:
    """Whether a program of before reads there what it wrote."""
    found = contents(path)
    return (found.get("checkpoints/last-seen.json"), found.get("checkpoints/coverage.json")) == (LAST_SEEN, COVERAGE)


def is_new(path: Path) -> bool:
    """Whether this program reads there what was known."""
    found = contents(path)
    return (found.get("last-seen.json"), found.get("coverage.json")) == (LAST_SEEN, COVERAGE)


@contextmanager
def killed_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The process dies before the operation of this number that changes the disk, or in the middle of a writing one."""
    done: list[str] = []

    def dying(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **named: Any) -> Any:
            if name == "open" and "w" not in (*arguments, named.get("mode", ""))[1]:
                return operation(*arguments, **named)
            if len(done) == call:
                if name == "open":
                    with operation(*arguments, **named) as file:
                        file.write(b"half")
                raise Killed
            done.append(name)
            return operation(*arguments, **named)

        return act

    with monkeypatch.context() as patched:
        for owner, name in ((Path, "open"), (Path, "replace"), (Path, "unlink"), (os, "fsync")):
            patched.setattr(owner, name, dying(name, getattr(owner, name)))
        yield done


def number_of_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    with killed_at(-1, monkeypatch) as done:
        bring_up_to_date(tmp_path)
    return len(done)


def test_a_directory_without_a_mark_is_brought_up_to_date_and_keeps_everything(tmp_path: Path) -> None:
    before = contents(of_today(tmp_path))
    with claim_data_dir(tmp_path, "run") as place:
        assert place.last_seen.read_bytes() == LAST_SEEN
        assert place.coverage.read_bytes() == COVERAGE
    after = contents(tmp_path)
    assert json.loads(after.pop(MARK)) == {"format": len(STEPS), "program": VERSION}
    moved = {name.removeprefix("checkpoints/") if "json" in name and "publish" not in name else name for name in before}
    assert set(after) == moved
    assert all(after[name] == data for name, data in before.items() if name in after)


def test_a_kill_between_any_two_operations_leaves_one_version_or_the_other_and_the_next_start_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = number_of_operations(of_today(tmp_path / "whole"), monkeypatch)
    assert number >= 9, "two files and the mark, each written, synced and renamed"
    seen = set()
    for call in range(number):
        path = of_today(tmp_path / str(call))
        with killed_at(call, monkeypatch), pytest.raises(Killed):
            bring_up_to_date(path)
        has_mark = (path / MARK).exists()
        seen.add(has_mark)
        assert is_new(path) if has_mark else is_old(path)
        bring_up_to_date(path)
        assert contents(path) == contents(tmp_path / "whole")
        assert not list(path.rglob(".*.new"))
    assert seen == {False, True}


def test_what_changed_between_a_kill_and_the_next_start_of_the_old_program_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know of marks, and goes on with its own files while there is none."""
    path = of_today(tmp_path)
    with killed_at(5, monkeypatch), pytest.raises(Killed):
        bring_up_to_date(path)
    assert not (path / MARK).exists()
    (path / "checkpoints" / "last-seen.json").write_bytes(b'{"epoch": 50}')
    bring_up_to_date(path)
    assert (path / "last-seen.json").read_bytes() == b'{"epoch": 50}'


def test_a_new_directory_and_one_of_this_version_are_only_marked_once(tmp_path: Path) -> None:
    bring_up_to_date(tmp_path)
    assert set(contents(tmp_path)) == {MARK}
    (tmp_path / "last-seen.json").write_bytes(b"1")
    written = (tmp_path / MARK).stat().st_mtime_ns
    bring_up_to_date(tmp_path)
    assert (tmp_path / MARK).stat().st_mtime_ns == written
    assert (tmp_path / "last-seen.json").read_bytes() == b"1"


def test_several_steps_are_done_one_after_the_other_from_where_the_directory_is(tmp_path: Path) -> None:
    done: list[int] = []

    def step(number: int) -> Step:
        return Step(add=lambda _: done.append(number), obsolete=())

    (tmp_path / "identity.key").touch()
    bring_up_to_date(tmp_path, [step(1), step(2)])
    bring_up_to_date(tmp_path, [step(1), step(2), step(3)])
    assert done == [1, 2, 3]


def test_a_directory_of_a_later_version_is_refused_with_who_must_upgrade_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / MARK).write_bytes(b'{"format": 99, "program": "7.1.0"}')
    (tmp_path / "last-seen.json").write_bytes(b"theirs")
    before = contents(tmp_path)
    with pytest.raises(ConfigError) as found, claim_data_dir(tmp_path, "run"):
        pass
    assert "was written by collab 7.1.0" in found.value.message
    assert f"this is collab {VERSION}" in found.value.message
    assert "this machine must upgrade" in found.value.hint
    assert "the line that installs collab 7.1.0 or later" in found.value.hint
    assert contents(tmp_path) == before


@pytest.mark.parametrize("mark", [b"", b"[]", b'{"format": "1", "program": "x"}', b'{"format": -1, "program": "x"}'])
def test_a_mark_that_is_none_is_refused(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / MARK).write_bytes(mark)
    with pytest.raises(ConfigError, match="cannot be read"):
        bring_up_to_date(tmp_path)


def test_a_full_disk_ends_in_words_and_the_old_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_today(tmp_path)

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upgrading, "replace_file", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        bring_up_to_date(path)
    assert is_old(path)
    assert not (path / MARK).exists()
