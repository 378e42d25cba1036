"""What goes on beside the training loop."""

import asyncio
import math

import pytest

from collab.training.beside import Beside, Patience
from tests.fakes import FakeClock, run

TOOK_S = 2.0


async def work() -> str:
    await asyncio.sleep(TOOK_S)
    return "done"


def beside(test) -> None:
    async def main() -> None:
        thing = Beside(work, FakeClock())
        task = asyncio.create_task(thing.run())
        try:
            await test(thing, asyncio.get_running_loop().time)
        finally:
            task.cancel()

    run(main())


def test_a_result_that_comes_in_time_is_waited_for_and_taken_once() -> None:
    async def test(thing: Beside[str], now) -> None:
        thing.begin()
        assert thing.is_under_way
        assert await thing.result(TOOK_S + 1) == "done"
        assert now() == TOOK_S
        assert not thing.is_under_way
        assert await thing.result() is None

    beside(test)


def test_one_that_is_late_goes_on_and_is_looked_after_without_waiting() -> None:
    async def test(thing: Beside[str], now) -> None:
        thing.begin()
        assert await thing.result(0.5) is None
        assert (now(), thing.is_under_way) == (0.5, True)
        assert await thing.result(0.5) is None
        assert now() == 0.5, "the patience counts from the beginning"
        await asyncio.sleep(TOOK_S)
        assert await thing.result(0.5) == "done"

    beside(test)


def test_one_after_the_other() -> None:
    async def test(thing: Beside[str], now) -> None:
        for number in (1, 2, 3):
            thing.begin()
            assert await thing.result() == "done"
            assert now() == number * TOOK_S

    beside(test)


def test_whoever_waits_for_its_end_hears_of_it_and_leaves_the_result_to_others() -> None:
    async def test(thing: Beside[str], now) -> None:
        for number in (1, 2):
            thing.begin()
            await thing.over()
            await thing.over()  # as often as one likes, until it is taken
            assert now() == number * TOOK_S
            assert await thing.result() == "done"

    beside(test)


def test_where_nothing_is_under_way_there_is_no_end_to_wait_for() -> None:
    async def test(thing: Beside[str], now) -> None:
        thing.begin()
        assert await thing.result() == "done"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thing.over(), 10 * TOOK_S)

    beside(test)


def test_the_first_round_is_waited_for_and_later_ones_as_long_as_undisturbed_ones_take() -> None:
    patience = Patience()
    assert patience.limit_s() == math.inf
    for seconds in (2.0, 2.2, 9.0, 30.0, 12.0):
        patience.add(seconds)
    assert patience.limit_s() == 1.5 * 2.2
    for _ in range(100):
        patience.add(0.001)
    assert patience.limit_s() == 0.3


def test_whoever_begins_what_is_under_way_begins_nothing() -> None:
    """The swarm calls while the strategy looks whether it is time: else a second round would follow, with the first
    one's result taken for its own.
    """

    async def test(thing: Beside[str], now) -> None:
        thing.begin()
        await asyncio.sleep(TOOK_S / 2)
        thing.begin()
        assert await thing.result() == "done"
        await asyncio.sleep(2 * TOOK_S)
        assert not thing.goes_on
        assert await thing.result() is None

    beside(test)


def test_how_long_to_wait_is_asked_again_when_there_are_news() -> None:
    async def test(thing: Beside[str], now) -> None:
        news, patience_s = asyncio.Event(), math.inf

        def less() -> None:
            nonlocal patience_s
            patience_s = 0.0
            news.set()

        thing.begin()
        asyncio.get_running_loop().call_later(0.5, news.set)
        asyncio.get_running_loop().call_later(1.5, less)
        assert await thing.result_or_news(lambda: patience_s, news) is None
        assert (now(), thing.goes_on) == (1.5, True)
        patience_s = math.inf
        assert await thing.result_or_news(lambda: patience_s, news) == "done"
        assert now() == TOOK_S

    beside(test)
