"""The progress board: what all peers say about themselves, read together.

``SwarmView`` is pure; ``ProgressBoard`` publishes and refreshes it through the directory.
"""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from collab.errors import BadMessage, NetworkError
from collab.ports import Ports
from collab.swarm.identity import Identity
from collab.swarm.records import PeerRecord, PeerState, pack_record, unpack_record
from collab.swarm.statutes import Statutes
from collab.types import Lineage, PeerId, Role

logger = logging.getLogger(__name__)

RECORD_LIFE_S = 15.0
"""A peer that has said nothing for this long is gone."""
HEARTBEAT_S = 4.0
"""A third of the life: two lost stores in a row do not make a peer look dead."""
DIRECTORY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SwarmView:
    """All fresh records at one moment."""

    records: tuple[PeerRecord, ...]
    """Of peers that are alive, sorted by peer id."""
    at_s: float
    """Swarm time."""
    left: Mapping[PeerId, int] = field(default_factory=dict)
    """Who has just said goodbye, and the epoch in its last word."""

    def trainers(self, epoch: int, lineage: Lineage) -> tuple[PeerRecord, ...]:
        """Trainers that train on this very history."""
        return tuple(record for record in self.all_trainers() if (record.epoch, record.lineage) == (epoch, lineage))

    def all_trainers(self) -> tuple[PeerRecord, ...]:
        """Trainers that hold a state."""
        return tuple(r for r in self.records if r.role is Role.TRAINER and r.state is PeerState.TRAINING)

    def helpers(self) -> tuple[PeerRecord, ...]:
        """Auxiliary and backbone peers."""
        return tuple(record for record in self.records if record.role is not Role.TRAINER)

    def is_over(self, until_epoch: int) -> bool:
        """Whether more peers say that they have reached the last epoch, or left there, than train towards it still."""
        epochs = [*(record.epoch for record in self.all_trainers()), *self.left.values()]
        at_work = sum(record.epoch < until_epoch for record in self.all_trainers())
        return sum(epoch >= until_epoch for epoch in epochs) > at_work

    def samples(self, epoch: int, lineage: Lineage) -> int:
        """Accumulated by all trainers of one history towards its next step, as they last said."""
        return sum(record.samples for record in self.trainers(epoch, lineage))

    def seconds_to(self, target: int, epoch: int, lineage: Lineage) -> float:
        """Predicted wait until the trainers have ``target`` samples: what they said, carried on at their speeds."""
        trainers = self.trainers(epoch, lineage)
        speed = sum(record.samples_per_s for record in trainers)
        expected = sum(r.samples + r.samples_per_s * max(0.0, self.at_s - r.said_at) for r in trainers)
        if expected >= target:
            return 0.0
        return (target - expected) / speed if speed > 0 else math.inf

    def consensus(self) -> tuple[int, Lineage] | None:
        """Epoch and lineage that most trainers hold; of equally many the later epoch. None without trainers."""
        votes = Counter((record.epoch, record.lineage) for record in self.all_trainers())
        if not votes:
            return None
        return max(votes, key=lambda history: (votes[history], history[0], history[1]))

    def is_at_rest(self) -> bool:
        """Whether no trainer has gone on since its process was started, as after everybody died."""
        return not any(record.has_seat for record in self._holders() if record.role is Role.TRAINER)

    def newest(self) -> tuple[int, Lineage] | None:
        """Epoch and lineage of the newest state that anybody says to hold, on its way into the swarm or not."""
        return max(((record.epoch, record.lineage) for record in self._holders()), default=None)

    def _holders(self) -> list[PeerRecord]:
        """Trainers and backbones that hold a state and stay."""
        return [r for r in self.records if r.lineage and r.state is not PeerState.LEAVING]

    def leaders(self, epoch: int, lineage: Lineage) -> list[PeerId]:
        """Peers to ask to lead a round, best first: backbones, then the others in an order drawn from the round."""

        def rank(record: PeerRecord) -> tuple[bool, bytes]:
            return (
                record.role is not Role.BACKBONE,
                hashlib.sha256(f"{epoch}:{lineage}:{record.peer}".encode()).digest(),
            )

        able = [r for r in self.records if r.can_be_dialled and r.state in (PeerState.SERVING, PeerState.TRAINING)]
        able = [r for r in able if r.role is not Role.TRAINER or (r.epoch, r.lineage) == (epoch, lineage)]
        return [record.peer for record in sorted(able, key=rank)]


