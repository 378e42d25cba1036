"""Tasks that end together, and leave nothing that only a garbage collection frees."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from collab.concurrency import Background, end
from collab.errors import BadPart, CollabError, ConfigError, StreamClosed, TooLarge
from tests.fakes import run


class Vector:
    """What takes memory."""


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_freed_after(work: Callable[[Vector], Coroutine[Any, Any, None]], ends: Callable[..., Awaitable[object]]) -> bool:
    """Whether what a task works with is free when ``ends`` has ended it."""

    async def main() -> bool:
        vector = Vector()
        held = weakref.ref(vector)
        task = asyncio.create_task(work(vector))
        del vector
        await asyncio.sleep(1.0)
        await ends(task)
        del task
        await asyncio.sleep(0)  # the loop has still in hand what woke us
        return held() is None

    return run(main())


async def _in_the_background(vector: Vector) -> None:
    async with Background() as tasks:
        tasks.create_task(asyncio.sleep(1e6))
        await asyncio.sleep(1e6)


async def _error_after_the_background(vector: Vector) -> None:
    async with Background() as tasks:
        tasks.create_task(asyncio.sleep(1e6))
    raise StreamClosed("over")


def test_what_a_cancelled_task_with_others_in_the_background_held_is_free_when_it_has_ended() -> None:
    assert is_freed_after(_in_the_background, end)


def test_what_a_task_held_that_failed_after_others_in_the_background_is_free_with_it() -> None:
    assert is_freed_after(_error_after_the_background, end)


def test_a_background_that_is_cancelled_cancels_its_tasks_and_stays_cancelled() -> None:
    async def main() -> None:
        background = list[asyncio.Task[None]]()

        async def body() -> None:
            async with Background() as tasks:
                tasks.create_task(asyncio.sleep(1e6))
                background.extend(tasks._tasks)
                await asyncio.sleep(1e6)

        task = asyncio.create_task(body())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [one.cancelled() for one in background] == [True]

    run(main())


def test_a_task_in_the_background_that_fails_ends_its_owner_with_its_error() -> None:
    async def fail() -> None:
        raise StreamClosed("over")

    async def own() -> None:
        async with Background() as tasks:
            tasks.create_task(fail())
            await asyncio.sleep(1e6)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await own()
        assert [str(error) for error in raised.value.exceptions] == ["over"]

    run(main())


@pytest.mark.parametrize(
    "error", [BadPart("twice", "it came twice"), ConfigError("no", hint="yes"), TooLarge("much"), StreamClosed("over")]
)
def test_an_error_once_more_is_the_same_without_where_it_was(error: CollabError) -> None:
    try:
        raise error
    except CollabError as caught:
        twin = caught.again()
    assert (type(twin), str(twin), twin.args, vars(twin)) == (type(error), str(error), error.args, vars(error))
    assert twin is not error
    assert twin.__traceback__ is None
