"""Taking part in a round while a microbatch is computed that would end too late for it."""

import asyncio

from collab.averaging.base import Outcome
from collab.strategies.base import Strategy, Swarm
from collab.training.replica import Replica


class Aside:
    """One round at a time, with what is accumulated; the step is taken when the microbatch is done."""

    def __init__(self, strategy: Strategy, replica: Replica, swarm: Swarm) -> None:
        self._strategy, self._replica, self._swarm = strategy, replica, swarm
        self._wanted, self._over = asyncio.Event(), asyncio.Event()
        self._is_under_way = False
        self._outcome: Outcome | None = None

    @property
    def can_begin(self) -> bool:
        """Whether there is something to bring, and nothing on its way."""
        return not self._is_under_way and self._replica.samples > 0

    def begin(self) -> None:
        """Join the round that a leader calls for."""
        self._is_under_way, self._outcome = True, None
        self._over.clear()
        self._wanted.set()

    async def run(self) -> None:
        """Take part in the rounds that were begun, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._outcome = await self._strategy.contribute(self._replica, self._swarm)
            finally:
                self._over.set()

    async def outcome(self) -> Outcome | None:
        """Of the round that was begun since the last time, once it is over; None: there was none."""
        if self._is_under_way:
            await self._over.wait()
            self._is_under_way = False
        outcome, self._outcome = self._outcome, None
        return outcome
