"""What a panel says first: what stands in the way, else what the peer is busy with, else whether all is well."""

import math
from collections.abc import Callable
from typing import Protocol

from collab.metrics.guest_records import Paused, Progress
from collab.metrics.records import EpochFinished, Event, Notice, RoundEnded, StateFetched, SwarmReport
from collab.swarm.progress import SwarmView
from peers.dashboard.words import GOOD, TROUBLE, Health, Moment, health
from peers.event_words import AGAIN, company_words, duration_words, words
from peers.progress import Ahead
from peers.summary import epoch_of


class Headline(Protocol):
    """Of one panel."""

    def observe(self, event: Event) -> None:
        """Take note of ``event``."""
        ...

    def lines(self, view: SwarmView, ahead: Ahead | None) -> list[str]:
        """As of now, at least one.

        Args:
            ahead: None: the peer is not in the swarm yet.
        """
        ...


class Trouble:
    """The newest problem, as long as nothing has come about since that shows that things go on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._problem: Notice | None = None
        self._at_s = 0.0

    def observe(self, event: Event) -> None:
        if isinstance(event, Notice) and event.is_problem:
            self._problem, self._at_s = event, self._clock()
        elif isinstance(event, EpochFinished | StateFetched | SwarmReport | Paused) or self._is_settled_by(event):
            self._problem = None

    def _is_settled_by(self, event: Event) -> bool:
        return isinstance(event, Notice) and self._problem is not None and event.settles == self._problem.text

    def lines(self) -> list[str]:
        """What it is and what to do; none: there is no problem. A panel's thread asks; the loop may settle it."""
        problem = self._problem
        if problem is None:
            return []
        told = f"problem: {problem.text} (told {duration_words(self._clock() - self._at_s)} ago)"
        return [told, f"  -> {problem.hint}"] if problem.hint else [told]


class TrainerHeadline:
    """Of a peer that trains."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._trouble = clock, Trouble(clock)
        self._busy = self._paused = self._lost = ""
        self._last: EpochFinished | None = None
        self._since_s = clock()
        """When it took a step last; before the first one, when it got the swarm's state."""

    def observe(self, event: Event) -> None:
        self._trouble.observe(event)
        if isinstance(event, EpochFinished):
            self._last, self._since_s, self._busy, self._lost = event, self._clock(), "", ""
        elif isinstance(event, StateFetched) and self._last is None:
            self._since_s = self._clock()
        elif isinstance(event, RoundEnded):
            self._lost = "" if event.committed else event.reason
        elif isinstance(event, Progress):
            self._busy = _busy_words(event)
        elif isinstance(event, Paused):
            self._paused = words(event)

    def lines(self, view: SwarmView, ahead: Ahead | None) -> list[str]:
        if self._paused:
            return [self._paused]
        if trouble := self._trouble.lines():
            return [*trouble, self._busy] if self._busy else trouble
        if self._busy:
            return [self._busy]
        ago_s = self._clock() - self._since_s
        verdict = self._verdict(view, ahead, ago_s)
        if verdict.level == TROUBLE:
            return [f"no step for {duration_words(ago_s)}{_usual(ahead)}", f"  -> {verdict.hint}"]
        if self._lost:
            return [f"the last round was lost, your work was not: {self._lost}", f"  -> {AGAIN}"]
        if self._last is None:
            does = "joining" if ahead is None else "training"
            return [f"{does}: waiting for the first step ({duration_words(ago_s)})"]
        if ahead is not None and ahead.until_epoch is not None and ahead.epoch >= ahead.until_epoch:
            return [verdict.text]
        return [f"healthy: {company_words(self._last)} {duration_words(ago_s)} ago"]

    def _verdict(self, view: SwarmView, ahead: Ahead | None, ago_s: float) -> Health:
        """Whether a step is late. Before the first one that is not known while nobody says what one takes."""
        if ahead is None or (self._last is None and math.isinf(ahead.step_s)):
            return Health(GOOD, "")
        return health(
            Moment(
                epoch=ahead.epoch,
                until_epoch=ahead.until_epoch,
                trainers=max(view.num_trainers, 1),
                contributors=0,
                since_step_s=ago_s,
                step_s=ahead.step_s,
                has_round=ahead.has_round,
                unit_s=ahead.unit_s,
                lost_reason=self._lost,
            )
        )


class SwarmHeadline:
    """Of a peer that serves those who train: whether all is well with the run."""

    def __init__(self, clock: Callable[[], float], problem: Callable[[], str]) -> None:
        """
        Args:
            problem: why this peer cannot do its work just now; empty: it can.
        """
        self._clock, self._trouble, self._problem = clock, Trouble(clock), problem
        self._busy = self._lost = ""
        self._epoch, self._since_s = 0, -math.inf
        """Steps that the swarm has taken, and when we heard of the last one."""
        self._contributors = 0

    def observe(self, event: Event) -> None:
        self._trouble.observe(event)
        if isinstance(event, SwarmReport):
            self._epoch, self._since_s = event.epoch, self._clock() if event.epoch else -math.inf
        elif isinstance(event, RoundEnded):
            self._lost = event.reason
            self._contributors = event.contributors if event.committed else self._contributors
        elif isinstance(event, Progress):
            self._busy = _busy_words(event)

    def lines(self, view: SwarmView, ahead: Ahead | None) -> list[str]:
        problem = self._problem()
        lines = self._trouble.lines() or ([f"problem: {problem}"] if problem else [])
        if not lines and ahead is None:
            lines = ["joining"]
        elif not lines and ahead is not None:
            verdict = self._verdict(view, ahead)
            lines = [verdict.text, f"  -> {verdict.hint}"] if verdict.hint else [verdict.text]
        return [*lines, self._busy] if self._busy else lines

    def _verdict(self, view: SwarmView, ahead: Ahead) -> Health:
        return health(
            Moment(
                epoch=epoch_of(view, self._epoch),
                until_epoch=ahead.until_epoch,
                trainers=view.num_trainers,
                contributors=self._contributors,
                since_step_s=self._clock() - self._since_s,
                here_s=ahead.here_s,
                step_s=ahead.step_s,
                has_round=ahead.has_round,
                unit_s=ahead.unit_s,
                lost_reason=self._lost,
            )
        )


def _busy_words(progress: Progress) -> str:
    """How far what takes long is; empty: it is over."""
    return "" if progress.done_bytes == progress.whole_bytes else words(progress)


def _usual(ahead: Ahead | None) -> str:
    if ahead is None or math.isinf(ahead.step_s):
        return ""
    return f"; one takes {duration_words(ahead.step_s)}"
