"""Who goes first, what is accounted, and what the owner of the machine allows."""

import asyncio

import pytest

from collab.averaging.uplink import BURST_S, CROWDED_S, FIRST_WINDOW_BYTES, SMALLEST_PARTS, Path, Uplink
from collab.types import PeerId
from tests.averaging.link_lab import MBIT, PART_BYTES, Lab, after
from tests.fakes import run

TINY_BYTES = 1000


def make_uplink() -> Uplink:
    return Uplink(asyncio.get_running_loop().time)


async def wait_in_line(uplink: Uplink, path: Path, order: float, num_bytes: int, log: list[float]) -> None:
    await uplink.admit(path, order, num_bytes)
    log.append(order)


async def turns() -> None:
    """Let everybody run who can."""
    await asyncio.sleep(1e-9)


# -- the owner's limit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_receivers", [1, 7])
@pytest.mark.parametrize("mbit_per_s", [1, 5, 50])
def test_the_owner_s_limit_is_kept_and_used(mbit_per_s: int, num_receivers: int) -> None:
    lab = Lab(up_bytes_per_s=100 * MBIT, num_receivers=num_receivers, max_bytes_per_s=mbit_per_s * MBIT)
    after(lab, 10.0)
    sent_bytes = PART_BYTES * sum(1 for part in lab.line.served if part.at_s < 10.0)
    assert sent_bytes / 10.0 == pytest.approx(mbit_per_s * MBIT, rel=0.05)
    rate = lab.uplink.rate()
    assert rate is not None
    assert 0.99 * mbit_per_s * MBIT <= rate.bytes_per_s <= mbit_per_s * MBIT


def test_a_pause_earns_no_burst_beyond_the_owner_s_limit() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        uplink = Uplink(loop.time, max_bytes_per_s=1e5)
        path = uplink.path(PeerId("a"))
        await asyncio.sleep(100.0)
        for index in range(21):
            await uplink.admit(path, index, 10_000)
            uplink.acknowledge(path, 10_000, 0.0, 0.0)
        return loop.time() - 100.0

    assert run(main()) == pytest.approx(2.0 - BURST_S)


def test_an_owner_s_limit_above_the_link_is_not_taken_for_its_rate() -> None:
    lab = after(Lab(up_bytes_per_s=10 * MBIT, num_receivers=1, max_bytes_per_s=1000 * MBIT), 10.0)
    rate = lab.uplink.rate()
    assert rate is not None
    assert rate.is_limit
    assert rate.bytes_per_s == pytest.approx(10 * MBIT, rel=0.01)


# -- whose turn it is --------------------------------------------------------------------------------------------------


def test_parts_leave_in_their_order_whoever_asked_first() -> None:
    async def main() -> list[float]:
        uplink, log = make_uplink(), list[float]()
        path = uplink.path(PeerId("a"))
        await uplink.admit(path, 0.0, FIRST_WINDOW_BYTES)
        orders = [5.0, 1.0, 4.0, 2.0, 3.0]
        async with asyncio.TaskGroup() as tasks:
            for order in orders:
                tasks.create_task(wait_in_line(uplink, path, order, TINY_BYTES, log))
            await turns()
            assert log == []
            for _ in orders:
                uplink.give_up(path, TINY_BYTES)
                await turns()
        return log

    assert run(main()) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_part_that_comes_while_others_wait_does_not_pass_them() -> None:
    async def main() -> list[float]:
        uplink, log = make_uplink(), list[float]()
        path = uplink.path(PeerId("a"))
        await uplink.admit(path, 0.0, FIRST_WINDOW_BYTES)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_in_line(uplink, path, 1.0, PART_BYTES, log))
            await turns()
            uplink.give_up(path, PART_BYTES)
            tasks.create_task(wait_in_line(uplink, path, 2.0, TINY_BYTES, log))
            await turns()
            uplink.give_up(path, TINY_BYTES)
        return log

    assert run(main()) == [1.0, 2.0]


async def crowd(uplink: Uplink, crowded: Path, free: Path) -> None:
    """Both paths deliver for a while; then a queue stands at the end of one of them. A part is under way on each."""
    for path in (crowded, free):
        await uplink.admit(path, 0.0, PART_BYTES)
    for queue_s in (0.0, 0.0, 2 * CROWDED_S):
        for path in (crowded, free):
            await uplink.admit(path, 0.0, PART_BYTES)
        await asyncio.sleep(0.3)
        uplink.acknowledge(crowded, PART_BYTES, 0.1 + queue_s, 0.2 + queue_s)
        uplink.acknowledge(free, PART_BYTES, 0.1, 0.2)
    assert crowded.delay.queue_s == pytest.approx(2 * CROWDED_S)


def test_a_crowded_path_waits_for_its_acknowledgements_and_does_not_hold_up_the_others() -> None:
    async def main() -> list[float]:
        uplink, log = make_uplink(), list[float]()
        crowded, free = uplink.path(PeerId("crowded")), uplink.path(PeerId("free"))
        await crowd(uplink, crowded, free)
        rate = crowded.delivery.bytes_per_s
        assert rate is not None
        enough = int(rate * (crowded.trip_s + CROWDED_S)) - PART_BYTES
        await uplink.admit(crowded, 0.0, enough)
        waiting = asyncio.create_task(wait_in_line(uplink, crowded, 1.0, TINY_BYTES, log))
        await asyncio.sleep(5.0)
        await wait_in_line(uplink, free, 9.0, TINY_BYTES, log)
        uplink.give_up(crowded, enough)
        await waiting
        return log

    assert run(main()) == [9.0, 1.0]


