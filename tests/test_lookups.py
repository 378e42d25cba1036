"""The directory is waited for as long as questions to it were seen to take: longer where it is slow, and no longer than
that where it is dead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from collab.answers import ENOUGH, FACTOR, SLOT_S, SLOTS
from collab.errors import TimedOut
from collab.net.lookups import CALL_LONGEST_S, CALL_SHORTEST_S, FIRST_S, LONGEST_S, SHORTEST_S, Lookups
from collab.swarm.lease import TURN_S
from collab.swarm.progress import RECORD_LIFE_S
from tests.fakes import run


async def ask(lookups: Lookups, takes_s: float) -> float:
    """A question whose answer takes so long; how long it was waited for."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with suppress(TimedOut), lookups.asking() as limit_s:
        await asyncio.sleep(min(takes_s, limit_s))
        if takes_s > limit_s:
            raise TimedOut("no answer")
    return loop.time() - began_s


def with_lookups(test: Callable[[Lookups], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Lookups())

    run(main())


def test_before_enough_is_known_the_first_value_holds() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH - 1):
            await ask(lookups, 0.05)
            assert lookups.limit_s == pytest.approx(FIRST_S)

    with_lookups(look)


@pytest.mark.parametrize(("takes_s", "limit_s"), [(0.05, SHORTEST_S), (1.5, FACTOR * 1.5), (2.5, LONGEST_S)])
def test_a_dead_directory_is_waited_for_as_long_as_it_was_slow(takes_s: float, limit_s: float) -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, takes_s)
        assert await ask(lookups, 1e9) == pytest.approx(limit_s)

    with_lookups(look)


def test_a_directory_that_has_become_slow_is_waited_for_the_next_time() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, 0.05)
        assert await ask(lookups, 3.0) == pytest.approx(SHORTEST_S), "it is not known to be slow yet"
        assert await ask(lookups, 3.0) == pytest.approx(3.0)
        assert lookups.limit_s == pytest.approx(LONGEST_S)

    with_lookups(look)


def test_what_is_asked_at_once_of_a_directory_that_is_dead_counts_once() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, 0.05)
        await asyncio.gather(*(ask(lookups, 1e9) for _ in range(8)))
        assert lookups.limit_s == pytest.approx(2 * SHORTEST_S)

    with_lookups(look)


def test_however_long_it_is_dead_no_limit_grows_beyond_the_longest_and_one_answer_ends_that() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, 0.05)
        for _ in range(2000):
            await ask(lookups, 1e9)
        assert lookups.limit_s == pytest.approx(LONGEST_S)
        await ask(lookups, 0.05)
        assert lookups.limit_s == pytest.approx(SHORTEST_S)

    with_lookups(look)


def test_a_queue_is_forgotten_when_answers_have_been_quick_for_a_while() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, 1.5)
        for _ in range(SLOTS + 1):
            await ask(lookups, 0.05)
            await asyncio.sleep(SLOT_S)
        assert lookups.limit_s == pytest.approx(SHORTEST_S)

    with_lookups(look)


def test_a_question_that_we_slept_over_measures_nothing() -> None:
    async def look(lookups: Lookups) -> None:
        for _ in range(ENOUGH):
            await ask(lookups, 0.05)
        with lookups.asking():
            await asyncio.sleep(60.0)  # frozen, and the answer was there when we woke up
        assert lookups.limit_s == pytest.approx(SHORTEST_S)

    with_lookups(look)


def test_the_longest_limits_fit_what_else_goes_by_the_directory() -> None:
    assert 2 * LONGEST_S + SHORTEST_S <= RECORD_LIFE_S
    assert LONGEST_S <= TURN_S
    assert (2 * CALL_SHORTEST_S, 2 * CALL_LONGEST_S) == (SHORTEST_S, LONGEST_S)
