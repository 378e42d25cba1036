"""Fetching the swarm's state while the swarm goes on, and sooner when the others wait for us."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from collab.averaging.standing import Awaited
from collab.concurrency import end
from collab.errors import ShapeMismatch, StateError
from collab.ports import Clock
from collab.swarm.last_seen import NEWER_WAIT_S
from collab.training.fresh_epoch import FreshEpoch
from collab.training.replica import Replica

T = TypeVar("T")
MISFITS_S = 60.0
"""After so long of nothing but states of another model ours is the other one; before, who has a fitting state may only
be away, or give none yet (``NEWER_WAIT_S``)."""
VAIN_S = NEWER_WAIT_S + 5.0
"""After so long of attempts nobody withholds the state any more, as a backbone does that has just come back with one
that is older than what it had seen."""
MISFIT_PAUSE_S = 10.0
"""Between two attempts to have another one: each costs a whole state."""


class Pursuit:
    """Of one trainer: what is under way, how far it leads, and whether it is worth going on with."""

    def __init__(self, clock: Clock, replica: Replica, num_donors: Callable[[], int]) -> None:
        self._clock, self._replica, self._num_donors = clock, replica, num_donors
        self._misfits_since_s = self._failing_since_s = math.inf
        self.fresh: FreshEpoch | None = None
        """Knows what a state and a round cost our link; None: nobody does, and both are fetched as they come."""
        self._hurried, self._is_under_way = asyncio.Event(), False
        self._is_whole, self.reached_epoch = False, 0
        """Whether a state is fetched, or rounds are, and to which epoch what is fetched leads so far."""

    def reached(self, epoch: int, *, is_whole: bool) -> None:
        """What is fetched now leads to ``epoch``.

        Args:
            is_whole: it is a state, and not the rounds after ours.
        """
        self.reached_epoch, self._is_whole = epoch, is_whole

    async def run(self, gather: Callable[[bool], Coroutine[Any, Any, T]]) -> T:
        """What ``gather`` brings; begun anew when the others wait for us and it would be too old.

        Args:
            gather: called with whether the others wait for us.
        """
        self._hurried.clear()
        self._misfits_since_s = self._failing_since_s = math.inf
        is_awaited, self._is_under_way = False, True
        while True:
            gathering = asyncio.create_task(gather(is_awaited))
            hurried = asyncio.create_task(self._hurried.wait())
            try:
                await asyncio.wait((gathering, hurried), return_when=asyncio.FIRST_COMPLETED)
                if gathering.done():
                    return gathering.result()
            finally:
                self._is_under_way = not gathering.done()
                await end(gathering, hurried)
            self._hurried.clear()
            is_awaited = True

    def failed(self, error: StateError) -> None:
        """An attempt to have the state has.

        Raises:
            ShapeMismatch: ``error``, where all of a long time have failed so.
        """
        now_s = self._clock.monotonic()
        self._failing_since_s = min(self._failing_since_s, now_s)
        self._misfits_since_s = min(self._misfits_since_s, now_s) if isinstance(error, ShapeMismatch) else math.inf
        if now_s >= self._misfits_since_s + MISFITS_S:
            raise error

    @property
    def is_vain(self) -> bool:
        """Whether attempts have failed for so long that who says to hold the state cannot give it."""
        return self._clock.monotonic() >= self._failing_since_s + VAIN_S

    def hurry(self, awaited: Awaited) -> bool:
        """The others put off a round for us: for so long their uplinks are free. Whether our link is fast enough for
        that; if so, what is under way and too old is given up.
        """
        missed = awaited.epoch - self.reached_epoch
        is_old = self._is_old(missed)
        takes_s = self.fresh.fetch_s(0 if is_old else missed) if self.fresh is not None else 0.0
        if self._is_under_way and takes_s > awaited.patience_s:
            return False
        if is_old:
            self._hurried.set()
        return True

    def _is_old(self, missed: int) -> bool:
        """Whether the present state is here sooner than what leads to it from where we have got."""
        if self._is_whole or self.fresh is None or not self._replica.lineage:
            return missed > 0
        if self._replica.samples:  # what we hold belongs to our history, and rounds go on from there
            return False
        return missed * self.fresh.mean_floats > self.fresh.state_floats / max(self._num_donors(), 1)
