"""Where an organiser can have parameters kept."""

from pathlib import Path

import numpy as np
import pytest

from collab.config import parse_run
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import Kept
from collab.swarm.parameter_store.sqlite import SqliteStore
from collab.types import PeerId
from peers.stores import open_stores

TEXT = "run_id: stores\ntask: {name: image_classification}\nstrategy: {name: %s}\n"


def bundle(strategy: str) -> Bundle:
    return Bundle(parse_run(TEXT % strategy, origin="the test"), {}, PeerId(""))


def test_a_file_nowhere_and_what_is_neither(tmp_path: Path) -> None:
    run = bundle("vc_asgd")
    stores = open_stores(run, str(tmp_path / "parameters.sqlite"))
    assert stores is not None
    assert isinstance(stores.of(""), SqliteStore)
    stores.close()
    assert open_stores(run, "") is None
    for nowhere in ("http://example.org", str(tmp_path / "not here" / "parameters")):
        with pytest.raises(ConfigError, match="there is no such place"):
            open_stores(run, nowhere)


def test_other_runs_have_no_use_for_one(tmp_path: Path) -> None:
    assert open_stores(bundle("dedloc"), "") is None
    with pytest.raises(ConfigError, match="this run has dedloc"):
        open_stores(bundle("dedloc"), str(tmp_path / "parameters"))


def test_each_rollback_has_a_store_of_its_own_beside_that_of_before(tmp_path: Path) -> None:
    stores = open_stores(bundle("vc_asgd"), str(tmp_path / "parameters.sqlite"))
    assert stores is not None
    for era in ("", "a" * 16):
        assert stores.of(era).begin(Kept.at_first(np.zeros(3, np.float32)))
    assert stores.of("") is stores.of("")
    stores.close()
    assert {path.stem for path in tmp_path.glob("*.sqlite")} == {"parameters", "parameters-aaaaaaaaaaaaaaaa"}
