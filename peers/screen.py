"""What a volunteer sees: a live panel on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TextIO

from collab.metrics.guest_records import Paused, Progress
from collab.metrics.records import EpochFinished, Event, Notice, PhaseReached, RoundEnded, WindowsAveraged
from collab.metrics.refusals import Refused
from collab.metrics.sinks import event_fields
from collab.swarm.progress import SwarmView
from peers.event_words import count, refused_words, words

PROGRESS_LINES_S = 10.0
"""Between two lines about the same thing, where nothing can be written over."""


class JsonScreen:
    """One JSON object a line for every event but the phases."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def observe(self, event: Event) -> None:
        if not isinstance(event, PhaseReached):
            print(json.dumps(event_fields(event)), file=self._out, flush=True)


class Style(StrEnum):
    """How a peer talks to the person at the terminal."""

    AUTO = "auto"
    """A panel on a terminal, lines elsewhere."""
    PLAIN = "plain"
    QUIET = "quiet"
    """Problems only."""


def style_of(*, is_plain: bool, is_quiet: bool) -> Style:
    """As it was asked for on the command line."""
    return Style.QUIET if is_quiet else Style.PLAIN if is_plain else Style.AUTO


class LineScreen:
    """One plain line for what a person wants to know; in a file, a pipe or a notebook, too."""

    def __init__(
        self, out: TextIO, *, problems_only: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out, self._problems_only, self._clock = out, problems_only, clock
        self._progress_s = -math.inf
        self._told = ""
        """How windows of steps came out."""

    def observe(self, event: Event) -> None:
        if self._problems_only and not (isinstance(event, Notice) and event.is_problem):
            return
        if isinstance(event, Progress) and not self._is_time_for(event):
            return
        line = words(event)
        if isinstance(event, WindowsAveraged):
            if line == self._told:
                return
            self._told = line
        if line:
            print(f"{time.strftime('%H:%M:%S')}  {line}", file=self._out, flush=True)

    def _is_time_for(self, progress: Progress) -> bool:
        """A line every ten seconds, and one at the end."""
        is_over = progress.done_bytes == progress.whole_bytes
        if not is_over and self._clock() - self._progress_s < PROGRESS_LINES_S:
            return False
        self._progress_s = self._clock()
        return True


class LivePanel:
    """A panel that stays in place: is all well, how far are we, what did I give."""

    def __init__(
        self,
        title: str,
        view: Callable[[], SwarmView],
        refusals: Callable[[], Sequence[Refused]] = tuple,
        eta: Callable[[], str] = str,
    ) -> None:
        """
        Args:
            eta: when the next step is due, in words; empty: nobody knows.
        """
        from rich.live import Live

        self._eta = eta
        self._progress, self._paused = "", ""
        self._title, self._view, self._refusals = title, view, refusals
        self._last: EpochFinished | None = None
        self._last_at_s = time.monotonic()
        self._own_samples = 0
        self._swarm_samples = 0.0
        self._trouble = self._pace = ""
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
        if isinstance(event, EpochFinished):
            self._last, self._last_at_s, self._trouble, self._progress = event, time.monotonic(), "", ""
            self._own_samples += event.own_samples
            self._swarm_samples += event.swarm_samples
        elif isinstance(event, WindowsAveraged):
            self._pace = words(event)
        elif isinstance(event, RoundEnded):
            self._trouble = "" if event.committed else event.reason
        elif isinstance(event, Progress):
            self._progress = "" if event.done_bytes == event.whole_bytes else words(event)
        elif line := words(event):
            self._paused = line if isinstance(event, Paused) else self._paused
            self._notes = [*self._notes[-3:], line]

    def render(self) -> Any:
        """The panel as of now."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        view, last = self._view(), self._last
        table = Table.grid(padding=(0, 2))
        who = f"{count(view.num_trainers, 'trainer')}, {count(len(view.helpers()), 'helper')}"
        rows = [
            ("swarm", f"{who}, {view.samples_per_s:.1f} samples/s"),
            ("epoch", f"{last.epoch if last else '-'}"),
            ("loss", f"{last.loss:.4f}" if last and math.isfinite(last.loss) else "-"),
            ("you gave", f"{100 * self._own_samples / self._swarm_samples:.1f} %" if self._swarm_samples else "-"),
        ]
        if eta := self._eta():
            rows.insert(2, ("next step", eta))
        if self._pace:
            rows.append(("pace", self._pace))
        refused = self._refusals()
        if refused:
            rows.append(("refused", refused_words(refused)))
        for name, value in rows:
            table.add_row(Text(name, style="dim"), Text(value))
        notes = [Text(note, style="dim") for note in self._notes]
        return Panel(Group(Text(self.health(), style="bold"), table, *notes), title=Text(self._title))

    def health(self) -> str:
        """In words, whether all is well."""
        ago = time.monotonic() - self._last_at_s
        if self._paused:
            return self._paused
        if self._progress:
            return self._progress
        if self._trouble:
            return f"the last round was lost, your work was not: {self._trouble}"
        if self._last is None:
            return f"joining: waiting for the first step ({ago:.0f} s)"
        others = self._last.contributors - 1
        return f"healthy: averaged with {count(others, 'other')} {ago:.0f} s ago"


def choose_screen(
    *,
    as_json: bool,
    title: str,
    view: Callable[[], SwarmView],
    refusals: Callable[[], Sequence[Refused]] = tuple,
    style: Style = Style.AUTO,
    eta: Callable[[], str] = str,
) -> "JsonScreen | LineScreen | LivePanel":
    """JSON when asked for; the panel on a terminal that can draw, lines elsewhere, unless a style was asked for.

    Args:
        eta: when the next step is due, in words; empty: nobody knows.
    """
    if as_json:
        return JsonScreen(sys.stdout)
    if style is Style.AUTO and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return LivePanel(title, view, refusals, eta)
    return LineScreen(sys.stdout, problems_only=style is Style.QUIET)
