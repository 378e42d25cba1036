"""The real worker: one daemon thread, so that a peer that must leave never waits for a long microbatch."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WORKER = "collab-compute"
"""Name of the threads."""


class ThreadCompute:
    """Implements ``Compute``. The thread starts with the first work and ends with the process or ``close``."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=WORKER, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if isinstance(error, StopIteration):  # a future refuses it, and its caller would wait for ever
                done.set_exception(RuntimeError(f"the work raised {error!r}"))
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]  # a T whenever there is no error

        def call() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the work
                _in_loop(loop, lambda error=error: settle(None, error))  # type: ignore[misc]
            else:
                _in_loop(loop, lambda: settle(result, None))

        self._work.put(call)
        return await done

    async def beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def apart(self, work: Callable[[], T]) -> T:
        worker = ThreadCompute()
        try:
            return await worker.run(work)
        finally:
            worker.close()

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._work.put(None)

    def _loop(self) -> None:
        while (call := self._work.get()) is not None:
            call()


def workers_end(limit_s: float) -> bool:
    """Wait for closed workers to end what they are doing; whether all have, within ``limit_s``.

    A thread that is in the middle of torch's code when the interpreter ends takes the process down with SIGABRT.
    """
    ends_s = time.monotonic() + limit_s
    workers = [thread for thread in threading.enumerate() if thread.name == WORKER]
    for worker in workers:
        worker.join(max(ends_s - time.monotonic(), 0.0))
    return not any(worker.is_alive() for worker in workers)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
