"""Where an organiser can have parameters kept."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import redis

from collab.config import parse_run
from collab.errors import ConfigError, CorruptState
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import Kept
from collab.swarm.parameter_store.sqlite import SqliteStore
from collab.types import PeerId
from peers.stores import open_stores
from tests.swarm.parameter_store.store_contract import push
from tests.swarm.parameter_store.test_redis import server

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


def damaged(path: Path, where: str) -> bytes:
    """A store that was closed well, and whose disk has lost some of it since."""
    store = SqliteStore(path)
    store.begin(Kept.at_first(np.zeros(50_000, np.float32)))
    store.close()
    data = bytearray(path.read_bytes())
    start = {"first page": 0, "later page": 3 * 4096}[where]
    data[start : start + 4096] = b"?" * 4096
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("where", ["first page", "later page"])
@pytest.mark.parametrize("era", ["", "a" * 16])
def test_a_damaged_store_of_the_backbones_own_is_put_aside(
    tmp_path: Path, era: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "parameters.sqlite"
    path = own.with_name(f"parameters-{era}.sqlite") if era else own
    data = damaged(path, where)
    path.with_name(f"{path.name}-wal").write_bytes(b"")
    stores = open_stores(bundle("vc_asgd"), str(own), own)
    assert stores is not None
    assert stores.of(era).version() is None
    assert stores.of(era).begin(Kept.at_first(np.zeros(3, np.float32)))
    stores.close()
    aside = path.with_suffix(".unreadable.sqlite")
    assert aside.read_bytes() == data
    assert f"it lies in {aside}, and the run goes on from its newest checkpoint" in caplog.text
    again = SqliteStore(path)
    assert again.version() == 0
    again.close()


@pytest.mark.parametrize("where", ["first page", "later page"])
def test_a_file_that_somebody_has_named_is_never_put_aside(tmp_path: Path, where: str) -> None:
    named = tmp_path / "named.sqlite"
    data = damaged(named, where)
    with pytest.raises(CorruptState, match="damaged, or none") as told:
        open_stores(bundle("vc_asgd"), str(named), tmp_path / "parameters.sqlite")
    assert "move the file away" in told.value.hint
    assert named.read_bytes() == data
    assert not list(tmp_path.glob("*unreadable*"))


def test_each_rollback_has_a_store_of_its_own_beside_that_of_before(tmp_path: Path) -> None:
    stores = open_stores(bundle("vc_asgd"), str(tmp_path / "parameters.sqlite"))
    assert stores is not None
    for era in ("", "a" * 16):
        assert stores.of(era).begin(Kept.at_first(np.zeros(3, np.float32)))
    assert stores.of("") is stores.of("")
    stores.close()
    assert {path.stem for path in tmp_path.glob("*.sqlite")} == {"parameters", "parameters-aaaaaaaaaaaaaaaa"}


def test_what_is_erased_leaves_nothing_and_nobody_elses_file_goes(tmp_path: Path) -> None:
    (tmp_path / "parameters-notes.txt").write_text("mine")
    stores = open_stores(bundle("vc_asgd"), str(tmp_path / "parameters.sqlite"))
    assert stores is not None
    for era in ("", "a" * 16, "b" * 16):
        assert stores.of(era).begin(Kept.at_first(np.zeros(3, np.float32)))
    stores.erase(["", "a" * 16, "of which nothing is there"])
    assert stores.of("b" * 16).version() == 0
    stores.close()
    assert {path.name for path in tmp_path.iterdir()} == {f"parameters-{'b' * 16}.sqlite", "parameters-notes.txt"}


def test_what_is_erased_leaves_nothing_in_redis_and_other_runs_stay() -> None:
    with server() as running, contextlib.closing(redis.Redis.from_url(running.url)) as asked:
        asked.set("somebody's", "own")
        stores = open_stores(bundle("vc_asgd"), running.url)
        assert stores is not None
        for era in ("", "a" * 16):
            assert stores.of(era).begin(Kept.at_first(np.zeros(3, np.float32)))
            assert stores.of(era).assimilate(push(0, np.ones(3, np.float32))).version == 1
        stores.erase([""])
        assert stores.of("a" * 16).version() == 1
        stores.close()
        assert sorted(key.decode().rpartition("}:")[2] for key in asked.scan_iter()) == [
            "first_open", "somebody's", "units:1", "vector", "version",
        ]
