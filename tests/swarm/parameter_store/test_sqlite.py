"""The store in a file: through restarts, kills, and with several processes."""

import multiprocessing
import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.swarm.parameter_store.base import Kept, ParameterStore, Verdict
from collab.swarm.parameter_store.sqlite import SqliteStore
from tests.swarm.parameter_store.store_contract import FIRST, StoreContract, now, push

LARGE = np.zeros(200_000, np.float32)


@pytest.mark.parametrize("is_strong", [True, False], ids=["strong", "eventual"])
class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _choose(self, is_strong: bool) -> None:
        self._is_strong = is_strong

    @contextmanager
    def open(self) -> Iterator[tuple[ParameterStore, ParameterStore]]:
        with tempfile.TemporaryDirectory() as folder:
            stores = tuple(SqliteStore(Path(folder) / "store.db", is_strong=self._is_strong) for _ in range(2))
            try:
                yield stores[0], stores[1]
            finally:
                for store in stores:
                    store.close()

    def test_it_is_there_after_a_restart(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "store.db", is_strong=self._is_strong)
        store.begin(Kept.at_first(FIRST))
        store.assimilate(push(0, FIRST + 1))
        before = now(store)
        store.close()
        again = SqliteStore(tmp_path / "store.db", is_strong=self._is_strong)
        assert now(again).version == 1
        np.testing.assert_array_equal(now(again).values, before.values)
        assert again.assimilate(push(0, FIRST + 1)).verdict == Verdict.AGAIN
        again.close()


def test_strong_pushes_of_two_servers_are_all_in_the_parameters(tmp_path: Path) -> None:
    """With alpha 0.999 and pushes of ones, what is missing of one push shows."""
    stores = [SqliteStore(tmp_path / "store.db") for _ in range(2)]
    stores[0].begin(Kept.at_first(np.zeros(3, np.float32)))
    TestSqliteStore().race((stores[0], stores[1]))
    # FIRST each time: W = (1 - alpha^100) FIRST
    np.testing.assert_allclose(now(stores[0]).values, (1 - 0.7**100) * FIRST, rtol=1e-5)
    for number in range(5):
        stores[number % 2].assimilate(push(500 + number, FIRST * 0, based_on=100, alpha=0.5))
    np.testing.assert_allclose(now(stores[1]).values, FIRST / 32, rtol=1e-5)
    for store in stores:
        store.close()


def pushing(path: Path, count: int) -> None:
    store = SqliteStore(path)
    for shard in range(count):
        store.assimilate(push(shard, LARGE + 1, alpha=0.5))


@pytest.mark.parametrize("after", [1, 3])
def test_a_server_killed_in_the_middle_of_its_pushes_leaves_units_and_parameters_that_agree(
    tmp_path: Path, after: int
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    store.begin(Kept.at_first(LARGE))
    process = multiprocessing.get_context("spawn").Process(target=pushing, args=(path, 10_000))
    process.start()
    while now(store).version < after:
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    stored = now(store)
    assert len(store.done(1)) == stored.version
    np.testing.assert_allclose(stored.values, 1 - 0.5**stored.version, rtol=1e-6)
    assert store.assimilate(push(20_000, LARGE, unit=Unit(2, 0), lease="next")).verdict == Verdict.TAKEN
    store.close()


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(StateError, match=r"store\.db"):
        SqliteStore(tmp_path / "store.db")


def test_a_full_disk_is_named_and_nothing_changes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.begin(Kept.at_first(LARGE))
    with store._connected() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
    before = now(store).version

    def fill() -> None:
        for shard in range(5000):
            store.assimilate(push(shard, LARGE + 1, lease="x" * 2000))

    with pytest.raises(StateError, match="full"):
        fill()
    reached = now(store).version
    assert reached >= before
    assert len(store.done(1)) == reached
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
