"""VC-ASGD with real processes: clients are killed and preempted, servers come back, and every unit counts once."""

import contextlib
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest

from tests.live.processes import LiveSwarm, live_swarm, wait_until
from tests.swarm.parameter_store.test_redis import server

SHARDS = 20
RUN = """\
run_id: live-units
microbatch_size: 8
until_epoch: {until}
task: {{name: image_classification}}
optimizer: {{name: sgd, learning_rate: 0.1}}
strategy: {{name: vc_asgd, shards: {shards}, first_lease_s: 10}}
checkpoints: {{every_epochs: {shards}, keep: 3}}
"""


def units(*, passes: int) -> str:
    """A run file."""
    return RUN.format(until=passes * SHARDS, shards=SHARDS)


def done(swarm: LiveSwarm) -> list[tuple[int, int]]:
    """Units in the parameters, by pass and shard."""
    path = swarm.directory / "backbone" / "parameters.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT pass, shard FROM done ORDER BY pass, shard").fetchall()


@pytest.mark.timeout(240)
def test_no_unit_is_lost_or_counted_twice_while_clients_and_the_server_die(tmp_path: Path) -> None:
    passes = 12
    with live_swarm(tmp_path / "run", units(passes=passes)) as swarm:
        backbone = swarm.backbone("--port", "47613")
        stays, killed, preempted = (swarm.join(name) for name in ("stays", "killed", "preempted"))
        for peer in (stays, killed, preempted):
            peer.wait_to_contribute()
        killed.kill()
        summary, seconds = preempted.leave(signal.SIGTERM)
        assert summary["epochs_contributed"] > 0
        assert seconds < 5.0
        backbone.kill()
        backbone = swarm.backbone("--port", "47613")
        assert stays.finish()["epoch"] == passes * SHARDS
        assert done(swarm) == [(number, shard) for number in range(1, passes + 1) for shard in range(SHARDS)]
        wait_until(swarm.checkpoint(passes * SHARDS).is_dir, "the last checkpoint", backbone)
        assert swarm.status()["epoch"] == passes * SHARDS
        backbone.leave(signal.SIGTERM)


@pytest.mark.timeout(240)
def test_two_servers_over_redis_and_the_redis_server_is_killed(tmp_path: Path) -> None:
    passes = 8
    with server() as redis, live_swarm(tmp_path / "run", units(passes=passes)) as swarm:
        swarm.backbone("--store", redis.url)
        second = swarm.join_as_backbone("second", "--store", redis.url)
        clients = [swarm.join(name) for name in ("one", "two")]
        for peer in clients:
            peer.wait_to_contribute()
        redis.kill()
        redis.start()
        assert {peer.finish()["epoch"] for peer in clients} == {passes * SHARDS}
        assert second.process.poll() is None


def test_a_store_is_refused_where_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, live_swarm(tmp_path / "run", DEDLOC) as swarm:
        peer = swarm.start("backbone", ["backbone", str(swarm.directory), "--store", f"unix://{folder}/socket"])
        assert peer.process.wait(60.0) != 0
        assert "--store is for vc_asgd; this run has dedloc" in peer.tail()


DEDLOC = "run_id: live-units\ntask: {name: image_classification}\n"
