"""VC-ASGD with real processes: clients are killed and preempted, servers come back, and every unit counts once."""

import contextlib
import signal
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import redis

from collab.data.work_units import Unit
from collab.swarm.parameter_store.base import lineage_of
from collab.swarm.parameter_store.redis import RedisStore
from collab.swarm.parameter_store.sqlite import SqliteStore
from tests.live import habits
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, LiveSwarm, Peer, live_swarm, run_cli, wait_until
from tests.simulation.mortal_store import units_done
from tests.swarm.parameter_store.test_redis import server

SHARDS = 20
NUM_SAMPLES = 1500
"""Of digits, without those that are held out."""
RUN = """\
run_id: live-units
microbatch_size: 8
until_epoch: {until}
task: {{name: image_classification}}
optimizer: {{name: sgd, learning_rate: 0.1}}
strategy: {{name: vc_asgd, shards: {shards}, first_lease_s: 10}}
checkpoints: {{every_epochs: {shards}, keep: {keep}}}
"""


def units(*, passes: int, keep: int = 3) -> str:
    """A run file."""
    return RUN.format(until=passes * SHARDS, shards=SHARDS, keep=keep)


def everything(passes: int) -> list[Unit]:
    return [Unit(number, shard) for number in range(1, passes + 1) for shard in range(SHARDS)]


def done(swarm: LiveSwarm, name: str = "parameters.sqlite") -> list[Unit]:
    """Units in the parameters of a store, in order."""
    with contextlib.closing(SqliteStore(swarm.directory / "backbone" / name)) as store:
        return units_done(store, SHARDS)


def test_no_unit_is_lost_or_counted_twice_while_clients_and_the_server_die(tmp_path: Path) -> None:
    passes = 12
    with live_swarm(tmp_path / "run", units(passes=passes)) as swarm:
        place = ("--port", own_port())
        backbone = swarm.backbone(*place)
        slowly = partial(habits.compute_slowly, 0.05)  # not all units are done before each has had some
        killed, preempted = (swarm.join(name, habits=slowly) for name in ("killed", "preempted"))
        for peer in (killed, preempted):
            peer.wait_to_contribute()
        stays = swarm.join("stays")
        stays.wait_to_contribute()
        killed.kill()
        assert preempted.leave(signal.SIGTERM)["epochs_contributed"] > 0
        backbone.kill()
        backbone = swarm.backbone(*place)
        assert stays.finish()["epoch"] == passes * SHARDS
        assert done(swarm) == everything(passes)
        wait_until(swarm.checkpoint(passes * SHARDS).is_dir, "the last checkpoint", backbone)
        assert swarm.status()["epoch"] == passes * SHARDS
        backbone.leave(signal.SIGTERM)


def kept_in_redis(url: str) -> tuple[int | None, list[Unit], int]:
    """Version, the units in the parameters, and how many passes are told apart, of the only run in a Redis server."""
    with contextlib.closing(redis.Redis.from_url(url)) as asked:
        (key,) = asked.keys("collab:*:version")
        run = key.decode().removeprefix("collab:{").removesuffix("}:version")
        passes = len(asked.keys("collab:*:units:*"))
    with contextlib.closing(RedisStore(url, run)) as store:
        return store.version(), units_done(store, SHARDS), passes


def test_two_servers_over_redis_and_the_redis_server_is_killed_three_times(tmp_path: Path) -> None:
    """Every unit is in the parameters once, and each client knows what of its own work is."""
    passes = 8
    with server() as running, live_swarm(tmp_path / "run", units(passes=passes)) as swarm:
        swarm.backbone("--store", running.url)
        second = swarm.join_as_backbone("second", "--store", running.url)
        clients = [swarm.join(name) for name in ("one", "two")]
        for peer in clients:
            peer.wait_to_contribute()
        for version in (2 * SHARDS, 4 * SHARDS, 6 * SHARDS):
            clients[0].wait_for_epoch(version)
            running.kill()
            running.start()
        assert {peer.finish()["epoch"] for peer in clients} == {passes * SHARDS}
        assert second.process.poll() is None
        version, found, told_apart = kept_in_redis(running.url)
        assert (version, found) == (passes * SHARDS, everything(passes))
        assert told_apart < passes
        trained = sum(unit["samples"] for peer in clients for unit in peer.all("UnitBegun"))
        counted = sum(step["own_samples"] for peer in clients for step in peer.steps)
        assert counted == NUM_SAMPLES * passes <= trained


def test_the_organiser_goes_back_and_every_unit_since_the_checkpoint_counts_once(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", units(passes=5000, keep=1000)) as swarm:  # three are made while a command begins
        swarm.backbone()
        clients = [swarm.join(name) for name in ("one", "two")]
        for peer in clients:
            peer.wait_to_contribute()
        clients[0].wait_for_epoch(2 * SHARDS)
        assert not any(map(has_gone_back, clients))
        kept = swarm.directory / "backbone" / "checkpoints"
        epoch = max(int(path.name.removeprefix("epoch-")) for path in kept.glob("epoch-*"))
        back = run_cli("rollback", str(swarm.directory), str(epoch))
        assert back.returncode == 0, back.stderr
        assert f"everybody goes back to epoch {epoch} " in back.stdout + back.stderr
        for peer in clients:
            wait_until(lambda peer=peer: has_gone_back(peer), f"{peer.name} to go back", peer)
        last = swarm.end()
        ends = [peer.finish()["epoch"] for peer in clients]
        assert last <= min(ends), "and where they had passed it when they heard, with the next step"
        assert max(ends) - min(ends) <= len(clients)
        (store,) = (swarm.directory / "backbone").glob("parameters-*.sqlite")
        since = done(swarm, store.name)
        with contextlib.closing(sqlite3.connect(store)) as connection:
            assert connection.execute("SELECT version FROM parameters").fetchall() == [(len(since),)]
        assert len(since) >= last
        whole = len(since) // SHARDS - 1
        assert since[: whole * SHARDS] == everything(whole)
        assert len(done(swarm)) > epoch, "what was given up is where it was"


def has_gone_back(peer: Peer) -> bool:
    """Whether a step of it is of the history since the order, which may be further by then than it was itself."""
    return any(step["lineage"] != lineage_of(step["epoch"]) for step in peer.steps)


def test_a_store_is_refused_where_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, live_swarm(tmp_path / "run", DEDLOC) as swarm:
        peer = swarm.start("backbone", ["backbone", str(swarm.directory), "--store", f"unix://{folder}/socket"])
        assert peer.process.wait(LIMIT_S) != 0
        assert "--store is for vc_asgd; this run has dedloc" in peer.tail()


DEDLOC = "run_id: live-units\ntask: {name: image_classification}\n"
