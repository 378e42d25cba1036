"""The owner's limits on everything that a peer sends and takes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from collab.errors import TimedOut
from collab.net.base import Stream
from collab.net.limits import HEAD_BYTES, SMALL_BYTES, Allowance, LimitedTransport, within_limits
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.ports import NO_LIMITS, LinkLimits
from collab.types import PeerId
from tests.fakes import FakeNetwork, make_ports, run

RATE = 1e6
LARGE = Message("part", payload=bytes(100_000 - HEAD_BYTES))
"""A tenth of a second."""
SMALL = Message("word", payload=bytes(SMALL_BYTES))


def now() -> float:
    return asyncio.get_running_loop().time()


async def limited_pair(
    network: FakeNetwork, limits: LinkLimits, serve: Callable[[Stream], Awaitable[None]]
) -> LimitedTransport:
    """The transport of a limited peer; an unlimited one serves ``talk``."""
    await network.join("other").serve("talk", serve)
    return LimitedTransport(network.join("us"), now, limits)


async def swallow(stream: Stream) -> None:
    while True:
        await stream.receive(timeout_s=60)


def test_large_messages_of_all_streams_together_leave_at_the_allowed_rate() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = await limited_pair(network, LinkLimits(up_bytes_per_s=RATE), swallow)
            streams = [await us.open(PeerId("other"), "talk", timeout_s=1) for _ in range(4)]
            await asyncio.gather(*(stream.send(LARGE, timeout_s=0.01) for stream in streams for _ in range(10)))
            assert now() == pytest.approx(3.9)  # the first leaves at once

    run(main())


def test_a_small_message_never_waits_but_counts() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = await limited_pair(network, LinkLimits(up_bytes_per_s=RATE), swallow)
            stream = await us.open(PeerId("other"), "talk", timeout_s=1)
            await stream.send(LARGE, timeout_s=1)
            for _ in range(25):
                await stream.send(SMALL, timeout_s=1)
            assert now() == 0.0
            await stream.send(LARGE, timeout_s=1)
            assert now() == pytest.approx(0.1 + 25 * (SMALL_BYTES + HEAD_BYTES) / RATE)

    run(main())


def test_what_comes_in_is_read_at_the_allowed_rate_and_words_at_once() -> None:
    async def pour(stream: Stream) -> None:
        for _ in range(20):
            await stream.send(LARGE, timeout_s=1)

    async def whisper(stream: Stream) -> None:
        await stream.send(SMALL, timeout_s=1)
        await stream.send(SMALL, timeout_s=1)

    async def main() -> None:
        async with FakeNetwork() as network:
            us = await limited_pair(network, LinkLimits(down_bytes_per_s=RATE), pour)
            await network.join("whisperer").serve("talk", whisper)
            stream = await us.open(PeerId("other"), "talk", timeout_s=1)
            await stream.receive(timeout_s=0.01)
            words = await us.open(PeerId("whisperer"), "talk", timeout_s=1)
            await words.receive(timeout_s=1)
            await words.receive(timeout_s=1)
            assert now() == 0.0
            for _ in range(19):
                await stream.receive(timeout_s=0.01)  # what the limit costs is not the other side's silence
            assert now() == pytest.approx(1.9, rel=0.05)

    run(main())


def test_a_limited_server_keeps_to_its_limits_too() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            server = LimitedTransport(network.join("server"), now, LinkLimits(up_bytes_per_s=RATE))

            async def serve(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await send_bytes(stream, bytes(1_000_000), timeout_s=1)

            await server.serve("get", serve)
            stream = await network.join("us").open(PeerId("server"), "get", timeout_s=1)
            await stream.send(SMALL, timeout_s=1)
            await receive_bytes(stream, 1_000_000, timeout_s=1)
            assert now() == pytest.approx(1.0, rel=0.07)

    run(main())


def test_silence_still_times_out() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = await limited_pair(network, LinkLimits(down_bytes_per_s=RATE), swallow)
            stream = await us.open(PeerId("other"), "talk", timeout_s=1)
            with pytest.raises(TimedOut):
                await stream.receive(timeout_s=2)
            assert now() == 2.0

    run(main())


def test_streams_to_ourselves_cost_nothing() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = LimitedTransport(network.join("us"), now, LinkLimits(up_bytes_per_s=1.0, down_bytes_per_s=1.0))
            await us.serve("talk", swallow)
            stream = await us.open(PeerId("us"), "talk", timeout_s=1)
            for _ in range(5):
                await stream.send(LARGE, timeout_s=1)
            assert now() == 0.0

    run(main())


def test_without_limits_nothing_is_wrapped_and_with_them_the_ports_say_so() -> None:
    ports = make_ports(FakeNetwork().join("us"))
    assert within_limits(ports, NO_LIMITS) is ports
    limits = LinkLimits(up_bytes_per_s=RATE)
    limited = within_limits(ports, limits)
    assert limited.limits == limits
    assert limited.transport.peer_id == "us"


def test_an_allowance_that_was_not_used_is_not_saved() -> None:
    async def main() -> None:
        allowance = Allowance(now, RATE)
        await asyncio.sleep(60)
        assert allowance.spend(1_000_000) == 0.0
        assert allowance.spend(1) == pytest.approx(1.0)
        await allowance.recover()
        assert now() == pytest.approx(61.0, abs=0.01)

    run(main())
