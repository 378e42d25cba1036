"""What a peer has sent and taken this month, over all its lives: for owners whose line is paid by the gigabyte."""

import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from collab.durable import replace_file

logger = logging.getLogger(__name__)

BYTES_PER_GB = 1e9
SAVED_EVERY_BYTES = 10_000_000
"""What a power cut may leave uncounted; each time the disk is waited for."""
KEPT_MONTHS = 6
"""The last ones, by name. A clock may be years slow until somebody sets it (an empty battery of the board): what is
counted by it does not take the place of what was counted before.
"""


def local_time() -> datetime:
    """On this machine's clock, where it stands."""
    return datetime.now().astimezone()


class MonthlyTraffic:
    """A count that begins anew with each month, kept on the disk. Any thread may ask, add and save."""

    def __init__(self, path: Path, now: Callable[[], datetime] = local_time) -> None:
        self._path, self._now = path, now
        self._months = self._kept()
        """Bytes, by name."""
        self._counted = self._saved = 0
        """Bytes of this process, whichever month they were in, and those of them that are on the disk."""
        self._adding, self._writing = threading.Lock(), threading.Lock()
        self._seen_bytes = 0
        self._has_told = False
        """Of a disk that does not take it."""

    @property
    def used_bytes(self) -> int:
        """Of this month."""
        return self._months.get(self._this_month(), 0)

    @property
    def months(self) -> dict[str, int]:
        """Bytes, by name."""
        return dict(self._months)

    @property
    def is_due(self) -> bool:
        """Whether so much is not on the disk that it is time to save."""
        return self._counted - self._saved >= SAVED_EVERY_BYTES

    def carry_on(self, months: dict[str, int]) -> None:
        """As the count of this process before its program began anew, of which a full disk may have taken less."""
        with self._adding:
            for month, num_bytes in months.items():
                missing = max(num_bytes - self._months.get(month, 0), 0)
                self._months[month] = self._months.get(month, 0) + missing
                self._counted += missing

    def begin_life(self) -> None:
        """A disk that does not take it is told of anew."""
        self._has_told = False

    def begin_daemon(self) -> None:
        """A process that counts from 0 is counted from now on."""
        self._seen_bytes = 0

    def note(self, bytes_so_far: int) -> None:
        """Of the present daemon. Less than before means that nobody can say any more."""
        self.add(max(bytes_so_far - self._seen_bytes, 0))
        self._seen_bytes = max(bytes_so_far, self._seen_bytes)

    def add(self, more_bytes: int) -> None:
        """Of what ``note`` does not see."""
        with self._adding:
            month = self._this_month()
            self._months[month] = self._months.get(month, 0) + more_bytes
            self._counted += more_bytes

    def save(self) -> None:
        """Write it down, and wait for the disk; one that does not take it is told of once a life."""
        with self._writing:
            counted, month, months = self._counted, self._this_month(), dict(self._months)
            if counted == self._saved:
                return
            self._saved = counted
            this, names = months.pop(month, 0), sorted(months)[-KEPT_MONTHS:]
            kept = {"month": month, "bytes": this, "others": {name: months[name] for name in names}}
            try:
                replace_file(self._path, json.dumps(kept).encode())
            except OSError as error:
                if not self._has_told:
                    self._has_told = True
                    text = "this month's traffic cannot be written to %s: %s; free some space"
                    logger.warning(text, self._path, error)

    def _this_month(self) -> str:
        return f"{self._now():%Y-%m}"

    def _kept(self) -> dict[str, int]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            months = {**kept.get("others", {}), kept["month"]: kept["bytes"]}  # earlier versions kept one
            return {str(name): max(int(number), 0) for name, number in months.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read (%s): this month's traffic is counted from 0", self._path, error)
            return {}
