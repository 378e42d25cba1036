"""A backbone's metrics in SQLite: curves, counters and the last events of each kind. Bounded, and kept for ever."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.database import Database
from collab.metrics.backbone_events import RolledBack, RoundPlanned, RoundShared
from collab.metrics.names import counter_of, figures_of
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    Event,
    Notice,
    PeerRefused,
    RoundEnded,
    SwarmReport,
)
from collab.metrics.sinks import event_fields

MOST_POINTS = 10_000
"""Of one curve. Of more, every second one of the older half goes, so that the oldest are the sparsest. About 4 MB in
all."""
KEPT: Mapping[type[Event], int] = {
    SwarmReport: 1,
    RolledBack: 1,
    RoundEnded: 500,
    RoundPlanned: 20,
    RoundShared: 100,
    PeerRefused: 500,
    CheckpointSaved: 200,
    CheckpointOnHub: 200,
    Notice: 100,
}
"""Of which events the last ones are kept, and how many."""
TABLES = """
CREATE TABLE IF NOT EXISTS figures (name TEXT, epoch INTEGER, at_s REAL, value REAL, PRIMARY KEY (name, epoch))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, kind TEXT, at_s REAL, fields TEXT);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, number);
"""
COUNT = "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
FORGET = """
DELETE FROM events WHERE kind = :kind AND number <= (
    SELECT number FROM events WHERE kind = :kind ORDER BY number DESC LIMIT 1 OFFSET :most
)
"""
THIN = """
DELETE FROM figures WHERE name = :name AND epoch IN (
    SELECT epoch FROM (
        SELECT epoch, row_number() OVER (ORDER BY epoch) AS place, count(*) OVER () AS number
        FROM figures WHERE name = :name
    ) WHERE place % 2 = 0 AND place <= number / 2
)
"""


def matters(event: Event) -> bool:
    """Whether anything of an event is kept."""
    return type(event) in KEPT or bool(counter_of(event)) or bool(figures_of(event))


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over epochs."""

    epochs: tuple[int, ...]
    values: tuple[float, ...]


class MetricsStore(Database):
    """One file. All methods block, and may be called from any thread."""

    holds, tables, version = "the record of metrics", TABLES, 1

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        super().__init__(connection, path)
        self._added: dict[str, int] = {}
        """Points of each curve since it was looked at how many there are; not in it: that was never done."""

    def _begin_anew(self, path: Path, error: sqlite3.DatabaseError) -> None:
        self._added.clear()
        super()._begin_anew(path, error)

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, events: Sequence[Event]) -> None:
        """What these events say, in their order; all of it, or nothing.

        Raises:
            sqlite3.Error: the disk does not take it.
        """
        self._use(lambda: self._write(events))

    def _write(self, events: Sequence[Event]) -> None:
        with self._transaction():
            execute = self._connection.execute
            for event in events:
                if isinstance(event, RolledBack):
                    execute("DELETE FROM figures WHERE epoch > ?", (event.epoch,))
                for figure in figures_of(event):
                    point = (figure.name, figure.epoch, figure.at_s, figure.value)
                    execute("INSERT OR REPLACE INTO figures VALUES (?, ?, ?, ?)", point)
                if counter := counter_of(event):
                    execute(COUNT, (counter,))
                if type(event) in KEPT:
                    fields = json.dumps(event_fields(event), allow_nan=False)
                    row = (type(event).__name__, event.at_s, fields)
                    execute("INSERT INTO events (kind, at_s, fields) VALUES (?, ?, ?)", row)
            self._keep_small(events)

    def _keep_small(self, events: Sequence[Event]) -> None:
        for kind in {type(event) for event in events} & KEPT.keys():
            self._connection.execute(FORGET, {"kind": kind.__name__, "most": KEPT[kind]})
        for name, added in Counter(figure.name for event in events for figure in figures_of(event)).items():
            self._added[name] = self._added.get(name, MOST_POINTS) + added
            if self._added[name] < MOST_POINTS // 20:
                continue
            self._added[name] = 0
            (number,) = self._connection.execute("SELECT count(*) FROM figures WHERE name = ?", (name,)).fetchone()
            if number > MOST_POINTS:
                self._connection.execute(THIN, {"name": name})

    # -- reading -----------------------------------------------------------------------------------------------------

    def curve(self, name: str, *, after_epoch: int = -1, most: int = MOST_POINTS) -> Curve:
        """Points of later epochs, by epoch; of more than ``most`` every n-th, and the last one."""
        found = self._rows(
            "SELECT epoch, value FROM figures WHERE name = ? AND epoch > ? ORDER BY epoch", (name, after_epoch)
        )
        step = -(-len(found) // most)
        rows = found[::-1][:: max(step, 1)][::-1]
        return Curve(tuple(epoch for epoch, _ in rows), tuple(value for _, value in rows))

    def newest_figures(self) -> dict[str, float]:
        """Of each metric the value of its last epoch."""
        return {name: value for name, (_, value) in self.newest_points().items()}

    def newest_points(self) -> dict[str, tuple[int, float]]:
        """Of each metric its last epoch, and the value of that."""
        # SQLite takes the other columns from the row that has the maximum
        rows = self._rows("SELECT name, value, max(epoch) FROM figures GROUP BY name")
        return {name: (epoch, value) for name, value, epoch in rows}

    def counters(self) -> dict[str, int]:
        """What was counted, by name."""
        return dict(self._rows("SELECT name, value FROM counters"))

    def newest(self, kind: type[Event], number: int) -> list[dict[str, Any]]:
        """The last events of a kind, as ``event_fields``, newest first."""
        rows = self._rows(
            "SELECT fields FROM events WHERE kind = ? ORDER BY number DESC LIMIT ?", (kind.__name__, number)
        )
        return [json.loads(fields) for (fields,) in rows]

    def era(self) -> str | None:
        """Mark of the last rollback that the curves know of; empty: there was none; None: its mark was not kept."""
        told = self.newest(RolledBack, 1)
        return told[0].get("era") if told else ""
