"""How long other peers are waited for outside rounds: learned from what questions to them took.

Orders, coverage, who has contributed: all services of a peer ask and answer through the one ``Errands`` of its ports.
What is asked before a peer knows anything of its swarm (which version, which run, how it can be reached) has nothing to
learn from; its limits stand beside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cachetools import TTLCache

from collab.answers import Answers
from collab.errors import TimedOut
from collab.net.lookups import loop_s
from collab.types import PeerId

FIRST_S = 5.0
"""Of one step of an errand, before it is known what they take: ten round trips of 300 ms, and the pauses of two busy
machines."""
SHORTEST_S = 3.0
"""Of any limit: two pauses of a busy machine, theirs and ours, and a queue that was not there before."""
LONGEST_S = 30.0
"""Of any limit: the largest answer that comes as one message (128 KiB of coverage) over a line of 35 kbit/s."""
MOST_MISSED, FORGOTTEN_S = 256, 600.0
"""Peers that are known not to have answered, and for how long after they were asked last."""


class Errands:
    """What one peer's questions to others took; one that did not answer has twice as long the next time."""

    def __init__(self) -> None:
        self._answers = Answers(loop_s, shortest_s=SHORTEST_S, longest_s=LONGEST_S)
        self._misses: TTLCache[PeerId, int] = TTLCache(MOST_MISSED, FORGOTTEN_S, loop_s)

    def limit_s(self, peer: PeerId | None = None) -> float:
        """For opening a stream to ``peer``, for taking a message, and for the answer to it; None: whoever asks us."""
        limit_s = self._answers.limit_s(FIRST_S)
        return min(limit_s * 2.0 ** self._misses.get(peer, 0), LONGEST_S) if peer is not None else limit_s

    @contextmanager
    def asking(self, peer: PeerId) -> Iterator[float]:
        """For one errand: how long each step of it may take; takes note of what it took."""
        began_s, limit_s = loop_s(), self.limit_s(peer)
        try:
            yield limit_s
        except TimedOut:
            if limit_s < LONGEST_S:
                self._misses[peer] = self._misses.get(peer, 0) + 1
            raise
        self._misses.pop(peer, None)
        if (took_s := loop_s() - began_s) <= limit_s:  # else it had several steps, or it is we who stood still
            self._answers.add(took_s)
