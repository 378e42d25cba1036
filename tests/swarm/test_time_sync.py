"""A machine whose clock is wrong finds out by how much."""

import asyncio
import math

import pytest

from collab.clock import SystemClock
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.time_sync import PROTOCOL, measure_offset, serve_time
from collab.types import PeerId
from tests.fakes import NOW, FakeClock, FakeNetwork, run


async def teller(
    network: FakeNetwork, name: str, *, error_s: float = 0.0, there_s: float = 0.0, back_s: float = 0.0
) -> PeerId:
    """A peer that tells the time over a link with these delays."""
    clock = FakeClock(NOW + error_s)

    async def answer(stream: Stream) -> None:
        while True:
            await stream.receive(timeout_s=10)
            await asyncio.sleep(there_s)
            now = clock.now()
            await asyncio.sleep(back_s)
            await stream.send(Message("time", {"now": now}), timeout_s=10)

    await network.join(name).serve(PROTOCOL, answer)
    return PeerId(name)


@pytest.mark.parametrize("error_s", [-300.0, 300.0, -0.5, 0.0, 86_400.0])
@pytest.mark.parametrize(("there_s", "back_s"), [(0.05, 0.05), (0.3, 0.0), (0.0, 0.3)])
def test_a_wrong_clock_is_measured_to_within_half_the_round_trip(error_s: float, there_s: float, back_s: float) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            peer = await teller(network, "a", there_s=there_s, back_s=back_s)
            ours = FakeClock(NOW + error_s)
            offset_s = await measure_offset(network.join("me"), ours, [peer], timeout_s=5)
            assert offset_s is not None
            assert abs(offset_s + error_s) <= (there_s + back_s) / 2 + 1e-6
            ours.correct(offset_s)
            assert abs(ours.now() - FakeClock().now()) <= (there_s + back_s) / 2 + 1e-6

    run(main())


def test_the_real_clock_and_the_real_answer_agree() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            there = network.join("a")
            await serve_time(there, SystemClock())
            wrong = SystemClock(error_s=-300.0)
            offset_s = await measure_offset(network.join("me"), wrong, [there.peer_id], timeout_s=5)
            assert offset_s is not None
            wrong.correct(offset_s)
            assert abs(wrong.now() - SystemClock().now()) < 1.0

    run(main())


def test_the_answer_with_the_shortest_round_trip_is_believed() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            delays = iter([2.0, 0.01, 1.0])

            async def answer(stream: Stream) -> None:
                for delay_s in delays:
                    await stream.receive(timeout_s=10)
                    await asyncio.sleep(delay_s)
                    await stream.send(Message("time", {"now": FakeClock().now()}), timeout_s=10)

            await network.join("a").serve(PROTOCOL, answer)
            offset_s = await measure_offset(network.join("me"), FakeClock(NOW - 300), [PeerId("a")], timeout_s=5)
            assert offset_s == pytest.approx(300, abs=0.006)

    run(main())


def test_one_peer_with_a_wrong_clock_among_three_does_not_matter() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            peers = [await teller(network, "a", error_s=9999), await teller(network, "b"), await teller(network, "c")]
            for order in (peers, peers[::-1]):
                offset_s = await measure_offset(network.join("me"), FakeClock(), order, timeout_s=5)
                assert offset_s == pytest.approx(0, abs=1e-6)

    run(main())


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, -5.0, 0.0, 1e300, "noon", None, True])
def test_a_time_that_is_no_date_is_no_answer(now: object) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def answer(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("time", {"now": now}), timeout_s=1)

            await network.join("liar").serve(PROTOCOL, answer)
            peers = [PeerId("liar"), PeerId("gone")]
            me = network.join("me")
            assert await measure_offset(me, FakeClock(), peers, timeout_s=1) is None
            honest = await teller(network, "honest", error_s=7)
            offset_s = await measure_offset(me, FakeClock(), [*peers, honest], timeout_s=1)
            assert offset_s == pytest.approx(7, abs=1e-6)

    run(main())
