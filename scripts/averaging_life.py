"""A peer's life in a program that is told what to do: an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
LEAVE_LIMIT_S = 3.0

Live = Callable[["Future[str]", asyncio.Event], Coroutine[Any, Any, None]]
"""From p2pd's start to its end: says in the first how others find the peer, and goes when the second is set."""


class Life:
    """Its calls come from another thread, and block."""

    def __init__(self, live: Live) -> None:
        """Returns when the peer is up; what keeps it from that is raised."""
        self._leaving = asyncio.Event()
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        opened: Future[str] = Future()
        self._whole = asyncio.run_coroutine_threadsafe(live(opened, self._leaving), self._loop)
        self.contact = self._first(opened)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the event loop; its result."""
        return self._first(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def leave(self) -> None:
        """Ask the peer to go, and wait for a moment."""
        self._loop.call_soon_threadsafe(self._leaving.set)
        wait([self._whole], timeout=LEAVE_LIMIT_S)

    def _first(self, future: "Future[T]") -> T:
        """Its result; what ended the peer's life is raised here, too."""
        waited: list[Future[Any]] = [future, self._whole]
        wait(waited, return_when=FIRST_COMPLETED)
        if not future.done():
            self._whole.result()
            raise RuntimeError("the peer has left")
        return future.result()
