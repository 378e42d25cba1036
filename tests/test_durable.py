"""Files that are replaced whole: a reader, a kill and a power cut find the old one or the new one."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collab.durable import replace_file, sync_directory


class Killed(BaseException):
    """The process ends here: nothing after it is done."""


def following(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Note what is done to the disk, in its order."""

    def noted(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            done.append(name)
            return operation(*arguments)

        return act

    monkeypatch.setattr(os, "fsync", noted("synced", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("renamed", Path.replace))


def test_what_is_written_is_on_the_disk_before_it_has_the_name_and_then_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    following(monkeypatch, done)
    replace_file(tmp_path / "file", b"first")
    assert done == ["synced", "renamed", "synced"]
    replace_file(tmp_path / "file", b"second", is_synced=False)
    assert done[3:] == ["renamed"]
    assert (tmp_path / "file").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_takes_nothing_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


@pytest.mark.parametrize("dying", ["fsync", "replace"])
def test_a_kill_leaves_the_old_file(dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync") if dying == "fsync" else (Path, "replace")), killed)
        with pytest.raises(Killed):
            replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_private_file_is_private_from_its_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").touch(0o644)
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode)))
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert seen[0] == 0o600
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_file_system_that_cannot_sync_names_is_no_failure_and_a_broken_disk_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int) -> Callable[[int], None]:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fails(errno.EINVAL))
    sync_directory(tmp_path)
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        sync_directory(tmp_path)
