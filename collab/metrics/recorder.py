"""Events on their way into a backbone's store: written once a second, beside the event loop."""

import asyncio
import logging
import sqlite3
import threading

from collab.metrics.records import Event
from collab.metrics.store import MetricsStore, matters
from collab.ports import Compute

logger = logging.getLogger(__name__)

WRITE_S = 1.0
TRY_AGAIN_S = 10.0
"""After the disk did not take something."""
MOST_WAITING = 5_000
"""Events that wait for a disk that takes none; of more, the oldest are lost."""


class Recorder:
    """Implements ``Sink``. That the disk does not take anything is told once; it is written later."""

    def __init__(self, compute: Compute, store: MetricsStore) -> None:
        self._compute, self._store = compute, store
        self._waiting: list[Event] = []
        """Appended to by the event loop, shortened by whoever holds the lock."""
        self._lock = threading.Lock()
        self._is_failing = False

    def observe(self, event: Event) -> None:
        if matters(event):
            self._waiting.append(event)

    async def run(self) -> None:
        """Write what has come, until cancelled."""
        while True:
            await asyncio.sleep(TRY_AGAIN_S if self._is_failing else WRITE_S)
            await self._compute.beside(self.write)

    def write(self) -> None:
        """Write what has come. Blocks; from any thread."""
        with self._lock:
            events = self._waiting[:]
            if not events:
                return
            try:
                self._store.write(events)
            except sqlite3.OperationalError as error:
                if not self._is_failing:  # said once, not every time
                    logger.warning("metrics cannot be stored: %s; free some space, training goes on meanwhile", error)
                self._is_failing = True
                del self._waiting[:-MOST_WAITING]
            except Exception:  # whatever an event holds, the backbone goes on
                if not self._is_failing:
                    logger.exception("metrics of %d events are lost, please report this", len(events))
                self._is_failing = True
                del self._waiting[: len(events)]
            else:
                self._is_failing = False
                del self._waiting[: len(events)]
