"""What a peer has sent and taken this month, over all its lives: for owners whose line is paid by the gigabyte."""

import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

logger = logging.getLogger(__name__)

BYTES_PER_GB = 1e9
SAVED_EVERY_BYTES = 1_000_000
"""What a power cut may leave uncounted."""


def local_time() -> datetime:
    """On this machine's clock, where it stands."""
    return datetime.now().astimezone()


class MonthlyTraffic:
    """A count that begins anew with each month, kept on the disk."""

    def __init__(self, path: Path, now: Callable[[], datetime] = local_time) -> None:
        self._path, self._now = path, now
        self._month, self._bytes = self._kept()
        self._saved_bytes = self._bytes
        self._seen_bytes = 0
        self._has_told = False
        """Of a disk that does not take it."""

    @property
    def used_bytes(self) -> int:
        """Of this month."""
        self._turn()
        return self._bytes

    def begin_life(self) -> None:
        """A process that counts from 0 is counted from now on."""
        self._seen_bytes, self._has_told = 0, False

    def note(self, bytes_so_far: int) -> None:
        """Of the present life. Less than before means that nobody can say any more."""
        self._turn()
        self._bytes += max(bytes_so_far - self._seen_bytes, 0)
        self._seen_bytes = max(bytes_so_far, self._seen_bytes)
        if self._bytes - self._saved_bytes >= SAVED_EVERY_BYTES:
            self.save()

    def save(self) -> None:
        """Write it down; a disk that does not take it is told of once a life."""
        if self._bytes == self._saved_bytes:
            return
        unfinished = self._path.with_suffix(".new")
        try:
            unfinished.write_text(json.dumps({"month": self._month, "bytes": self._bytes}), encoding="utf-8")
            unfinished.replace(self._path)
        except OSError as error:
            if not self._has_told:
                self._has_told = True
                logger.warning("this month's traffic cannot be written to %s: %s; free some space", self._path, error)
        self._saved_bytes = self._bytes

    def _turn(self) -> None:
        """A new month may have begun."""
        if (month := self._this_month()) != self._month:
            self._month, self._bytes, self._saved_bytes = month, 0, -1

    def _this_month(self) -> str:
        return f"{self._now():%Y-%m}"

    def _kept(self) -> tuple[str, int]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            return str(kept["month"]), max(int(kept["bytes"]), 0)
        except FileNotFoundError:
            return self._this_month(), 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s): this month's traffic is counted from 0", self._path, error)
            return self._this_month(), 0
