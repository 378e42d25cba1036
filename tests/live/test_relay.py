"""Circuits over the daemon's own relay, on loopback: who cannot be dialled is met, and the limits hold."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from collab.errors import NetworkError, PeerUnreachable, StreamClosed
from collab.net.base import Stream
from collab.net.hivemind_net import HivemindTransport, NetworkSettings, open_transport
from collab.net.relaying import LEAST_DATA_BYTES, RelayLimits, Reservation
from collab.net.wire import Message
from collab.swarm.identity import load_or_create_identity

PATIENCE_S = 120.0
MEGABYTE = 1 << 20
LIMITS = RelayLimits(data_bytes=LEAST_DATA_BYTES, time_s=600)
Body = Callable[[Sequence[HivemindTransport]], Awaitable[None]]


@asynccontextmanager
async def opened(folder: Path, name: str, relay: RelayLimits | None = None) -> AsyncIterator[HivemindTransport]:
    load_or_create_identity(folder / name)
    network = NetworkSettings(identity_path=folder / name, host="127.0.0.1", is_client=relay is None, relay=relay)
    async with open_transport(network) as transport:
        yield transport


def with_relay(folder: Path, limits: RelayLimits, body: Body) -> None:
    """Run ``body`` with a relay, and three that cannot be dialled and are connected to it."""

    async def main() -> None:
        async with (
            opened(folder, "relay", limits) as relay,
            opened(folder, "a") as a,
            opened(folder, "b") as b,
            opened(folder, "c") as c,
        ):
            for client in (a, b, c):
                await client.dial((await relay.addresses())[0], timeout_s=PATIENCE_S)
            await body((relay, a, b, c))

    asyncio.run(main())


async def swallow(stream: Stream) -> None:
    """Say for each message how many bytes have come by now."""
    total = 0
    while True:
        total += len((await stream.receive(timeout_s=PATIENCE_S)).payload)
        await stream.send(Message("got", {"bytes": total}), timeout_s=PATIENCE_S)


async def pour(stream: Stream, megabytes: int) -> int:
    """Send so much, and return how many bytes the other side had before the circuit broke."""
    total = 0
    try:
        for _ in range(megabytes):
            await stream.send(Message("data", {}, bytes(MEGABYTE)), timeout_s=PATIENCE_S)
            total = (await stream.receive(timeout_s=PATIENCE_S)).get("bytes", int)
    except NetworkError:
        return total
    return total


def test_two_that_nobody_can_dial_meet_through_a_relay_and_know_who_the_other_is(tmp_path: Path) -> None:
    async def body(peers: Sequence[HivemindTransport]) -> None:
        relay, a, b, _ = peers
        seen = []

        async def serve(stream: Stream) -> None:
            seen.append(stream.remote)
            await swallow(stream)

        await a.serve("swallow", serve)
        with pytest.raises(PeerUnreachable):
            await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        for peer in (a, b):
            granted = await peer.reserve(relay.peer_id, timeout_s=PATIENCE_S)
            assert granted == Reservation(data_bytes=LIMITS.data_bytes, time_s=LIMITS.time_s)
        stream = await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        assert await pour(stream, 4) == 4 * MEGABYTE
        assert seen == [b.peer_id]
        assert await a.hosts_of(b.peer_id) == frozenset(), "the address of a relay is nobody else's"
        stream.close()

    with_relay(tmp_path, LIMITS, body)


def test_a_circuit_breaks_when_it_has_carried_its_bytes_and_another_one_works(tmp_path: Path) -> None:
    async def body(peers: Sequence[HivemindTransport]) -> None:
        relay, a, b, _ = peers
        await a.serve("swallow", swallow)
        for peer in (a, b):
            await peer.reserve(relay.peer_id, timeout_s=PATIENCE_S)
        stream = await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        carried = await pour(stream, 20)
        assert 14 * MEGABYTE <= carried <= LEAST_DATA_BYTES
        again = await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        assert await pour(again, 1) == MEGABYTE
        stream.close()
        again.close()

    with_relay(tmp_path, LIMITS, body)


def test_a_circuit_breaks_when_its_time_is_over(tmp_path: Path) -> None:
    async def body(peers: Sequence[HivemindTransport]) -> None:
        relay, a, b, _ = peers
        await a.serve("swallow", swallow)
        for peer in (a, b):
            await peer.reserve(relay.peer_id, timeout_s=PATIENCE_S)
        began_s = time.monotonic()
        stream = await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        with pytest.raises(StreamClosed):  # and not TimedOut
            await stream.receive(timeout_s=PATIENCE_S)
        assert time.monotonic() - began_s > 1.5

    with_relay(tmp_path, RelayLimits(data_bytes=LEAST_DATA_BYTES, time_s=2), body)


def test_a_relay_has_so_many_places_and_circuits_and_no_more(tmp_path: Path) -> None:
    async def body(peers: Sequence[HivemindTransport]) -> None:
        relay, a, b, c = peers
        await a.serve("swallow", swallow)
        for peer in (a, b):
            await peer.reserve(relay.peer_id, timeout_s=PATIENCE_S)
        with pytest.raises(PeerUnreachable, match="no place"):
            await c.reserve(relay.peer_id, timeout_s=PATIENCE_S)
        c._relays[relay.peer_id] = None  # it may still ask for a circuit to others
        first = await b.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        assert await pour(first, 1) == MEGABYTE
        with pytest.raises(PeerUnreachable, match="RESOURCE_LIMIT_EXCEEDED"):
            await c.open(a.peer_id, "swallow", timeout_s=PATIENCE_S)
        assert await pour(first, 1) == 2 * MEGABYTE, "who has a circuit keeps it"
        first.close()

    limits = RelayLimits(data_bytes=LEAST_DATA_BYTES, time_s=600, circuits_of_a_peer=1, places=3)  # one for the check
    with_relay(tmp_path, limits, body)


def test_a_daemon_that_was_not_told_to_relay_is_of_no_use_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        load_or_create_identity(tmp_path / "plain")
        plain = NetworkSettings(identity_path=tmp_path / "plain", host="127.0.0.1")
        async with open_transport(plain) as server, opened(tmp_path, "a") as a:
            await a.dial((await server.addresses())[0], timeout_s=PATIENCE_S)
            with pytest.raises(PeerUnreachable, match="passes on only"):
                await a.reserve(server.peer_id, timeout_s=PATIENCE_S)

    asyncio.run(main())


def test_a_relay_that_starts_again_keeps_to_its_limits_every_time(tmp_path: Path) -> None:
    """The daemon has two relay services, and chance decides which one answers; ours is waited for."""

    async def main() -> None:
        for _ in range(4):
            async with opened(tmp_path, "relay", LIMITS) as relay, opened(tmp_path, "a") as a:
                await a.dial((await relay.addresses())[0], timeout_s=PATIENCE_S)
                granted = await a.reserve(relay.peer_id, timeout_s=PATIENCE_S)
                assert (granted.data_bytes, granted.time_s) == (LIMITS.data_bytes, LIMITS.time_s)

    asyncio.run(main())
