"""What a volunteer sees: a live panel on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TextIO

from collab.metrics.guest_records import LinesMissed, Progress
from collab.metrics.records import Event, Notice, PhaseReached, RoundEnded, WindowsAveraged
from collab.metrics.sinks import event_fields
from peers.event_words import words
from peers.panel import LivePanel, Watched
from peers.terminal import as_text, tell_gaps

PROGRESS_LINES_S = 10.0
"""Between two lines about the same thing, where nothing can be written over."""
HELPED_LINES_S = 60.0
"""Between two lines about the rounds that an auxiliary peer has helped in; there may be several a second."""


class JsonScreen:
    """One JSON object a line for every event but the phases, and for lines that nobody has read in time."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._now_s = 0.0
        """Of the newest event."""
        tell_gaps(out, self._gap)

    def observe(self, event: Event) -> None:
        if not isinstance(event, PhaseReached):
            self._now_s = event.at_s
            print(json.dumps(event_fields(event)), file=self._out, flush=True)

    def _gap(self, num_lines: int) -> str:
        return json.dumps(event_fields(LinesMissed(at_s=self._now_s, lines=num_lines)))


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
        self,
        out: TextIO,
        watched: Watched,
        *,
        problems_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._watched, self._problems_only, self._clock = out, watched, problems_only, clock
        self._progress_s = self._helped_s = -math.inf
        self._told = ""
        """How windows of steps came out."""

    def observe(self, event: Event) -> None:
        if self._problems_only and not (isinstance(event, Notice) and event.is_problem):
            return
        if isinstance(event, Progress) and not self._is_time_for(event):
            return
        line = self._helped(event) or words(event)
        if isinstance(event, WindowsAveraged):
            if line == self._told:
                return
            self._told = line
        if line:
            print(f"{time.strftime('%H:%M:%S')}  {as_text(line)}", file=self._out, flush=True)

    def _helped(self, event: Event) -> str:
        """Of an auxiliary peer, a line a minute; it has no steps of its own to tell of."""
        if not (isinstance(event, RoundEnded) and event.committed):
            return ""
        helped = self._watched.helped
        if not helped or self._clock() - self._helped_s < HELPED_LINES_S:
            return ""
        self._helped_s = self._clock()
        return f"helped to average {helped} so far"

    def _is_time_for(self, progress: Progress) -> bool:
        """A line every ten seconds, and one at the end."""
        is_over = progress.done_bytes == progress.whole_bytes
        if not is_over and self._clock() - self._progress_s < PROGRESS_LINES_S:
            return False
        self._progress_s = self._clock()
        return True


def choose_screen(
    watched: Watched, *, as_json: bool, style: Style = Style.AUTO
) -> "JsonScreen | LineScreen | LivePanel":
    """JSON when asked for; the panel on a terminal that can draw, lines elsewhere, unless a style was asked for."""
    if as_json:
        return JsonScreen(sys.stdout)
    if style is Style.AUTO and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return LivePanel(watched)
    return LineScreen(sys.stdout, watched, problems_only=style is Style.QUIET)
