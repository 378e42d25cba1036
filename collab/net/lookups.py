"""How long the directory is waited for: learned from what questions to it took.

All services of a peer ask through the one ``Lookups`` of its ports. A question costs some calls to keepers, one after
the other, and a keeper that has died costs a call of its own: so a call may take half of what a question may.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from collab.answers import Answers
from collab.errors import TimedOut

FIRST_S = 5.0
"""Of a question, before it is known what they take: ten round trips of 300 ms, and a dead keeper."""
SHORTEST_S = 2.0
"""Of any limit: two pauses of a busy machine, ours and a keeper's."""
LONGEST_S = 6.0
"""Of any limit: two of ours that are lost, and a third, fit into the life of a record (15 s, ``RECORD_LIFE_S``), and
whoever reads for longer takes no lease (``lease.TURN_S``). A swarm whose directory is slower does not hold together."""
CALL_FIRST_S, CALL_SHORTEST_S, CALL_LONGEST_S = FIRST_S / 2, SHORTEST_S / 2, LONGEST_S / 2
"""Of one call to a keeper: a dead one, and one that answers after it, fit into a question."""


class Lookups:
    """What one peer's questions took; a directory that did not answer has twice as long the next time."""

    def __init__(self) -> None:
        self._answers = Answers(loop_s, shortest_s=SHORTEST_S, longest_s=LONGEST_S)
        self._misses = 0
        self._missed_s = -math.inf

    @property
    def limit_s(self) -> float:
        """Of the next question."""
        return min(self._answers.limit_s(FIRST_S) * 2.0**self._misses, LONGEST_S)

    @contextmanager
    def asking(self) -> Iterator[float]:
        """For one question: how long it may take; takes note of what it took."""
        began_s, limit_s = loop_s(), self.limit_s
        try:
            yield limit_s
        except TimedOut:
            if began_s >= self._missed_s and limit_s < LONGEST_S:  # of those that wait together one counts
                self._misses += 1
            self._missed_s = loop_s()
            raise
        self._misses = 0
        if (took_s := loop_s() - began_s) <= limit_s:  # else it is we who stood still
            self._answers.add(took_s)


def loop_s() -> float:
    """Time of the running event loop, which is the clock's monotonic time."""
    return asyncio.get_running_loop().time()
