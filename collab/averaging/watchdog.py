"""Above a member's round: a leader that says it is there, while nothing moves, is not followed for ever.

Members and leaders judge each other by silence and by what most others took. That leaves a leader that pulses and never
decides, and whatever nobody has thought of.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from collab.averaging.flow import Links
from collab.averaging.laggards import Progress
from collab.concurrency import end
from collab.errors import TimedOut

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often it looks."""
FACTOR = 10.0
"""Of the time until we had everything: whoever is slower than the others by more has long been left out."""


class Work(Protocol):
    """What a member does in a round; ``Session`` is the real one."""

    @property
    def is_whole(self) -> bool:
        """Whether it holds everything."""
        ...

    def progress(self) -> Progress:
        """How far it is."""
        ...


class Watchdog:
    """Of one round."""

    def __init__(self, work: Work, links: Links, expected_s: float) -> None:
        """
        Args:
            expected_s: by the plan, for the round.
        """
        self._work, self._clock, self._timeouts, self._expected_s = work, links.clock, links.timeouts, expected_s
        self._began_s = self._moved_s = links.clock()
        self._seen = work.progress()
        self._whole_s: float | None = None

    def complaint(self) -> str:
        """Why the round is to be given up, with what was seen; empty: it is not."""
        now_s, seen = self._clock(), self._work.progress()
        if seen != self._seen:
            self._timeouts.moves.ended(now_s - self._moved_s)
            self._seen, self._moved_s = seen, now_s
        limit_s = self._timeouts.stalled_s(self._expected_s)
        if not self._work.is_whole:
            self._whole_s = None
        else:
            self._whole_s = now_s if self._whole_s is None else self._whole_s
            limit_s += FACTOR * (self._whole_s - self._began_s)
        idle_s = now_s - max(self._moved_s, self._whole_s or 0.0)
        if idle_s <= limit_s:
            return ""
        came, held = sum(seen.came.values()), sum(seen.held)
        has = "has everything and hears no verdict" if self._work.is_whole else "does not have everything"
        return f"nothing has moved for {idle_s:.0f} s; this peer {has} ({came} parts came, {held} results are here)"

    async def guard(self, run: Coroutine[Any, Any, T]) -> T:
        """The result of ``run``.

        Raises:
            TimedOut: it was given up; the message says what was seen.
        """
        task = asyncio.create_task(run)
        try:
            while not (await asyncio.wait((task,), timeout=LOOK_S))[0]:
                if complaint := self.complaint():
                    logger.warning("round given up: %s", complaint)
                    raise TimedOut(complaint)
            return task.result()
        finally:
            await end(task)
            del task  # it holds the error that it ended with, whose traceback holds this frame
