"""Where events go: files, several places at once."""

import json
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from collab.metrics.records import Event, PhaseReached

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes note of events; see ``collab.ports.Observer``."""

    def observe(self, event: Event) -> None:
        """Take note of ``event``."""
        ...


class Fanout:
    """Tells several sinks, in order."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def observe(self, event: Event) -> None:
        for sink in self._sinks:
            sink.observe(event)


class JsonLines:
    """Appends every event but the phases to a file, a JSON object a line; keeps at most two files of ``max_bytes``."""

    def __init__(self, path: Path, *, max_bytes: int = 64 << 20) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._is_failing = False

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseReached):
            return
        line = json.dumps(event_fields(event), allow_nan=False, sort_keys=True)
        try:
            if self._path.exists() and self._path.stat().st_size > self._max_bytes:
                self._path.replace(self._path.with_suffix(".old.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:  # said once, not for every event
                logger.warning("metrics cannot be written to %s: %s; free some space", self._path, error)
            self._is_failing = True


def event_fields(event: Event) -> dict[str, Any]:
    """The event as JSON values, with its name under ``event``; a number that does not exist (NaN) is null."""
    return {"event": type(event).__name__, **{name: _plain(value) for name, value in asdict(event).items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