class ProgressBoard:
    """Publishes our record and reads everybody's."""

    def __init__(self, ports: Ports, identity: Identity, fingerprint: str, statutes: Statutes | None = None) -> None:
        """
        Args:
            statutes: whose word counts; None: everybody's, as for one who only looks.
        """
        self._ports, self._identity, self._fingerprint, self._statutes = ports, identity, fingerprint, statutes
        self._key = f"{fingerprint[:32]}.peers"
        self._latest: PeerRecord | None = None
        self._published_s = -math.inf
        self._view = SwarmView((), 0.0)

    @property
    def view(self) -> SwarmView:
        """What the last refresh saw, our own newest word included."""
        return self._view

    @property
    def since_published_s(self) -> float:
        """Seconds since our record was last stored."""
        return self._ports.clock.monotonic() - self._published_s

    async def publish(self, record: PeerRecord) -> None:
        """Store our record; a directory that does not answer is logged, and the next heartbeat tries again."""
        if self._statutes is not None:
            record = self._statutes.stamped(record)
        self._latest = record
        self._published_s = self._ports.clock.monotonic()
        try:
            await self._ports.directory.store(
                self._key,
                record.peer,
                pack_record(record, self._identity),
                expires_at=self._ports.clock.now() + RECORD_LIFE_S,
                timeout_s=DIRECTORY_TIMEOUT_S,
            )
        except NetworkError as error:
            logger.warning("the swarm does not hear us: %s", error)

    async def refresh(self) -> SwarmView:
        """Read everybody's records; keeps the previous view when the directory does not answer."""
        try:
            entries = await self._ports.directory.get(self._key, timeout_s=DIRECTORY_TIMEOUT_S)
        except NetworkError as error:
            logger.warning("the swarm's records cannot be read: %s", error)
            entries = {}
        now = self._ports.clock.now()
        records = {record.peer: record for record in self._view.records if is_fresh(record, now)} if not entries else {}
        left: dict[PeerId, int] = {} if entries else dict(self._view.left)
        for subkey, entry in entries.items():
            try:
                record = unpack_record(entry.value, PeerId(subkey))
            except BadMessage as error:
                logger.debug("record refused peer=%s reason=%s", subkey, error)
                continue
            if record.fingerprint == self._fingerprint and is_fresh(record, now) and self._counts(record):
                if record.state is PeerState.LEFT:
                    left[record.peer] = record.epoch
                else:
                    records[record.peer] = record
        if self._latest is not None and self._latest.state is not PeerState.LEFT:
            records[self._latest.peer] = self._latest
        left = {peer: epoch for peer, epoch in left.items() if peer not in records}
        self._view = SwarmView(tuple(records[peer] for peer in sorted(records)), now, left)
        return self._view

    def voice_of(self, peer: PeerId) -> PeerId:
        """Under which a peer counts where identities are counted: its invite, else itself."""
        return self._statutes.admission.voice_of(peer) if self._statutes is not None else peer

    def is_vouched_backbone(self, peer: PeerId) -> bool:
        """Whether the owner has said that this is a backbone of the run."""
        return self._statutes is not None and self._statutes.admission.is_vouched_backbone(peer)

    @property
    def era(self) -> str:
        """Of the states that count."""
        return self._statutes.mandate.era if self._statutes is not None else ""

    def _counts(self, record: PeerRecord) -> bool:
        return self._statutes is None or self._statutes.counts(record)


def is_fresh(record: PeerRecord, now: float) -> bool:
    """Whether it is not older than a record's life, nor from a future that no clock error explains."""
    return abs(now - record.said_at) <= RECORD_LIFE_S
