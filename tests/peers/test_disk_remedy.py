"""What is advised fits what went wrong."""

import errno
import os
import pwd
from pathlib import Path

import pytest

from peers.disk_remedy import remedy


def advice(place: Path, number: int) -> str:
    return remedy(place, OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"), (errno.EDQUOT, "quota"), (errno.EIO, "backup"), (errno.EROFS, "read only"),
        (errno.EISDIR, "is a file"),
    ],
)  # fmt: skip
def test_a_disk_is_named_by_what_it_lacks(tmp_path: Path, number: int, words: str) -> None:
    assert words in advice(tmp_path, number)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("name", ["there", "not-there"])
def test_what_is_not_ours_is_told_with_whose_it_is(tmp_path: Path, number: int, name: str) -> None:
    (tmp_path / "there").touch()
    assert f"it belongs to {pwd.getpwuid(os.getuid()).pw_name}" in advice(tmp_path / name, number)


def test_who_has_no_name_is_told_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert f"it belongs to user {os.getuid()}" in advice(tmp_path, errno.EACCES)


def test_what_lies_where_nobody_else_may_look_is_told_with_whose_that_place_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stat = tmp_path / "closed" / "file", Path.stat
    file.parent.mkdir()

    def closed(path: Path, **options: bool) -> os.stat_result:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", closed)
    assert f"it belongs to {pwd.getpwuid(os.getuid()).pw_name}" in advice(file, errno.EACCES)


def test_where_nobody_can_say_whose_it_is_no_name_is_told(tmp_path: Path) -> None:
    assert "belongs" not in advice(tmp_path / "neither" / "there", errno.EACCES)
