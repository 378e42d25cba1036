"""Whom this peer refused, why, how often and when: small for ever, however many peers there are, and safe to show."""

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass

from collab.metrics.records import OTHER, Event, PeerRefused, safe_reason
from collab.ports import Clock, Observer
from collab.types import PeerId

logger = logging.getLogger(__name__)

MAX_PEERS = 256
"""Remembered; then whoever has been quiet for longest is forgotten. About 0.2 MB."""
MAX_REASONS = 16
"""Of one peer; a round's members can be accused in any words, and what is beyond counts as ``OTHER``."""
SAY_AGAIN_S = 600.0
"""One peer and reason is spoken of no more often."""
LINES_PER_MINUTE = 30
"""Of all together: whoever comes under ever new names does not fill the disk. 4 MB of log a day."""
HARMLESS = frozenset(
    {
        *("late", "silent", "stalled", "slow_sender", "slow_reducer", "cut_off", "over"),
        *("member_lost", "sender_lost", "unknown_round", "nobody_left", "StreamClosed", "TimedOut", "PeerUnreachable"),
        "declined",
    }
)
"""What happens to honest peers on bad days: counted, and nobody is warned."""
_ODD = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One peer and reason; texts are safe to print."""

    peer: PeerId
    reason: str
    count: int
    first_at_s: float
    """Swarm time."""
    last_at_s: float


@dataclass(slots=True)
class _Count:
    reason: str
    first_at_s: float
    last_at_s: float
    count: int = 0
    epoch: int = -1
    """Of the last one; -1: none is known."""
    said_s: float | None = None


class Refusals:
    """Implements ``Observer``: counts what is refused, says so now and then, and passes everything else on."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer, self._clock = observer, clock
        self._peers: OrderedDict[PeerId, tuple[_Count, ...]] = OrderedDict()
        """Most are strangers that were refused once: a tuple takes a quarter of a dictionary's memory."""
        self._minute_s, self._lines = 0.0, 0

    def observe(self, event: Event) -> None:
        """Refusals without an epoch, of which there can be any number, are passed on only as often as they are said."""
        if not isinstance(event, PeerRefused):
            self._observer.observe(event)
            return
        peer, count = self._counted(event)
        is_said = count is not None and self._may_say(count)
        if is_said and count is not None:
            level = logging.INFO if count.reason in HARMLESS else logging.WARNING
            logger.log(level, "peer is refused peer=%s reason=%s times=%d", peer, count.reason, count.count)
        if is_said or event.epoch >= 0:
            self._observer.observe(event)

    def rows(self) -> list[Refused]:
        """What is remembered, most first. Any thread may ask, as a panel's does, while the loop counts on."""
        rows = [
            Refused(peer=peer, reason=c.reason, count=c.count, first_at_s=c.first_at_s, last_at_s=c.last_at_s)
            for peer, counts in list(self._peers.items())
            for c in counts
        ]
        return sorted(rows, key=lambda row: (-row.count, row.peer, row.reason))

    def _counted(self, event: PeerRefused) -> tuple[PeerId, _Count | None]:
        """Count one; None: it was counted before, for a round's reducers and its leader both tell of an offence."""
        peer = safe_peer(event.peer)
        count = self._count_of(peer, safe_reason(event.reason), event.at_s)
        count.last_at_s = event.at_s
        if event.epoch >= 0 and event.epoch == count.epoch:
            return peer, None
        count.count += 1
        count.epoch = max(event.epoch, count.epoch)
        return peer, count

    def _count_of(self, peer: PeerId, reason: str, at_s: float) -> _Count:
        counts = self._peers.setdefault(peer, ())
        self._peers.move_to_end(peer)
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        by_reason = {count.reason: count for count in counts}
        if reason not in by_reason and len(counts) >= MAX_REASONS - 1:
            reason = OTHER
        if reason not in by_reason:
            by_reason[reason] = _Count(reason, at_s, at_s)
            self._peers[peer] = (*counts, by_reason[reason])
        return by_reason[reason]

    def _may_say(self, count: _Count) -> bool:
        now_s = self._clock.monotonic()
        if count.said_s is not None and now_s - count.said_s < SAY_AGAIN_S:
            return False
        if now_s - self._minute_s >= 60.0:
            self._minute_s, self._lines = now_s, 0
        if self._lines >= LINES_PER_MINUTE:
            return False
        self._lines += 1
        count.said_s = now_s
        return True


def safe_peer(text: str) -> PeerId:
    """A peer's name as it can be shown: short, and without anything that a terminal would obey."""
    return PeerId(_ODD.sub("?", text[:64]))
