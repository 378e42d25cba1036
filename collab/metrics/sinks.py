"""Where events go: files, several places at once."""

import errno
import json
import logging
import math
import os
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
        self._is_failing, self._ends_well = False, False
        """The second: whether the last line is known to have its end; a full disk and a power cut leave half of one."""

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseReached):
            return
        line = json.dumps(event_fields(event), allow_nan=False, sort_keys=True).encode() + b"\n"
        try:
            if self._path.exists() and self._path.stat().st_size > self._max_bytes:
                self._path.replace(self._path.with_suffix(".old.jsonl"))
            with self._path.open("ab", buffering=0) as file:
                if not self._ends_well and _is_torn(self._path):
                    line = b"\n" + line
                self._ends_well = False
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._is_failing, self._ends_well = False, True
        except OSError as error:
            if not self._is_failing:  # said once, not for every event
                logger.warning("metrics cannot be written to %s: %s; free some space", self._path, error)
            self._is_failing = True


def _is_torn(path: Path) -> bool:
    """Whether it ends in half a line."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        return file.read() not in (b"", b"\n")


def event_fields(event: Event) -> dict[str, Any]:
    """The event as JSON values, with its name under ``event``; a number that does not exist (NaN) is null."""
    return {"event": type(event).__name__, **{name: _plain(value) for name, value in asdict(event).items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
