"""How far what takes long is, and when the next step is due: told to whoever watches this machine."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from collab.metrics.guest_records import Progress
from collab.metrics.records import Event
from collab.ports import Clock
from peers.event_words import eta_words

if TYPE_CHECKING:
    from collab.training.participant import Participant

LEAST_S = 1.0
"""Between two words about the same thing."""


class ProgressTeller:
    """Says so about once a second, in the event loop, whichever thread has got further."""

    def __init__(self, observe: Callable[[Event], None], clock: Clock) -> None:
        self._observe, self._clock = observe, clock
        self._loop = asyncio.get_running_loop()
        self._told: dict[str, float] = {}
        self._over: set[str] = set()
        """Of whose end we have told; it may begin anew."""

    def tell(self, what: str, done_bytes: int, whole_bytes: int) -> None:
        """``what`` is so far on; any thread may say so.

        Args:
            whole_bytes: 0: nobody knows. When as much is done it is over.
        """
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._say, what, done_bytes, whole_bytes)

    def _say(self, what: str, done_bytes: int, whole_bytes: int) -> None:
        now_s, is_over = self._clock.monotonic(), done_bytes == whole_bytes
        if what not in self._told:
            self._told[what] = now_s
            return  # most of it takes no time
        is_told = what in self._over if is_over else now_s - self._told[what] < LEAST_S
        if is_told:
            return
        self._over = self._over | {what} if is_over else self._over - {what}
        self._told[what] = now_s
        self._observe(Progress(at_s=self._clock.now(), what=what, done_bytes=done_bytes, whole_bytes=whole_bytes))


def eta_of(participant: "Participant") -> str:
    """When the next step is due, and the run's end, in words."""
    mandate, epoch = participant.statutes.mandate, participant.replica.epoch
    view, now = participant.membership.view, participant.ports.clock.now()
    next_s, step_s = view.step_ahead(mandate.target_batch_size(epoch), now)
    return eta_words(next_s, step_s, None if mandate.until_epoch is None else max(mandate.until_epoch - epoch, 0))
