"""Who has given how much to a run, on a backbone's disk: of thousands who came once and went nothing is in memory."""

import errno
import json
import logging
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from collab.database import Database, os_error
from collab.types import PeerId
from peers.credit import MOST_OF_ONE, NO_OTHERS, Credit

logger = logging.getLogger(__name__)

MOST_PEERS = 5000
"""Identities are free to make; of more, those that were in no round are forgotten first, then those who gave least."""
MOST_RANKED = 50
"""Told of by name where people look; the others together."""
TABLES = """
CREATE TABLE IF NOT EXISTS credits (peer TEXT PRIMARY KEY, name TEXT, earlier INTEGER, samples INTEGER, invite TEXT,
    is_seen INTEGER, life INTEGER, others TEXT, said_at_s REAL, grew_at_s REAL, total INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS credits_by_rank ON credits (is_seen DESC, total DESC);
"""
PUT = "INSERT OR REPLACE INTO credits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
FORGET = """
DELETE FROM credits WHERE peer IN (SELECT peer FROM credits ORDER BY is_seen DESC, total DESC LIMIT -1 OFFSET ?)
"""
AMONG = "SELECT * FROM credits WHERE peer IN (SELECT value FROM json_each(?))"
SUMS_BUT = """
SELECT count(*), coalesce(sum(total), 0) FROM credits
    WHERE is_seen >= ? AND peer NOT IN (SELECT value FROM json_each(?))
"""
FIRST_BUT = """
SELECT * FROM credits WHERE is_seen >= ? AND peer NOT IN (SELECT value FROM json_each(?))
    ORDER BY total DESC, peer LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Others:
    """Those that somebody did not ask for."""

    first: tuple[tuple[PeerId, Credit], ...] = ()
    """Who gave most, ``MOST_RANKED`` of them."""
    number: int = 0
    total: int = 0
    """Samples of all of them."""


class CreditFile(Database):
    """One file, of ``MOST_PEERS``. All methods block, and may be called from any thread."""

    holds, tables, version = "the book of contributors", TABLES, 1
    outlives_power_cuts = True

    def write(self, changed: Mapping[PeerId, Credit]) -> None:
        """Put them in, each in the place of what it has there.

        Raises:
            sqlite3.Error: the disk does not take it; nothing is changed.
        """
        rows = [_row(peer, credit) for peer, credit in changed.items()]
        self._use(lambda: self._write(rows))

    def add(self, known: Mapping[PeerId, Credit]) -> None:
        """Put them in, but for those that have more there.

        Raises:
            sqlite3.Error: as for ``write``.
        """
        there = self.read(known.keys())
        self.write({peer: one for peer, one in known.items() if peer not in there or one.total > there[peer].total})

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        with self._transaction():
            self._connection.executemany(PUT, rows)
            self._connection.execute(FORGET, (MOST_PEERS,))

    def read(self, peers: Collection[PeerId]) -> dict[PeerId, Credit]:
        """Of these, those that are known.

        Raises:
            sqlite3.Error: the disk gives nothing.
        """
        return dict(_credits(self._rows(AMONG, (json.dumps([*peers]),))))

    def all(self) -> dict[PeerId, Credit]:
        """
        Raises:
            sqlite3.Error: as for ``read``.
        """
        return dict(_credits(self._rows("SELECT * FROM credits")))

    def but(self, peers: Collection[PeerId], *, only_seen: bool) -> Others:
        """All but these.

        Args:
            only_seen: nobody that this backbone has not seen in a round.

        Raises:
            sqlite3.Error: as for ``read``.
        """
        whom = int(only_seen), json.dumps([*peers])
        [(number, total)] = self._rows(SUMS_BUT, whom)
        first = self._rows(FIRST_BUT, (*whom, MOST_RANKED))
        return Others(tuple(_credits(first)), number, total)


def _row(peer: PeerId, one: Credit) -> tuple[Any, ...]:
    others = json.dumps(one.others) if one.others else ""
    given = (min(one.earlier, MOST_OF_ONE), min(one.samples, MOST_OF_ONE))
    said = (one.invite, one.is_seen, one.life, others, one.said_at_s, one.grew_at_s)
    return (peer, one.name, *given, *said, one.total)


def _credits(rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[PeerId, Credit]]:
    """Those that are what was written; the disk may have spoiled others without SQLite's noticing."""
    for peer, name, earlier, samples, invite, is_seen, life, others, said_at_s, grew_at_s, _ in rows:
        try:
            lives = {int(mark): int(given) for mark, given in json.loads(others).items()} if others else NO_OTHERS
            numbers = int(earlier), int(samples), str(invite), bool(is_seen), int(life)
            yield PeerId(peer), Credit(str(name), *numbers, lives, float(said_at_s), float(grew_at_s))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("what %s has given is spoiled on the disk (%r), and begins at 0", peer, error)


# -- what earlier versions wrote ---------------------------------------------------------------------------------------


def take_over(earlier: Path, path: Path) -> None:
    """Put what an earlier version has written as JSON into the file at ``path``; what cannot be read is put aside.

    Raises:
        OSError: the disk does not do it.
    """
    if not (known := _read(earlier)):
        return
    with closing(CreditFile.open(path)) as file:
        try:
            file.add(known)
        except sqlite3.Error as error:
            raise os_error(error, path) from error
        if file.is_in_memory:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def _read(path: Path) -> dict[PeerId, Credit]:
    """
    Raises:
        OSError: there is something that can neither be read nor put aside.
    """
    try:
        return dict(_told(json.loads(path.read_bytes())))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        names = (path.with_name(f"{path.stem}.unreadable-{number}{path.suffix}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        logger.warning(
            "who gave how much cannot be read from %s (%r); it lies in %s, and all begin at 0: to have it back, stop "
            "this backbone, put a mended file in its place again, and delete version.json beside it", path, error, aside
        )  # fmt: skip
        return {}


def _told(content: dict[str, dict[str, Any]]) -> Iterable[tuple[PeerId, Credit]]:
    """What has no mark was written before anybody looked whether somebody was seen in a round."""
    for peer, one in content.items():
        name, earlier, samples = str(one["name"]), int(one["earlier"]), int(one["samples"])
        others = {int(life): int(given) for life, given in one.get("others", {}).items()} or NO_OTHERS
        invite, is_seen, life = str(one.get("invite", "")), bool(one.get("is_seen", True)), int(one.get("life", 0))
        said_at_s = float(one.get("said_at_s", 0.0))
        yield PeerId(str(peer)), Credit(name, earlier, samples, invite, is_seen, life, others, said_at_s)
