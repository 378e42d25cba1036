"""What a peer tells whoever watches it of the rounds that it is in."""

import logging
from collections.abc import Mapping

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed, Outcome
from collab.averaging.link_load import planned_bytes
from collab.averaging.messages import Group, Join
from collab.errors import BadMessage
from collab.metrics.backbone_events import RoundPlanned
from collab.metrics.records import Notice, PeerRefused, Phase, PhaseReached, RoundEnded
from collab.ports import Ports
from collab.types import PeerId

logger = logging.getLogger(__name__)

SPLIT_HINT = (
    "this peer goes on with what most others have; if it comes again, keep the logs of all peers: a peer lies about "
    "its votes, or most of the swarm was unreachable for minutes and went on without each other"
)


class News:
    """Speaks for one peer."""

    def __init__(self, ports: Ports) -> None:
        self._clock, self._observer = ports.clock, ports.observer

    def reach(self, phase: Phase, epoch: int) -> None:
        """A moment of a round."""
        self._observer.observe(PhaseReached(at_s=self._clock.now(), phase=phase, epoch=epoch))

    def planned(self, group: Group, joins: Mapping[PeerId, Join]) -> None:
        """We lead a round with these members."""
        rates = {peer: (join.up_bytes_per_s, join.down_bytes_per_s) for peer, join in joins.items()}
        planned = RoundPlanned(
            at_s=self._clock.now(),
            epoch=group.epoch,
            round_id=group.round_id,
            expected_s=group.expected_s,
            links=tuple((member.peer, *rates[member.peer], member.codec) for member in group.members),
            moves=tuple((peer, up, down) for peer, (up, down) in planned_bytes(group).items()),
        )
        self._observer.observe(planned)

    def refused(self, leader: PeerId, epoch: int, error: BadMessage) -> None:
        """A leader has begun a round that we cannot go into."""
        reason = getattr(error, "reason", "bad_begin")
        logger.info("a round is declined leader=%s epoch=%d reason=%s text=%s", leader, epoch, reason, error.message)
        refused = PeerRefused(at_s=self._clock.now(), epoch=epoch, peer=leader, reason=reason, text=error.message)
        self._observer.observe(refused)

    def ended(self, group: Group, outcome: Outcome, started_s: float) -> None:
        """One attempt is over that began at ``started_s``."""
        record = outcome.record if isinstance(outcome, Committed) else None
        ended = RoundEnded(
            at_s=self._clock.now(),
            epoch=group.epoch,
            round_id=group.round_id,
            committed=record is not None,
            contributors=len(record.contributors) if record else 0,
            samples=record.weight if record else 0.0,
            seconds=self._clock.monotonic() - started_s,
            reason="" if record else getattr(outcome, "text", ""),
        )
        self._observer.observe(ended)

    def split(self, ours: CommitRecord, other: CommitRecord) -> str:
        """We hold the result of one round, and hear that another one continued the same history; the same in words."""
        text = (
            f"two rounds were committed for epoch {ours.epoch}: we hold {ours.round_id}, "
            f"of {len(ours.members)} members, and hear of {other.round_id}, of {len(other.members)}"
        )
        self.split_in_words(text)
        return text

    def split_in_words(self, text: str) -> None:
        """The same, known only as it was told."""
        logger.error("history is split: %s", text)
        self._observer.observe(Notice(at_s=self._clock.now(), text=text, hint=SPLIT_HINT, is_problem=True))
