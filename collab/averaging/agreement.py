"""What a committed round is, and the chain that committed rounds form."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId

MAX_WEIGHT = float(1 << 53)
"""Samples; beyond this a float no longer counts them one by one, and a sum over a group stays far from Inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """The outcome of one round, equal on every member."""

    round_id: str
    epoch: int
    """Global steps taken before this round."""
    lineage: Lineage
    """History that the round continues."""
    contributors: tuple[tuple[PeerId, float], ...]
    """Peers whose data is in the mean with their weights (samples), in the group's order."""
    digests: tuple[str, ...]
    """SHA-256 of the encoded result of each span, in the order of the vector."""

    @property
    def weight(self) -> float:
        """Total weight behind the mean, in samples."""
        return math.fsum(weight for _, weight in self.contributors)

    def next_lineage(self) -> Lineage:
        """History after this round: the digest of the previous one and of this record."""
        content = [
            self.lineage,
            self.round_id,
            self.epoch,
            [list(item) for item in self.contributors],
            list(self.digests),
        ]
        return Lineage(hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest())

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a message."""
        return {
            "round_id": self.round_id,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "contributors": [list(item) for item in self.contributors],
            "digests": list(self.digests),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "CommitRecord":
        """From the plain values of a message.

        Raises:
            BadMessage: something is missing or malformed.
        """
        message = Message("commit record", fields)
        record = cls(
            round_id=message.get("round_id", str),
            epoch=message.get("epoch", int),
            lineage=Lineage(message.get("lineage", str)),
            contributors=tuple((PeerId(peer), weight) for peer, weight in message.rows("contributors", str, float)),
            digests=tuple(message.get("digests", list)),
        )
        if record.epoch < 0 or not all(isinstance(digest, str) for digest in record.digests):
            raise BadMessage("commit record has a negative epoch, or a digest that is no text")
        if not record.contributors or len(dict(record.contributors)) != len(record.contributors):
            raise BadMessage("commit record names no contributor, or one twice")
        if not all(0 < weight <= MAX_WEIGHT for _, weight in record.contributors):
            raise BadMessage("commit record has a weight that is not positive, absurd or not finite")
        return record


def genesis(fingerprint: str, state_digest: str) -> Lineage:
    """First link of the chain: the run and its initial state."""
    return Lineage(hashlib.sha256(f"genesis:{fingerprint}:{state_digest}".encode()).hexdigest())


def local_lineage(lineage: Lineage, mean_digest: str) -> Lineage:
    """Link of a step taken without anybody else (strategy ``solo``)."""
    return Lineage(hashlib.sha256(f"local:{lineage}:{mean_digest}".encode()).hexdigest())
