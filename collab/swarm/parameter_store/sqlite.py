"""A parameter store in one SQLite file: for several servers on one machine, and through restarts of all of them."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from collab.data.work_units import Unit
from collab.errors import CorruptState, StateError
from collab.swarm.parameter_store.base import Assimilated, Kept, Out, Push, Stored, Verdict, mixed
from collab.types import PeerId, Vector

SCHEMA = """
CREATE TABLE IF NOT EXISTS parameters (id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER, vector BLOB);
CREATE TABLE IF NOT EXISTS done (pass INTEGER, shard INTEGER, lease TEXT, PRIMARY KEY (pass, shard));
CREATE TABLE IF NOT EXISTS settled (id INTEGER PRIMARY KEY CHECK (id = 0), first_open INTEGER);
CREATE TABLE IF NOT EXISTS out (pass INTEGER, shard INTEGER, lease TEXT, client TEXT, began_at_s REAL, until_at_s REAL,
    PRIMARY KEY (pass, shard));
"""
BUSY_S = 60.0
"""For other servers to finish their transactions; a transaction takes as long as the disk needs for one vector."""


class SqliteStore:
    """Implements ``ParameterStore``.

    *Strong*: a push reads, mixes and writes in one transaction, and is on the disk before it is answered: no push is
    ever lost to another one, or to the power. *Eventual*: it reads and mixes before the transaction, so that servers
    mix side by side, and what another one has written meanwhile is overwritten: that push is counted and not in the
    parameters. Nothing waits for the disk; a power failure takes the last pushes away, whole and with their units.
    """

    def __init__(self, path: Path, *, is_strong: bool = True) -> None:
        """
        Raises:
            CorruptState: the file is damaged, or is no store.
            StateError: it cannot be opened.
        """
        self._path, self._is_strong = path, is_strong
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        try:
            with self._connected() as connection:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise sqlite3.DatabaseError(verdict)
                connection.executescript(SCHEMA)
        except StateError:
            self.close()
            raise

    def begin(self, first: Kept) -> bool:
        with self._connected() as connection, _written(connection):
            if _stored(connection) is not None:
                return False
            data = first.stored.values.astype("<f4", copy=False).tobytes()
            connection.execute("INSERT INTO parameters VALUES (0, ?, ?)", (first.stored.version, data))
            rows = [(unit.pass_number, unit.shard, lease) for unit, lease in first.done.items()]
            connection.executemany("INSERT INTO done VALUES (?, ?, ?)", rows)
            connection.execute("INSERT OR REPLACE INTO settled VALUES (0, ?)", (first.first_open,))
            return True

    def read(self, known: int | None = None) -> Stored | None:
        if known is not None and self.version() in (None, known):
            return None
        with self._connected() as connection:
            return _stored(connection)

    def version(self) -> int | None:
        with self._connected() as connection:
            row = connection.execute("SELECT version FROM parameters").fetchone()
            return None if row is None else int(row[0])

    def assimilate(self, push: Push) -> Assimilated:
        with self._connected() as connection:
            if self._is_strong:
                with _written(connection):
                    stored = self._existing(connection)
                    if (answer := _refusal(connection, push, stored.version)) is not None:
                        return answer
                    return _write(connection, push, stored, mixed(stored.values, push))
            before = self._existing(connection)
            vector = mixed(before.values, push)
            with _written(connection):
                (version,) = connection.execute("SELECT version FROM parameters").fetchone()
                if (answer := _refusal(connection, push, version)) is not None:
                    return answer
                return _write(connection, push, Stored(version, before.values), vector)

    def done(self, pass_number: int) -> dict[int, str] | None:
        with self._connected() as connection, _transaction(connection, "BEGIN"):
            if pass_number < _first_open(connection):
                return None
            rows = connection.execute("SELECT shard, lease FROM done WHERE pass = ?", (pass_number,))
            return dict(rows.fetchall())

    def passes(self) -> range:
        with self._connected() as connection, _transaction(connection, "BEGIN"):
            (last,) = connection.execute("SELECT max(pass) FROM done").fetchone()
            return range(_first_open(connection), (last or 0) + 1)

    def note_out(self, out: Out) -> None:
        row = (out.unit.pass_number, out.unit.shard, out.lease, out.client, out.began_at_s, out.until_at_s)
        with self._connected() as connection, _written(connection):
            connection.execute("INSERT OR REPLACE INTO out VALUES (?, ?, ?, ?, ?, ?)", row)

    def note_back(self, unit: Unit) -> None:
        with self._connected() as connection, _written(connection):
            _note_back(connection, unit)

    def out(self) -> list[Out]:
        with self._connected() as connection:
            rows = connection.execute("SELECT pass, shard, lease, client, began_at_s, until_at_s FROM out").fetchall()
        return [
            Out(unit=Unit(number, shard), lease=lease, client=PeerId(client), began_at_s=began_s, until_at_s=until_s)
            for number, shard, lease, client, began_s, until_s in rows
        ]

    def keep(self) -> Kept | None:
        with self._connected() as connection, _transaction(connection, "BEGIN"):
            stored = _stored(connection)
            rows = connection.execute("SELECT pass, shard, lease FROM done")
            done = {Unit(number, shard): lease for number, shard, lease in rows}
            return None if stored is None else Kept(stored, done, _first_open(connection))

    def settle(self, first_open: int) -> None:
        with self._connected() as connection, _written(connection):
            if first_open > _first_open(connection):
                connection.execute("INSERT OR REPLACE INTO settled VALUES (0, ?)", (first_open,))
                connection.execute("DELETE FROM done WHERE pass < ?", (first_open,))
                connection.execute("DELETE FROM out WHERE pass < ?", (first_open,))

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection; what SQLite complains of as ``StateError``."""
        try:
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = sqlite3.connect(self._path, BUSY_S, isolation_level=None, check_same_thread=False)
                try:
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.execute(f"PRAGMA synchronous={'FULL' if self._is_strong else 'NORMAL'}")
                except sqlite3.Error:
                    connection.close()
                    raise
                self._local.connection = connection
                with self._lock:
                    self._connections.append(connection)
            yield connection
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:  # what else goes wrong has classes of its own
                text = f"the parameter store {self._path} is damaged, or none: {error}"
                hint = "stop the backbone, move the file away, start it again: it goes on from the newest checkpoint"
                raise CorruptState(text, hint=hint) from error
            hint = "is there room on the disk, and may this user write there?"
            raise StateError(f"the parameter store {self._path}: {error}", hint=hint) from error

    def _existing(self, connection: sqlite3.Connection) -> Stored:
        stored = _stored(connection)
        if stored is None:
            raise StateError(f"the parameter store {self._path} is empty", hint="begin with the run's first state")
        return stored


