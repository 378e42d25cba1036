"""Streams that rounds are through with, for the next ones: opening one costs a round trip, and work in two daemons."""

from collections import OrderedDict
from collections.abc import Callable

from collab.net.base import Stream
from collab.types import PeerId

UNUSED_S = 600.0
"""For which a stream is kept. Who is gone does not come for it, and runs whose rounds take longer can open new ones."""


class IdleStreams:
    """By the peer that serves them; any number of each, as many as were needed at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: monotonic seconds.
        """
        self._clock = clock
        self._kept: OrderedDict[PeerId, list[Stream]] = OrderedDict()
        """In the order in which something was kept of each peer last."""
        self._kept_s: dict[PeerId, float] = {}
        """When that was."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, stream: Stream) -> None:
        """Until ``take``, or until nothing of its peer has been kept for too long."""
        now_s = self._clock()
        self._kept.setdefault(stream.remote, []).append(stream)
        self._kept.move_to_end(stream.remote)
        self._kept_s[stream.remote] = now_s
        while now_s - self._kept_s[oldest := next(iter(self._kept))] > UNUSED_S:
            del self._kept_s[oldest]
            for unused in self._kept.pop(oldest):
                unused.close()

    def take(self, peer: PeerId) -> Stream | None:
        """One of ``peer``, if there is one; it may have been closed since."""
        streams = self._kept.get(peer)
        return streams.pop() if streams else None