# -- what is accounted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancelled_when", ["waiting", "admitted"])
def test_a_waiter_that_is_cancelled_leaves_nothing_behind(cancelled_when: str) -> None:
    async def main() -> None:
        uplink = make_uplink()
        path = uplink.path(PeerId("a"))
        await uplink.admit(path, 0.0, FIRST_WINDOW_BYTES)
        waiters = [asyncio.create_task(uplink.admit(path, order, PART_BYTES)) for order in (1.0, 2.0)]
        await turns()
        if cancelled_when == "admitted":
            uplink.give_up(path, PART_BYTES)  # admits the first waiter, who learns of it only after the cancel
        waiters[0].cancel()
        await asyncio.gather(waiters[0], return_exceptions=True)
        if cancelled_when == "waiting":
            assert not waiters[1].done()
            uplink.give_up(path, PART_BYTES)
        await waiters[1]
        assert path.under_way_bytes == FIRST_WINDOW_BYTES
        uplink.give_up(path, FIRST_WINDOW_BYTES)
        assert path.under_way_bytes == 0
        async with asyncio.timeout(1.0):  # the whole window is free again
            for number in range(FIRST_WINDOW_BYTES // PART_BYTES):
                await uplink.admit(uplink.path(PeerId(f"b{number}")), 0.0, PART_BYTES)

    run(main())


def test_two_parts_are_on_their_way_whatever_the_delays_are() -> None:
    async def main() -> int:
        uplink = make_uplink()
        paths = [uplink.path(PeerId(name)) for name in "ab"]
        for delay_s in (0.0, *[5.0] * 20):
            for path in paths:
                await uplink.admit(path, 0.0, PART_BYTES)
            await asyncio.sleep(0.2)
            for path in paths:
                uplink.acknowledge(path, PART_BYTES, delay_s, max(delay_s, 0.2))
        async with asyncio.timeout(10.0):
            for path in paths:
                await uplink.admit(path, 0.0, PART_BYTES)
        return sum(path.under_way_bytes for path in paths)

    assert run(main()) == SMALLEST_PARTS * PART_BYTES


def test_an_acknowledgement_without_bytes_shows_the_delay_of_an_empty_path_and_frees_nothing() -> None:
    async def main() -> None:
        uplink = make_uplink()
        path = uplink.path(PeerId("a"))
        await uplink.admit(path, 0.0, PART_BYTES)
        uplink.acknowledge(path, 0, 7.0, 0.05)
        assert (path.under_way_bytes, path.trip_s) == (PART_BYTES, 0.05)
        uplink.acknowledge(path, PART_BYTES, 7.5, 0.55)
        assert path.delay.queue_s == pytest.approx(0.5)
        assert (path.under_way_bytes, path.trip_s) == (0, 0.05)
        assert uplink.rate() is None

    run(main())


# -- probes ------------------------------------------------------------------------------------------------------------


async def learn_a_slow_rate(uplink: Uplink, path: Path) -> None:
    """With a part under way all the time."""
    await uplink.admit(path, 0.0, PART_BYTES)
    for _ in range(4):
        await uplink.admit(path, 0.0, PART_BYTES)
        await asyncio.sleep(0.3)
        uplink.acknowledge(path, PART_BYTES, 0.1, 0.3)
    assert path.delivery.bytes_per_s is not None


def test_a_probe_leaves_at_no_pace_and_a_round_s_parts_leave_at_theirs() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        uplink = make_uplink()
        path = uplink.path(PeerId("a"))
        await learn_a_slow_rate(uplink, path)
        began_s = loop.time()
        for _ in range(2):
            await uplink.admit(path, 2.0, TINY_BYTES, is_probe=True)
        probed_s, began_s = loop.time() - began_s, loop.time()
        uplink.give_up(path, 2 * TINY_BYTES + PART_BYTES)
        for _ in range(2):
            await uplink.admit(path, 0.0, PART_BYTES)
        return probed_s, loop.time() - began_s

    probed_s, paced_s = run(main())
    assert probed_s == 0.0
    assert paced_s > 0.05


def test_a_probe_teaches_the_uplink_nothing_of_its_rate() -> None:
    async def main(*, is_probe: bool) -> Uplink:
        uplink = make_uplink()
        path = uplink.path(PeerId("a"))
        await uplink.admit(path, 2.0, PART_BYTES, is_probe=is_probe)
        for _ in range(40):  # never idle, for idle links are not measured anyway
            await uplink.admit(path, 2.0, PART_BYTES, is_probe=is_probe)
            await asyncio.sleep(0.1)
            uplink.acknowledge(path, PART_BYTES, 0.3, 0.3, is_probe=is_probe)
        assert (path.delivery.bytes_per_s is None) == is_probe
        uplink.give_up(path, PART_BYTES)
        return uplink

    assert run(main(is_probe=False)).rate() is not None
    assert run(main(is_probe=True)).rate() is None
