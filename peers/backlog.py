"""What a peer has said and nobody has read yet.

Who reads may stand still: a pager, a terminal that Ctrl+S has stopped, a busy program. A write waits for it, and
whoever writes with it.
"""

import os
import signal
import threading
from collections import Counter, deque
from typing import Protocol

BACKLOG_BYTES = 1 << 20
"""What is kept for a reader: some thousand lines, which a peer says in hours."""
PATIENCE_S = 0.2
"""For a burst of more than that, while its reader reads on; once, and not again before the reader does."""
LINE_END = b"\n"


class Place(Protocol):
    """Where it is read."""

    def put(self, data: bytes) -> None:
        """May wait for ever. What cannot be written is left unsaid."""

    def gap(self, num_lines: int) -> bytes:
        """What stands there for lines that are missing."""


class Backlog:
    """Kept for places that one reader reads, and written in order by a thread, which alone waits.

    Beyond ``limit_bytes`` the oldest lines are dropped; how many, their place is told when it is read on. What is drawn
    (ends without a line's end, as a panel does) is not counted.
    """

    def __init__(self, limit_bytes: int = BACKLOG_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._said: deque[tuple[Place, bytes]] = deque()
        self._held_bytes = 0
        self._missing: Counter[Place] = Counter()
        """Lines, since it was written to last."""
        self._changed = threading.Condition()  # may be entered again: what the garbage collector ends may say something
        self._is_writing = self._stands_still = self._is_closed = self._is_given_up = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Start the thread, which ends with ``close`` or the process."""
        threading.Thread(target=self._write, name="collab-backlog", daemon=True).start()

    def take(self, place: Place, data: bytes) -> bool:
        """Does not wait for the reader, but for ``PATIENCE_S`` when there is no room for the first time.

        Returns:
            False: nobody writes it here any more, so that whoever says it has to: all was written and it is closed, or
            this process was forked from the one that writes.
        """
        if os.getpid() != self._process:
            return False
        with self._changed:
            if self._is_closed:
                return self._is_given_up
            self._said.append((place, data))
            self._held_bytes += len(data)
            if not (self._stands_still or self._has_room()):
                self._stands_still = not self._changed.wait_for(self._has_room, PATIENCE_S)
            while not self._has_room() and len(self._said) > 1:  # the newest stays, however long it is
                dropped_at, dropped = self._oldest()
                if dropped.endswith(LINE_END):
                    self._missing[dropped_at] += dropped.count(LINE_END)
            self._changed.notify_all()
        return True

    def close(self, limit_s: float) -> None:
        """Wait until all is written, for ``limit_s`` at most; else the rest is dropped, and whatever is said later."""
        with self._changed:
            is_out = self._changed.wait_for(lambda: not self._said and not self._is_writing, limit_s)
            self._is_given_up = not is_out
            self._is_closed = True
            self._said.clear()
            self._changed.notify_all()

    def _write(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # others hear them, or the next program
        while True:
            with self._changed:
                self._is_writing = self._stands_still = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._said) or self._is_closed)
                if self._is_closed:
                    return
                self._is_writing = True
                place, data = self._oldest()
                num_missing = self._missing.pop(place, 0)
            if num_missing:
                place.put(place.gap(num_missing))
            place.put(data)

    def _has_room(self) -> bool:
        return self._held_bytes <= self._limit_bytes

    def _oldest(self) -> tuple[Place, bytes]:
        place, data = self._said.popleft()
        self._held_bytes -= len(data)
        return place, data
