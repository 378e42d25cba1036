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

from collab.metrics.guest_records import Paused, Progress, Resumed
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    DataCovered,
    EpochFinished,
    EvaluationDone,
    Event,
    MicrobatchSkipped,
    Notice,
    PhaseReached,
    RoundEnded,
    StateFetched,
    SwarmReport,
)
from collab.metrics.refusals import Refused
from collab.metrics.sinks import event_fields
from collab.swarm.progress import SwarmView

PROGRESS_LINES_S = 10.0
"""Between two lines about the same thing, where nothing can be written over."""
BAR = 24
"""Characters."""


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

    def observe(self, event: Event) -> None:
        if self._problems_only and not (isinstance(event, Notice) and event.is_problem):
            return
        if isinstance(event, Progress) and not self._is_time_for(event):
            return
        line = words(event)
        if line:
            print(f"{time.strftime('%H:%M:%S')}  {line}", file=self._out, flush=True)

    def _is_time_for(self, progress: Progress) -> bool:
        """A line every ten seconds, and one at the end."""
        is_over = progress.done_bytes == progress.whole_bytes
        if not is_over and self._clock() - self._progress_s < PROGRESS_LINES_S:
            return False
        self._progress_s = self._clock()
        return True


def words(event: Event) -> str:
    """An event in words; empty when it is not worth a line."""
    if isinstance(event, EpochFinished):
        share = 100 * event.own_samples / event.swarm_samples if event.swarm_samples else 0.0
        loss = f"{event.loss:.4f}" if math.isfinite(event.loss) else "-"
        rate = event.swarm_samples / event.seconds if event.seconds > 0 else 0.0
        others = event.contributors - (1 if event.own_samples else 0)
        return (
            f"epoch {event.epoch}  loss {loss}  swarm {rate:.1f} samples/s  "
            f"averaged with {count(others, 'other')}  you gave {share:.0f} %"
        )
    if isinstance(event, SwarmReport):
        loss = f"{event.loss:.4f}" if math.isfinite(event.loss) else "-"
        speed = f"swarm {event.samples_per_s:.1f} samples/s"
        return f"epoch {event.epoch}  loss {loss}  {speed}  {count(event.trainers, 'trainer')}"
    if isinstance(event, RoundEnded) and not event.committed:
        return f"a round of epoch {event.epoch} was lost, nothing of your work with it: {event.reason}"
    if isinstance(event, MicrobatchSkipped):
        return f"left out one microbatch of {event.samples} samples: {event.reason}"
    if isinstance(event, EvaluationDone):
        right = f", {100 * event.accuracy:.1f} % right" if math.isfinite(event.accuracy) else ""
        return f"epoch {event.epoch}  loss on held-out data {event.loss:.4f}{right}"
    if isinstance(event, StateFetched):
        return f"took over epoch {event.epoch} ({event.num_bytes / 1e6:.1f} MB in {event.seconds:.1f} s)"
    if isinstance(event, CheckpointSaved):
        return f"saved epoch {event.epoch} in {event.path} ({event.num_bytes / 1e6:.1f} MB)"
    if isinstance(event, CheckpointOnHub):
        return f"epoch {event.epoch} is on the Hub: {event.place} ({event.num_bytes / 1e6:.1f} MB)"
    if isinstance(event, Paused):
        rest = f"; {count(event.samples, 'sample')} go into the swarm's next step" if event.samples else ""
        return f"paused: {event.reason}; the device is free after {event.seconds:.1f} s{rest}"
    if isinstance(event, Progress):
        return progress_words(event)
    if isinstance(event, Resumed):
        return f"works again after {event.paused_s / 60:.1f} min"
    if isinstance(event, DataCovered):
        done = "is done" if event.is_complete else f"{100 * event.share:.0f} % done"
        return f"data: pass {event.pass_number + 1} {done}{trained_words(event.samples, event.samples_again)}"
    if isinstance(event, Notice):
        return f"{'problem: ' if event.is_problem else ''}{event.text}" + (f"\n  -> {event.hint}" if event.hint else "")
    return ""


def progress_words(progress: Progress) -> str:
    """How far something is, with a bar where it is known how much it will be."""
    done, whole = progress.done_bytes, progress.whole_bytes
    if whole <= 0:
        return f"{progress.what}: {done / 1e6:.1f} MB so far"
    share = min(done / whole, 1.0)
    full = round(BAR * share)
    return f"{progress.what}: [{'#' * full}{'.' * (BAR - full)}] {100 * share:3.0f} % of {whole / 1e6:.1f} MB"


def eta_words(next_s: float, step_s: float, steps_left: int | None) -> str:
    """When the next step is due, and the run's end; empty: nobody knows."""
    if not (math.isfinite(next_s) and math.isfinite(step_s)):
        return ""
    end = "" if steps_left is None else f"; the run ends in about {duration_words(steps_left * step_s)}"
    return f"in about {duration_words(next_s)}, one takes {duration_words(step_s)}{end}"


def duration_words(seconds: float) -> str:
    """In the largest unit that leaves more than one of it."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def trained_words(samples: int, samples_again: int) -> str:
    """What was trained of the data; nothing where nobody knows how many samples there are."""
    again = f", {samples_again} of them more than once" if samples_again else ""
    return f": {samples} samples trained{again}" if samples else ""


def count(number: int, noun: str) -> str:
    """``1 trainer``, ``2 trainers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def refused_words(refused: Sequence[Refused]) -> str:
    """Whom we refused, in a line; most first."""
    worst, peers = refused[0], len({row.peer for row in refused})
    total = sum(row.count for row in refused)
    return f"{count(total, 'time')}, {count(peers, 'peer')}; most: {worst.reason} of {worst.peer[-8:]}"


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
        self._trouble = ""
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
