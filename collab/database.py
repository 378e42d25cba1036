"""SQLite files that a process has to itself: one that is damaged, or of a later version, is put aside, and a new one
begins.
"""

import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

JOURNALS = ("-wal", "-shm")
LONGEST_JOURNAL_BYTES = 4 << 20
CACHE_KIB = 256
"""Of pages of the file in this process; the system caches them anyway."""
ERRNO = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_PERM: errno.EACCES}
MOST_ASIDE = 5
"""Unreadable files of one name: the first ones stay, as what was lost is in them; after that the last one gives way."""


class Database:
    """One file. All methods block, and may be called from any thread.

    A file that turns out to be damaged is put aside, whenever that is, and a new one begins. Subclasses say what is in
    it, and do all that they do with it by ``_use``.
    """

    holds: ClassVar[str]
    """What is in it, in the singular, as a person is told of it."""
    tables: ClassVar[str]
    """SQL that makes what is not there yet."""
    version: ClassVar[int]
    """Of the tables; what a file of a later one means is not known."""
    outlives_power_cuts: ClassVar[bool] = False
    """Whether what was written is on the disk when that returns; else a power cut may cost the last seconds."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        """
        Args:
            path: of the file; None: it is in memory.
        """
        self._connection, self._path, self._lock = connection, path, threading.Lock()
        self.beginnings = 0
        """How often a damaged file gave way to a new one, or to memory, since this was opened."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """What is in a file, which is made if it is not there. One that is none, or damaged, is put aside.

        Raises:
            OSError: the disk takes nothing, or gives nothing.
        """
        try:
            return cls(cls._connected(path), path)
        except sqlite3.OperationalError as error:
            raise os_error(error, path) from error
        except sqlite3.DatabaseError as error:
            cls._put_aside(path, error)
        try:
            return cls(cls._connected(path), path)
        except sqlite3.Error as error:
            raise os_error(error, path) from error

    @classmethod
    def open_or_in_memory(cls, path: Path) -> Self:
        """As ``open``; where the disk does not do that, one in memory with what can be read there: the run is not to
        wait for it.
        """
        try:
            return cls.open(path)
        except OSError as error:
            logger.warning("%s is kept in memory only: %s; free some space and start again", cls.holds, error)
        copy = cls.in_memory()
        place = f"{path.absolute().as_uri()}?immutable=1"
        with suppress(sqlite3.Error), closing(sqlite3.connect(place, uri=True)) as there:
            if there.execute("PRAGMA user_version").fetchone() == (cls.version,):
                there.backup(copy._connection)
        return copy

    @classmethod
    def in_memory(cls) -> Self:
        """One that ends with the process."""
        return cls(cls._connected(":memory:"))

    @property
    def is_in_memory(self) -> bool:
        """Whether it ends with the process."""
        return self._path is None

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _use(self, work: Callable[[], T]) -> T:
        """Do something with the connection; if the file is damaged, with that to a new one: what was in the old one
        cannot be had any more.

        Raises:
            sqlite3.Error: the disk does not do it.
        """
        with self._lock:
            try:
                return work()
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError or self._path is None:  # a full disk has a class of its own
                    raise
                self._begin_anew(self._path, error)
                return work()

    def _begin_anew(self, path: Path, error: sqlite3.DatabaseError) -> None:
        self.beginnings += 1
        with suppress(sqlite3.Error):
            self._connection.close()
        try:
            self._put_aside(path, error)
            self._connection = self._connected(path)
        except (OSError, sqlite3.Error) as failure:
            logger.warning(
                "%s is kept in memory only: %s cannot be read (%s), and cannot be put aside (%s); mend the disk and "
                "start again", self.holds, path, error, failure
            )  # fmt: skip
            self._connection, self._path = self._connected(":memory:"), None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")
            raise

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return self._use(lambda: self._connection.execute(query, values).fetchall())

    @classmethod
    def _put_aside(cls, path: Path, error: sqlite3.DatabaseError) -> None:
        """
        Raises:
            OSError: it stays where it is.
        """
        numbers = ("", *(f"-{number}" for number in range(2, MOST_ASIDE + 1)))
        names = [path.with_suffix(f".unreadable{number}.sqlite") for number in numbers]
        aside = next((name for name in names if not name.exists()), names[-1])
        for suffix in JOURNALS:  # first: one that is left would be written into the new file
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.replace(aside)
        logger.warning(
            "%s in %s cannot be read (%s): it lies in %s, and a new one begins; to have it back, stop this backbone "
            "and put a file from a backup in its place", cls.holds, path, error, aside
        )  # fmt: skip

    @classmethod
    def _connected(cls, where: Path | str) -> sqlite3.Connection:
        """
        Raises:
            sqlite3.DatabaseError: it is none, damaged, or of a later version.
        """
        connection = sqlite3.connect(where, check_same_thread=False, isolation_level=None)
        connection.text_factory = lambda text: text.decode(errors="replace")  # of a row that the disk has spoiled
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > cls.version:
                raise sqlite3.DatabaseError(f"it is of version {version}, and this program knows {cls.version}")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if cls.outlives_power_cuts else 'NORMAL'}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit = {LONGEST_JOURNAL_BYTES}")
            connection.executescript(cls.tables)
            connection.execute(f"PRAGMA user_version = {cls.version}")
        except BaseException:
            connection.close()
            raise
        return connection


def os_error(error: sqlite3.Error, path: Path) -> OSError:
    """The same as the system would have said it."""
    number = ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return OSError(number, os.strerror(number), str(path)) if number is not None else OSError(f"{path}: {error}")
