"""How far what takes long is, and when the next step is due: told to whoever watches this machine."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collab.config import Run, VcAsgd
from collab.data.made_once import hint_of_wait
from collab.metrics.guest_records import Progress, StepAwaited
from collab.metrics.records import Event, Notice
from collab.ports import Clock
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from peers.credible import Credible
from peers.event_words import eta_words, words
from peers.rhythm import Rhythm
from peers.summary import epoch_of

if TYPE_CHECKING:
    from collab.training.participant import Participant

SILENCE_S = 60.0
"""So long nothing was said before it is said how far the next step is."""
LEAST_S = 1.0
"""Between two words about the same thing."""
UNSEEN = Rhythm()
"""Of a swarm of which no step was seen."""


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

    def tell_wait(self, lock: Path) -> None:
        """Another process encodes the text, which has ``lock`` meanwhile; any thread may say so."""
        text = "another peer of yours is encoding this text; this one waits for it"
        notice = Notice(at_s=self._clock.now(), text=text, hint=hint_of_wait(lock))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._observe, notice)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What lies before a run, as one of its peers sees it."""

    epoch: int
    """Steps taken so far."""
    until_epoch: int | None
    next_s: float
    """Until the next step is due, its round included; 0: the batch is there, and it may come at any moment; infinite:
    nobody knows."""
    step_s: float
    """That a step should take, its round included; infinite: nobody knows."""
    has_round: bool = True
    """Whether it is known what a round takes; else ``step_s`` is what computing does."""
    here_s: float = math.inf
    """For how long there have been trainers without a break; infinite: since before the last step."""
    share: float = math.nan
    """Of the batch, that is there; NaN: nobody knows."""
    unit_s: float = 0.0
    """How long a unit of work may take, where each push of one is a step; 0: rounds are."""
    unit_share: float = math.nan
    """Of this machine's unit, that is computed; NaN: there is none."""
    unit_left_s: float = math.inf
    """Until all of it is; infinite: nobody knows."""

    @property
    def words(self) -> str:
        """When the next step is due, and the run's end; empty: nobody knows."""
        left = None if self.until_epoch is None else max(self.until_epoch - self.epoch, 0)
        return eta_words(self.next_s, self.step_s, left)


def ahead_of(
    run: Run, mandate: Mandate, view: SwarmView, epoch: int, now_s: float, rhythm: Rhythm = UNSEEN
) -> Ahead:
    """What lies before a run at ``epoch``.

    Args:
        now_s: swarm time.
        rhythm: of its last steps: speeds say when a batch is there, and nothing of the round that follows.
    """
    batch_s, computing_s, unit_s = math.inf, math.inf, 0.0
    if isinstance(run.strategy, VcAsgd):  # each push is a step, and nobody says when one comes
        unit_s = run.strategy.first_lease_s
    else:
        batch_s, computing_s = view.step_ahead(mandate.target_batch_size(epoch), now_s)
    is_known = math.isfinite(batch_s) and 0 < computing_s < math.inf
    return Ahead(
        epoch=epoch,
        until_epoch=mandate.until_epoch,
        next_s=max(batch_s, rhythm.last_s + rhythm.step_s - now_s),
        step_s=max(computing_s, rhythm.step_s),
        has_round=rhythm.step_s > 0,
        share=1 - batch_s / computing_s if is_known else math.nan,
        unit_s=unit_s,
    )


def ahead_of_trainer(participant: "Participant", rhythm: Rhythm = UNSEEN) -> Ahead | None:
    """The same for a trainer; None: it has no state of the run yet."""
    if not participant.replica.lineage:
        return None
    view, now_s = seen_by_trainer(participant), participant.ports.clock.now()
    run, mandate = participant.bundle.run, participant.statutes.mandate
    return ahead_of(run, mandate, view, participant.replica.epoch, now_s, rhythm)


def seen_by_trainer(participant: "Participant") -> SwarmView:
    """The swarm, as far as a trainer takes it to be true."""
    run, members = participant.bundle.run, participant.membership
    return Credible(run, lambda: members.era, members.known_records, trusts=members.trusts).of(members.view)


def ahead_of_swarm(
    credible: Credible, mandate: Mandate, view: SwarmView, now_s: float, rhythm: Rhythm = UNSEEN
) -> Ahead:
    """The same for who trains nothing itself: from where the swarm is."""
    history, here = credible.history(view), credible.of(view)
    epoch = epoch_of(here, history[0] if history is not None else 0)
    ahead = ahead_of(credible.run, mandate, here, epoch, now_s, rhythm)
    return replace(ahead, here_s=now_s - credible.came_s(view))


class StepTeller:
    """Implements ``Sink``: says how far the next step is whenever nothing else was worth a line for a minute.

    Where nothing can be drawn, a step that takes many minutes would else look as if the program hung.
    """

    def __init__(self, observe: Callable[[Event], None], clock: Clock, ahead: Callable[[], Ahead | None]) -> None:
        """
        Args:
            observe: of all sinks, this one among them.
            ahead: as of now; None: there is nothing to say.
        """
        self._observe, self._clock, self._ahead = observe, clock, ahead
        self._said_s = clock.monotonic()

    def observe(self, event: Event) -> None:
        if words(event):
            self._said_s = self._clock.monotonic()

    async def run(self) -> None:
        """Say so, until cancelled."""
        while True:
            silent_s = self._clock.monotonic() - self._said_s
            if silent_s < SILENCE_S:
                await asyncio.sleep(SILENCE_S - silent_s)
                continue
            self._said_s = self._clock.monotonic()
            if (ahead := self._ahead()) is not None:
                self._observe(
                    StepAwaited(
                        at_s=self._clock.now(),
                        epoch=ahead.epoch,
                        share=ahead.share,
                        next_s=ahead.next_s,
                        step_s=ahead.step_s,
                        unit_share=ahead.unit_share,
                        unit_left_s=ahead.unit_left_s,
                    )
                )
