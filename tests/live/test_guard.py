"""The guard over the real network: a flood is refused and counted, others are answered, versions are named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from collab.errors import NetworkError, StreamClosed
from collab.net.hivemind_net import HivemindTransport, NetworkSettings, open_transport
from collab.net.quotas import QUOTAS, REPORT_PROTOCOL
from collab.net.refusal_report import fetch_report
from collab.net.startup import Started, StartupSettings, start_peer
from collab.net.wire import MAGIC, PREFIX, PROTOCOL_VERSION, Message
from collab.swarm.identity import load_or_create_identity
from tests.fakes import FakeObserver

PATIENCE_S = 120.0


@asynccontextmanager
async def server_and_two(folder: Path) -> AsyncIterator[tuple[Started, HivemindTransport, HivemindTransport]]:
    """A peer as it starts in a real run, and two strangers that have dialled it."""
    network = NetworkSettings(identity_path=folder / "server.key", host="127.0.0.1")
    async with start_peer(StartupSettings(network=network), FakeObserver()) as server:
        address = (await server.ports.transport.addresses())[0]
        strangers = []
        for name in ("pushy", "modest"):
            load_or_create_identity(folder / f"{name}.key")
            strangers.append(NetworkSettings(identity_path=folder / f"{name}.key", host="127.0.0.1", is_client=True))
        async with open_transport(strangers[0]) as pushy, open_transport(strangers[1]) as modest:
            for transport in (pushy, modest):
                await transport.dial(address, timeout_s=PATIENCE_S)
            yield server, pushy, modest


def test_a_flood_is_refused_and_counted_and_another_peer_is_told_of_it_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with server_and_two(tmp_path) as (server, pushy, modest):
            target = server.ports.transport.peer_id
            num_opened = 2 * QUOTAS[REPORT_PROTOCOL].streams.burst
            streams = [await pushy.open(target, REPORT_PROTOCOL, timeout_s=PATIENCE_S) for _ in range(num_opened)]
            large = await pushy.open(target, REPORT_PROTOCOL, timeout_s=PATIENCE_S)
            with pytest.raises(StreamClosed):
                await large.receive(timeout_s=PATIENCE_S)
            rows = await fetch_report(modest, target)
            refused = {row.reason: row.count for row in rows}
            assert {row.peer for row in rows} == {pushy.peer_id}
            assert refused["too_many_streams"] >= num_opened - QUOTAS[REPORT_PROTOCOL].open_streams
            assert {row.peer for row in server.refusals.rows()} == {pushy.peer_id}
            for stream in streams:
                stream.close()

    asyncio.run(main())


def test_what_is_too_large_ends_its_stream_and_another_version_is_answered_with_ours(tmp_path: Path) -> None:
    async def main() -> None:
        async with server_and_two(tmp_path) as (server, pushy, modest):
            target = server.ports.transport.peer_id
            stream = await pushy.open(target, REPORT_PROTOCOL, timeout_s=PATIENCE_S)
            with suppress(NetworkError):  # it may be closed before all of it has left
                await stream.send(Message("refusals?", payload=bytes(1 << 20)), timeout_s=PATIENCE_S)
            with pytest.raises(NetworkError):
                await stream.receive(timeout_s=PATIENCE_S)
            old = await modest.open(target, REPORT_PROTOCOL, timeout_s=PATIENCE_S)
            old._writer.write(PREFIX.pack(MAGIC, PROTOCOL_VERSION + 1, 0, 0))
            answer = await old.receive(timeout_s=PATIENCE_S)  # of our version: they would raise VersionMismatch
            assert answer.kind == "version"
            with pytest.raises(StreamClosed):
                await old.receive(timeout_s=PATIENCE_S)
            refused = {(row.peer, row.reason): row.count for row in server.refusals.rows()}
            assert refused == {(pushy.peer_id, "too_large"): 1, (modest.peer_id, "version_mismatch"): 1}

    asyncio.run(main())
