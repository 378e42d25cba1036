"""The worker thread: order, errors, and callers that give up."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from collab.compute import ThreadCompute


def with_compute(main: Callable[[ThreadCompute], Awaitable[None]]) -> None:
    """Run ``main`` on a real loop; a worker that hangs fails the test instead of stopping it."""

    async def bounded() -> None:
        compute = ThreadCompute()
        try:
            async with asyncio.timeout(60):
                await main(compute)
        finally:
            compute.close()

    asyncio.run(bounded())


def test_work_runs_in_order_one_at_a_time_on_one_other_thread() -> None:
    seen: list[int] = []
    threads: set[int] = set()
    running = 0

    def work(number: int) -> int:
        nonlocal running
        running += 1
        assert running == 1
        seen.append(number)
        threads.add(threading.get_ident())
        running -= 1
        return number * number

    async def main(compute: ThreadCompute) -> None:
        squares = await asyncio.gather(*(compute.run(lambda n=n: work(n)) for n in range(20)))  # type: ignore[misc]
        assert squares == [n * n for n in range(20)]

    with_compute(main)
    assert seen == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k"), SystemExit(3), MemoryError()])
def test_what_the_work_raises_reaches_its_caller_and_the_next_work_runs(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def main(compute: ThreadCompute) -> None:
        with pytest.raises(type(error)) as caught:
            await compute.run(fail)
        assert caught.value is error
        assert await compute.run(lambda: 1) == 1

    with_compute(main)


def test_an_iterator_that_ends_inside_the_work_is_an_error_and_no_hang() -> None:
    async def main(compute: ThreadCompute) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await compute.run(lambda: next(iter(())))
        assert await compute.run(lambda: 1) == 1

    with_compute(main)


def test_a_caller_that_gives_up_leaves_its_work_running_and_disturbs_nobody() -> None:
    entered, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        entered.set()
        go_on.wait(60)
        done.append("slow")

    async def main(compute: ThreadCompute) -> None:
        first = asyncio.create_task(compute.run(slow))
        await asyncio.to_thread(entered.wait, 60)
        second = asyncio.create_task(compute.run(lambda: done.append("second")))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert done == []
        go_on.set()
        await second
        assert done == ["slow", "second"]

    with_compute(main)


def test_the_loop_goes_on_while_the_worker_is_busy() -> None:
    go_on = threading.Event()

    async def main(compute: ThreadCompute) -> None:
        busy = asyncio.create_task(compute.run(lambda: go_on.wait(60)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not busy.done()
        go_on.set()
        assert await busy

    with_compute(main)


def test_a_loop_that_ended_before_its_work_does_not_stop_the_worker() -> None:
    compute, entered, go_on = ThreadCompute(), threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        go_on.wait(60)

    async def give_up() -> None:
        task = asyncio.create_task(compute.run(slow))
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()

    asyncio.run(give_up())
    go_on.set()
    assert asyncio.run(asyncio.wait_for(compute.run(lambda: 7), 60)) == 7
    compute.close()


def test_closing_ends_the_thread_after_the_work_that_was_given() -> None:
    threads: list[threading.Thread] = []

    def remember_thread() -> int:
        threads.append(threading.current_thread())
        return 3

    async def main() -> list[int]:
        compute = ThreadCompute()
        tasks = [asyncio.create_task(compute.run(lambda n=n: n)) for n in range(3)]  # type: ignore[misc]
        tasks.append(asyncio.create_task(compute.run(remember_thread)))
        await asyncio.sleep(0)
        compute.close()
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(main()) == [0, 1, 2, 3]
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_the_thread_never_keeps_the_process_alive() -> None:
    async def main(compute: ThreadCompute) -> None:
        assert await compute.run(lambda: threading.current_thread().daemon)

    with_compute(main)
