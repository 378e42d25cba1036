"""What a trainer waits for without standing still: it goes on beside the training loop, which looks after it now and
then.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from collab.concurrency import run_until_first
from collab.ports import Clock

T = TypeVar("T")


REMEMBERED = 16
"""Rounds; some minutes of a swarm."""
OVERTIME = 1.5
"""Of an undisturbed round: whoever waits no longer has lost half a round when it goes on without the outcome."""
SHORTEST_S = 0.3
"""Of any patience: what timers, threads and a few round trips are late by."""


class Patience:
    """How long to wait for a round before computing on: somewhat longer than one takes that nothing disturbs.

    The first quartile of the last rounds stands for that, since in bad times most of them are disturbed.
    """

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        """A round has committed, so long after it was begun."""
        self._seen.append(seconds)

    def limit_s(self) -> float:
        """Seconds from the beginning; the first round is waited for."""
        if not self._seen:
            return math.inf
        return max(OVERTIME * sorted(self._seen)[len(self._seen) // 4], SHORTEST_S)


class Beside(Generic[T]):
    """One piece of work at a time; its result is acted on between two microbatches."""

    def __init__(self, work: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._work, self._clock = work, clock
        self._wanted, self._over = asyncio.Event(), asyncio.Event()
        self._began_s = 0.0
        self._result: T | None = None
        self.is_under_way = False
        """Whether work was begun whose result nobody has taken."""

    def begin(self) -> None:
        """Begin, unless something is under way: others may have begun while somebody looked whether it is time."""
        if self.is_under_way:
            return
        self.is_under_way, self._began_s = True, self._clock.monotonic()
        self._over.clear()
        self._wanted.set()

    @property
    def goes_on(self) -> bool:
        """Whether there is no result yet of what is under way."""
        return self.is_under_way and not self._over.is_set()

    async def run(self) -> None:
        """Do what is begun, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._result = await self._work()
            finally:
                self._over.set()

    def let_go(self, kind: type) -> None:
        """A result of this kind that nobody has taken was none."""
        if isinstance(self._result, kind):
            self._result, self.is_under_way = None, False

    @property
    def untaken(self) -> T | None:
        """What came of the work, while nobody has taken it."""
        return self._result

    async def over(self) -> None:
        """Returns when there is a result of what is under way; never, if nothing is."""
        await (self._over if self.is_under_way else asyncio.Event()).wait()

    async def result(self, patience_s: float = math.inf, sooner: asyncio.Event | None = None) -> T | None:
        """Of what was begun; None: nothing was, or it goes on.

        Args:
            patience_s: since it was begun; whoever has waited so long looks again after the next microbatch.
            sooner: does not wait any longer when this is set; None: nothing else is waited for.
        """
        if not self.is_under_way:
            return None
        left_s = self._began_s + patience_s - self._clock.monotonic()
        if sooner is not None and left_s <= 0 and not self._over.is_set():
            return None
        try:
            async with asyncio.timeout(left_s if math.isfinite(left_s) else None):
                if sooner is None:
                    await self._over.wait()
                elif not self._over.is_set():
                    await run_until_first(self._over.wait(), sooner.wait())
        except TimeoutError:
            return None
        if not self._over.is_set():
            return None
        result, self._result, self.is_under_way = self._result, None, False
        return result

    async def result_or_news(self, patience_s: Callable[[], float], news: asyncio.Event | None) -> T | None:
        """As ``result``; how long to wait is asked again whenever there are ``news``."""
        while news is not None:
            news.clear()
            result = await self.result(patience_s(), news)
            if result is not None or not news.is_set():
                return result
        return await self.result(patience_s())
