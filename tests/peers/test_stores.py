"""Where an organiser can have parameters kept."""

from pathlib import Path

import pytest

from collab.config import parse_run
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.sqlite import SqliteStore
from collab.types import PeerId
from peers.stores import open_store

TEXT = "run_id: stores\ntask: {name: image_classification}\nstrategy: {name: %s}\n"


def bundle(strategy: str) -> Bundle:
    return Bundle(parse_run(TEXT % strategy, origin="the test"), {}, PeerId(""))


def test_a_file_nowhere_and_what_is_neither(tmp_path: Path) -> None:
    run = bundle("vc_asgd")
    store = open_store(run, str(tmp_path / "parameters"))
    assert isinstance(store, SqliteStore)
    store.close()
    assert open_store(run, "") is None
    for nowhere in ("http://example.org", str(tmp_path / "not here" / "parameters")):
        with pytest.raises(ConfigError, match="there is no such place"):
            open_store(run, nowhere)


def test_other_runs_have_no_use_for_one(tmp_path: Path) -> None:
    assert open_store(bundle("dedloc"), "") is None
    with pytest.raises(ConfigError, match="this run has dedloc"):
        open_store(bundle("dedloc"), str(tmp_path / "parameters"))