def _written(connection: sqlite3.Connection) -> AbstractContextManager[None]:
    """One transaction that nobody writes beside."""
    return _transaction(connection, "BEGIN IMMEDIATE")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _stored(connection: sqlite3.Connection) -> Stored | None:
    row = connection.execute("SELECT version, vector FROM parameters").fetchone()
    return None if row is None else Stored(row[0], np.frombuffer(row[1], "<f4"))


def _first_open(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT first_open FROM settled").fetchone()
    return 1 if row is None else int(row[0])


def _refusal(connection: sqlite3.Connection, push: Push, version: int) -> Assimilated | None:
    """Why a push does not count; None: it does."""
    where = (push.unit.pass_number, push.unit.shard)
    row = connection.execute("SELECT lease FROM done WHERE pass = ? AND shard = ?", where).fetchone()
    if row is not None:
        return Assimilated(Verdict.AGAIN if row[0] == push.lease else Verdict.DONE, version, 0)
    if push.unit.pass_number < _first_open(connection):
        return Assimilated(Verdict.DONE, version, 0)
    staleness = version - push.based_on
    if push.max_staleness is not None and staleness > push.max_staleness:
        return Assimilated(Verdict.STALE, version, staleness)
    return None


def _write(connection: sqlite3.Connection, push: Push, stored: Stored, vector: Vector) -> Assimilated:
    version, data = stored.version + 1, vector.astype("<f4", copy=False).tobytes()
    connection.execute("UPDATE parameters SET version = ?, vector = ?", (version, data))
    connection.execute("INSERT INTO done VALUES (?, ?, ?)", (push.unit.pass_number, push.unit.shard, push.lease))
    _note_back(connection, push.unit)
    return Assimilated(Verdict.TAKEN, version, stored.version - push.based_on)


def _note_back(connection: sqlite3.Connection, unit: Unit) -> None:
    connection.execute("DELETE FROM out WHERE pass = ? AND shard = ?", (unit.pass_number, unit.shard))
