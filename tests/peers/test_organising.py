"""What `collab-peer init` leaves behind, also where the disk takes a part of it or nothing."""

import errno
import os
from pathlib import Path

import pytest

from collab.config import load_run
from collab.errors import ConfigError
from collab.swarm.identity import load_or_create_identity
from peers import organising
from peers.organising import init_run
from peers.places import OWNER_KEY, RUN_FILE
from tests.full_disk import no_file_larger_than

LESS_THAN_A_KEY, LESS_THAN_A_RUN_FILE = 10, 1000


@pytest.mark.parametrize(
    ("num_bytes", "left", "words"),
    [(LESS_THAN_A_KEY, [], OWNER_KEY), (LESS_THAN_A_RUN_FILE, [OWNER_KEY], RUN_FILE)],
)
def test_a_disk_that_takes_a_part_of_a_file_keeps_none_of_it_and_init_works_when_there_is_room(
    tmp_path: Path, num_bytes: int, left: list[str], words: str
) -> None:
    directory = tmp_path / "run"
    with no_file_larger_than(num_bytes), pytest.raises(ConfigError, match=f"{words}: File too large"):
        init_run(directory, "a-run")
    assert [path.name for path in directory.iterdir()] == left
    init_run(directory, "a-run")
    assert load_run(directory / RUN_FILE).run_id == "a-run"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(organising, "replace_file", full)
    with pytest.raises(ConfigError, match="yaml: No space left on device") as refused:
        init_run(tmp_path / "run", "a-run")
    assert refused.value.hint.startswith("free some space on that disk")


def test_a_run_that_is_there_keeps_its_file_and_its_owner(tmp_path: Path) -> None:
    init_run(tmp_path, "a-run")
    owner = load_or_create_identity(tmp_path / OWNER_KEY).peer_id
    with pytest.raises(ConfigError, match="exists already"):
        init_run(tmp_path, "another-run")
    assert load_run(tmp_path / RUN_FILE).run_id == "a-run"
    assert load_or_create_identity(tmp_path / OWNER_KEY).peer_id == owner
