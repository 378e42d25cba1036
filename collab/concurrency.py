"""How a peer's tasks begin and end together."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self


class Background:
    """A task group whose remaining tasks are cancelled at its end; a task that fails ends its owner, too."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run ``coroutine`` until it ends or the owner does."""
        task = self._group.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if isinstance(error, asyncio.CancelledError):  # it goes on by itself; the group would keep what it raises again
            kind = error = trace = None
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            del self._group  # it holds the task that we are in, which may end with an error whose traceback holds us


async def run_until_first(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first one returns, then cancel the others.

    Raises:
        Exception: what one of them raised.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def first_of(error: BaseException) -> BaseException:
    """The error itself, without the groups that task groups wrap around it; of several the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error itself, what it came of, and so on."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs of ``tasks`` and wait for it; they do not keep that they were cancelled.

    A cancelled task holds its error until somebody takes it, and through the traceback all that it was about; with a
    task group in between, which holds the task, only a garbage collection would free any of that.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        with suppress(asyncio.CancelledError):
            if task.cancelled():
                task.result()
