"""The store in Redis, with a server of the test's own."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from collab.errors import ConfigError, StateError
from collab.swarm.parameter_store.base import Kept, ParameterStore, Verdict
from collab.swarm.parameter_store.redis import RedisStore
from tests.swarm.parameter_store.store_contract import FIRST, StoreContract, now, push

STARTS_S = 120.0


class Server:
    """A Redis server on a socket of its own, which keeps everything in a folder."""

    def __init__(self, folder: Path, *further: str) -> None:
        self.folder, self.url, self._further = folder, f"unix://{folder / 'socket'}", further
        self.start()

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "these tests need redis-server: apt-get install redis-server (scripts/test.sh does)"
        options = ["--port", "0", "--unixsocket", str(self.folder / "socket"), "--dir", str(self.folder)]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]  # as deploy/compose.yaml has it
        self.process = subprocess.Popen([program, *options, *durable, *self._further], stdout=subprocess.DEVNULL)
        give_up_s = time.monotonic() + STARTS_S
        while True:
            try:
                RedisStore(self.url, "nobody").close()
                return
            except StateError:
                assert time.monotonic() < give_up_s
                time.sleep(0.05)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def server(*options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        running = Server(Path(folder), *options)
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.mark.parametrize("is_strong", [True, False], ids=["strong", "eventual"])
class TestRedisStore(StoreContract):
    runs = 0

    @pytest.fixture(autouse=True)
    def _choose(self, is_strong: bool, shared: Server) -> None:
        self._is_strong, self._server = is_strong, shared

    @contextmanager
    def open(self) -> Iterator[tuple[ParameterStore, ParameterStore]]:
        TestRedisStore.runs += 1
        run = f"run-{self.runs}"
        stores = tuple(RedisStore(self._server.url, run, is_strong=self._is_strong) for _ in range(2))
        try:
            yield stores[0], stores[1]
        finally:
            for store in stores:
                store.close()


def test_runs_on_one_server_do_not_see_each_other(shared: Server) -> None:
    one, other = RedisStore(shared.url, "one"), RedisStore(shared.url, "other")
    one.begin(Kept.at_first(FIRST))
    assert other.read() is None
    for store in (one, other):
        store.close()


def test_strong_pushes_of_two_servers_are_all_in_the_parameters(shared: Server) -> None:
    stores = [RedisStore(shared.url, "race") for _ in range(2)]
    stores[0].begin(Kept.at_first(np.zeros(3, np.float32)))
    TestRedisStore().race((stores[0], stores[1]), each=4)
    np.testing.assert_allclose(now(stores[0]).values, (1 - 0.7**8) * FIRST, rtol=1e-5)
    for store in stores:
        store.close()


def test_what_was_taken_is_there_when_the_redis_server_was_killed_and_starts_again() -> None:
    with server() as running:
        store = RedisStore(running.url, "run")
        store.begin(Kept.at_first(FIRST))
        for shard in range(5):
            assert store.assimilate(push(shard, FIRST + 1)).verdict == Verdict.TAKEN
        before = now(store)
        running.kill()
        with pytest.raises(StateError, match="Redis"):
            store.assimilate(push(5, FIRST))
        running.start()
        assert now(store).version == 5
        np.testing.assert_array_equal(now(store).values, before.values)
        assert store.assimilate(push(4, FIRST + 1)).verdict == Verdict.AGAIN
        assert store.assimilate(push(5, FIRST)).verdict == Verdict.TAKEN
        store.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--rename-command", "CONFIG", ""), "unknown command"),
        (("--user", "default", "on", "nopass", "~*", "&*", "+@all", "-config"), "NOPERM|permission"),
    ],
    ids=["no such command", "not allowed"],
)
def test_a_server_that_does_not_let_itself_be_asked_is_used_and_its_memory_doubted(
    options: tuple[str, ...], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of services that run Redis for others."""
    with server(*options) as running:
        caplog.clear()
        store = RedisStore(running.url, "run")
        assert re.search(f"does not say whether it forgets everything when it dies .*({word})", caplog.text)
        store.begin(Kept.at_first(FIRST))
        assert store.assimilate(push(0, FIRST + 1)).verdict == Verdict.TAKEN
        store.close()


def test_no_address_of_a_server_is_named() -> None:
    with pytest.raises(ConfigError, match="address"):
        RedisStore("http://somewhere", "run")
