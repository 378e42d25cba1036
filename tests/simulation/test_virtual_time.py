import asyncio
import time

import pytest

from collab.ports import Ports
from collab.simulation.virtual_time import (
    EPOCH_S,
    OWNER,
    Deadlock,
    Livelock,
    VirtualClock,
    VirtualCompute,
    VirtualLoop,
    run,
)
from collab.simulation.world import World


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 86400)
        return now_s()

    started_s = time.perf_counter()
    assert run(main) == 365 * 86400
    assert time.perf_counter() - started_s < 60


def test_timers_fire_in_order_of_time_and_equal_ones_in_order_of_making() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for number, delay_s in enumerate((2.0, 1.0, 1.0, 0.5, 1.0)):
            loop.call_later(delay_s, order.append, number)
        await asyncio.sleep(3)
        return order

    assert run(main()) == [3, 1, 2, 4, 0]


def test_tasks_of_a_set_are_in_one_order_wherever_they_are_in_the_memory() -> None:
    kept: list[object] = []

    async def main() -> list[str]:
        kept.append(tasks := {asyncio.create_task(asyncio.sleep(1), name=str(number)) for number in range(100)})
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    first = run(main)
    kept.append([bytearray(1000) for _ in range(1000)])
    assert run(main) == first
    assert sorted(first, key=int) == [str(number) for number in range(100)]


def test_what_asyncio_offers_for_waiting_works() -> None:
    async def after(delay_s: float, value: int) -> int:
        await asyncio.sleep(delay_s)
        return value

    async def main() -> tuple[list[int], float]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(50)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(after(50, 0), 3)
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(after(n, n)) for n in (3, 1, 2)]
            group.create_task(queue.put(7))
        done, pending = await asyncio.wait([asyncio.create_task(after(n, n)) for n in (1, 9)], timeout=4)
        assert (len(done), len(pending)) == (1, 1)
        return [task.result() for task in tasks] + [await queue.get()], now_s()

    assert run(main) == ([3, 1, 2, 7], 2 + 3 + 3 + 4)


def test_cancelled_deadlines_do_not_pile_up() -> None:
    async def main() -> int:
        for _ in range(20_000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return len(loop._timers)

    assert run(main) < 3000


def test_waiting_for_what_cannot_come_names_who_waits() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(wait_for_godot(), name="Vladimir"))

    with pytest.raises(Deadlock, match=r"Vladimir in .*wait"):
        run(main)


def test_retrying_without_waiting_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"time stands still at 0\.0 s"):
        run(main)


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.perf_counter)

    with pytest.raises(RuntimeError, match="Compute port"):
        run(main)


def test_an_exception_comes_out_and_the_rest_is_cancelled() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("background")

    async def main() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        assert not task.done()
        raise ValueError("of main")

    with pytest.raises(ValueError, match="of main"):
        run(main)
    assert ended == ["background"]


def test_a_frozen_peers_code_stops_and_goes_on_after_the_thaw() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(loop.time())

        token = OWNER.set(5)
        task = asyncio.create_task(tick())
        OWNER.reset(token)
        await asyncio.sleep(2.5)
        loop.freeze(5)
        await asyncio.sleep(10)
        assert ticks == [1, 2]
        loop.thaw(5)
        await asyncio.sleep(2.1)
        assert loop.tasks_of(5) == [task]
        task.cancel()
        return ticks

    assert run(main) == [1, 2, 12.5, 13.5, 14.5]


def test_clock_can_be_wrong_about_swarm_time_only() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop, error_s=-120)
    loop.call_later(5, loop.stop)
    loop.run_forever()
    assert (clock.now(), clock.monotonic()) == (EPOCH_S + 5 - 120, 5)
    clock.error_s = 7
    assert clock.now() == EPOCH_S + 5 + 7
    loop.shut_down()


def test_work_takes_its_samples_time_one_piece_after_the_other() -> None:
    async def main(ports: Ports) -> list[tuple[str, float]]:
        done: list[tuple[str, float]] = []

        async def work(name: str, samples: float) -> None:
            assert await ports.compute.run(lambda: name, samples=samples) == name
            done.append((name, ports.clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            for name, samples in (("first", 20.0), ("second", 5.0), ("free", 0.0)):
                group.create_task(work(name, samples))
        return done

    world = World(seed=0)
    peer = world.add_peer(main, samples_per_s=10)
    world.run()
    assert peer.result == [("first", 2.0), ("second", 2.5), ("free", 2.5)]


def test_work_of_a_caller_who_gave_up_still_keeps_the_worker_busy() -> None:
    async def main(ports: Ports) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ports.compute.run(lambda: None, samples=30)
        await ports.compute.run(lambda: None)
        return ports.clock.monotonic()

    world = World(seed=0)
    peer = world.add_peer(main, samples_per_s=10)
    world.run()
    assert peer.result == 3


def test_compute_raises_what_the_work_raised_and_goes_on() -> None:
    async def main(ports: Ports) -> int:
        with pytest.raises(ZeroDivisionError):
            await ports.compute.run(lambda: 1 // 0, samples=1)
        return await ports.compute.run(lambda: 3, samples=1)

    world = World(seed=0)
    peer = world.add_peer(main)
    world.run()
    assert peer.result == 3


def test_compute_needs_a_speed() -> None:
    loop = VirtualLoop()
    with pytest.raises(ValueError, match="samples_per_s"):
        VirtualCompute(loop, samples_per_s=0)
    loop.shut_down()
