"""What a person sees of a peer on a terminal: a live panel."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from collab.clock import elapsed_s
from collab.metrics.guest_records import Progress, StepAwaited
from collab.metrics.records import EpochFinished, Event, StateFetched, SwarmReport, WindowsAveraged
from collab.metrics.refusals import Refused
from collab.swarm.progress import SwarmView
from collab.types import Role
from peers.event_words import count, refused_words, unit_words, words
from peers.headline import Headline, SwarmHeadline, TrainerHeadline
from peers.progress import Ahead
from peers.tally import Tally
from peers.terminal import as_text

NOTES = 4
"""What was told lately, in so many notes."""
NOBODY = SwarmView((), 0.0)


@dataclass(slots=True, kw_only=True)
class Watched:
    """A peer, as a screen asks for it; there is little to see before it is in the swarm."""

    title: str
    role: Role = Role.TRAINER
    view: Callable[[], SwarmView] = lambda: NOBODY
    ahead: Callable[[], Ahead | None] = lambda: None
    """When the next step is due; None: the peer is not in the swarm yet."""
    refusals: Callable[[], Sequence[Refused]] = tuple
    problem: Callable[[], str] = str
    """Why a backbone cannot do its work just now; empty: it can."""
    tally: Tally = field(default_factory=Tally)
    """Is told of every event before the screen is."""

    def awaited(self) -> Ahead | None:
        """What can be said of the next step when nothing else happens.

        Of who serves day and night: nothing while nobody can say when it comes, as when nobody is here.
        """
        ahead, (share, left_s) = self.ahead(), self.tally.unit.so_far()
        if ahead is not None and not math.isnan(share):
            return replace(ahead, unit_share=share, unit_left_s=left_s)
        is_known = ahead is not None and math.isfinite(ahead.next_s)
        return ahead if is_known or self.role is Role.TRAINER else None

    @property
    def helped(self) -> str:
        """In how many rounds an auxiliary peer was of use; empty: in none, or it is none."""
        rounds = self.tally.rounds if self.role is Role.AUXILIARY else 0
        return count(rounds, "round") if rounds else ""

    @property
    def gave(self) -> str:
        """Which share of the steps that a trainer took is its own; empty: of none, or it is none."""
        tally = self.tally
        return f"{100 * tally.own_samples / tally.swarm_samples:.1f} %" if tally.swarm_samples else ""


class LivePanel:
    """A panel that stays in place: is all well, how far are we, what did I give."""

    def __init__(self, watched: Watched, clock: Callable[[], float] = elapsed_s) -> None:
        from rich.live import Live

        self._watched = watched
        self._headline: Headline
        if watched.role is Role.TRAINER:
            self._headline = TrainerHeadline(clock)
        else:
            self._headline = SwarmHeadline(clock, watched.problem)
        self._epoch, self._loss = -1, math.nan
        self._pace = ""
        self._notes: list[str] = []
        self._live = Live(get_renderable=self.render, refresh_per_second=2, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def observe(self, event: Event) -> None:
        self._headline.observe(event)
        if isinstance(event, EpochFinished | SwarmReport):
            self._epoch, self._loss = event.epoch, event.loss
        elif isinstance(event, WindowsAveraged):
            self._pace = words(event)
        elif isinstance(event, Progress | StepAwaited):
            return  # it is in the panel anyway
        elif line := words(event):
            self._epoch = event.epoch if isinstance(event, StateFetched) else self._epoch
            self._notes = [*self._notes[1 - NOTES :], f"{time.strftime('%H:%M:%S')}  {line}"]

    def render(self) -> Any:
        """The panel as of now."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for name, value in self._rows():
            table.add_row(Text(name, style="dim"), Text(as_text(value)))
        head = [Text(as_text(line), style="bold") for line in self.lines()]
        notes = [Text(as_text(note), style="dim") for note in self._notes]
        return Panel(Group(*head, table, *notes), title=Text(self._watched.title))

    def lines(self) -> list[str]:
        """In words, whether all is well."""
        return self._headline.lines(self._watched.view(), self._watched.ahead())

    def _rows(self) -> list[tuple[str, str]]:
        watched, view, ahead = self._watched, self._watched.view(), self._watched.ahead()
        epoch = ahead.epoch if ahead is not None else self._epoch
        who = f"{count(view.num_trainers, 'trainer')}, {count(len(view.helpers()), 'helper')}"
        rows = [
            ("swarm", f"{who}, {view.samples_per_s:.1f} samples/s"),
            ("epoch", f"{epoch}" if epoch >= 0 else "-"),
            ("next step", ahead.words if ahead is not None else ""),
            ("loss", f"{self._loss:.4f}" if math.isfinite(self._loss) else "-"),
        ]
        if watched.role is Role.TRAINER:
            share, left_s = watched.tally.unit.so_far()
            rows.append(("your unit", "" if math.isnan(share) else unit_words(share, left_s)))
            rows.append(("you gave", watched.gave or "-"))
        if watched.role is Role.AUXILIARY:
            rows.append(("you helped", f"to average {watched.helped}" if watched.helped else "-"))
        refused = watched.refusals()
        rows += [("pace", self._pace), ("refused", refused_words(refused) if refused else "")]
        return [(name, value) for name, value in rows if value]
