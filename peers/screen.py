"""What a volunteer sees: a live panel on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

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
    WindowsAveraged,
)
from collab.metrics.refusals import Refused
from collab.metrics.sinks import event_fields
from collab.swarm.progress import SwarmView


class JsonScreen:
    """One JSON object a line for every event but the phases."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def observe(self, event: Event) -> None:
        if not isinstance(event, PhaseReached):
            print(json.dumps(event_fields(event)), file=self._out, flush=True)


class LineScreen:
    """One plain line for what a person wants to know."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._told = ""
        """How windows of steps came out."""

    def observe(self, event: Event) -> None:
        line = words(event)
        if isinstance(event, WindowsAveraged):
            if line == self._told:
                return
            self._told = line
        if line:
            print(f"{time.strftime('%H:%M:%S')}  {line}", file=self._out, flush=True)


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
    if isinstance(event, WindowsAveraged):
        return pace_words(event.period, event.delay)
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
    if isinstance(event, DataCovered):
        done = "is done" if event.is_complete else f"{100 * event.share:.0f} % done"
        return f"data: pass {event.pass_number + 1} {done}{trained_words(event.samples, event.samples_again)}"
    if isinstance(event, Notice):
        return f"{'problem: ' if event.is_problem else ''}{event.text}" + (f"\n  -> {event.hint}" if event.hint else "")
    return ""


def pace_words(period: float, delay: float) -> str:
    """How windows of own steps came out."""
    return f"windows of about {period:.2g} own steps, each averaged about {delay:.2g} steps after its end"


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
        self, title: str, view: Callable[[], SwarmView], refusals: Callable[[], Sequence[Refused]] = tuple
    ) -> None:
        from rich.live import Live

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
            self._last, self._last_at_s, self._trouble = event, time.monotonic(), ""
            self._own_samples += event.own_samples
            self._swarm_samples += event.swarm_samples
        elif isinstance(event, WindowsAveraged):
            self._pace = words(event)
        elif isinstance(event, RoundEnded):
            self._trouble = "" if event.committed else event.reason
        elif line := words(event):
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
) -> "JsonScreen | LineScreen | LivePanel":
    """JSON when asked for, the panel on a terminal, lines elsewhere."""
    if as_json:
        return JsonScreen(sys.stdout)
    if sys.stdout.isatty():
        return LivePanel(title, view, refusals)
    return LineScreen(sys.stdout)
