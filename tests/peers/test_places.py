"""Whose directory it is: one process has it to itself, and who only looks is in nobody's way."""

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from collab.errors import ConfigError
from peers import places
from peers.places import ELSEWHERE, claim_data_dir, is_in_use
from peers.upgrading import MARK

LIMIT_S = 30.0


def test_a_directory_is_in_use_as_long_as_a_process_has_it(tmp_path: Path) -> None:
    place = tmp_path / "peer"
    assert not is_in_use(place)
    with claim_data_dir(place, "run"):
        assert is_in_use(place)
        with pytest.raises(ConfigError, match="another peer uses"), claim_data_dir(place, "run"):
            pass
    assert not is_in_use(place)


def test_a_peer_that_starts_while_a_command_looks_is_not_taken_for_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim_data_dir(tmp_path, "run"):
        pass  # its lock is there from now on
    looks, go_on, has_claimed = threading.Event(), threading.Event(), threading.Event()
    real = fcntl.flock

    def flock(handle: Any, how: int) -> None:
        real(handle, how)
        if how == fcntl.LOCK_SH | fcntl.LOCK_NB:  # the one who looks has the lock now
            looks.set()
            assert go_on.wait(LIMIT_S)

    def claim() -> None:
        with claim_data_dir(tmp_path, "run"):
            has_claimed.set()

    monkeypatch.setattr(places.fcntl, "flock", flock)
    looking = threading.Thread(target=is_in_use, args=(tmp_path,))
    looking.start()
    assert looks.wait(LIMIT_S)
    starting = threading.Thread(target=claim)
    starting.start()
    assert not has_claimed.wait(0.2)
    go_on.set()
    assert has_claimed.wait(LIMIT_S)
    for thread in (looking, starting):
        thread.join(LIMIT_S)


def test_where_directories_cannot_be_locked_the_lock_within_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(handle: Any, how: int) -> None:
        if isinstance(handle, int) and os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError("of a network's file system")
        real(handle, how)

    monkeypatch.setattr(places.fcntl, "flock", flock)
    with claim_data_dir(tmp_path, "run"):
        assert is_in_use(tmp_path)
    assert not is_in_use(tmp_path)


@pytest.mark.parametrize("elsewhere", [ELSEWHERE, ""])
def test_a_directory_that_cannot_be_made_is_told_with_what_can_be_done(tmp_path: Path, elsewhere: str) -> None:
    """A backbone has no other place to name."""
    (tmp_path / "file").touch()
    for spoilt in (tmp_path / "file" / "peer", tmp_path / "later"):
        if spoilt.name == "later":
            spoilt.mkdir()
            (spoilt / MARK).write_bytes(b'{"format": 99, "program": "7.1.0"}')
        with pytest.raises(ConfigError) as found, claim_data_dir(spoilt, "run", elsewhere=elsewhere):
            pass
        assert ("--data-dir" in found.value.hint) == bool(elsewhere)
        assert len(found.value.hint) > len(elsewhere) + 10, "and how to mend it"
