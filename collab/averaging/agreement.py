"""What a committed round is, and the chain that committed rounds form."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId, one_peer_id

MAX_MEMBERS = 2048
"""Of a group, which has to hold more than half of all trainers. COMMIT of so many is half of the largest message."""
MAX_MARK_CHARACTERS = 16
MAX_WEIGHT = float(1 << 53)
"""Samples; beyond this a float no longer counts them one by one, and a sum over a group stays far from Inf."""


@dataclass(frozen=True, kw_only=True)  # no slots: its digest is kept beside its fields
class CommitRecord:
    """The outcome of one round, equal on every member."""

    round_id: str
    epoch: int
    """Global steps taken before this round."""
    lineage: Lineage
    """History that the round continues."""
    contributors: tuple[tuple[PeerId, float], ...]
    """Peers whose data is in the mean with their weights (samples), in the group's order."""
    members: tuple[PeerId, ...]
    """Who held the result when it was put to the vote: they decide what follows it."""
    pieces: tuple[tuple[PeerId, int, int], ...]
    """Who reduced what: reducer, first element, element behind the last."""
    digests: tuple[str, ...]
    """SHA-256 of the encoded result of each piece."""
    gaps: tuple[tuple[PeerId, int, int], ...] = ()
    """Contributors of whom something is missing in the mean: peer, first element, element behind the last."""
    terms: str = ""
    """Mark of the organiser's orders that count for this step; empty: none does."""

    @property
    def weight(self) -> float:
        """Total weight behind the mean, in samples, as an average over its elements."""
        weights, num_elements = dict(self.contributors), self.num_elements
        missing = math.fsum(weights[peer] * (stop - start) / num_elements for peer, start, stop in self.gaps)
        return math.fsum(weights.values()) - missing

    @property
    def num_elements(self) -> int:
        """Length of the mean."""
        return max(stop for _, _, stop in self.pieces)

    def used_of(self, peer: PeerId) -> tuple[tuple[int, int], ...]:
        """(start, stop) of the elements whose mean has the data of ``peer`` in it."""
        if peer not in dict(self.contributors):
            return ()
        used, reached = [], 0
        for start, stop in sorted((start, stop) for name, start, stop in self.gaps if name == peer):
            if start > reached:
                used.append((reached, start))
            reached = max(reached, stop)
        if reached < self.num_elements:
            used.append((reached, self.num_elements))
        return tuple(used)

    def reduced_by(self, peer: PeerId) -> tuple[tuple[int, int], ...]:
        """(start, stop) of the elements that ``peer`` reduced."""
        return tuple((start, stop) for reducer, start, stop in self.pieces if reducer == peer)

    def next_lineage(self) -> Lineage:
        """History after this round: the digest of the previous one and of this record."""
        return self._next_lineage

    @cached_property
    def _next_lineage(self) -> Lineage:  # 1.3 ms for a thousand members, and asked for ten times a round
        return Lineage(hashlib.sha256(json.dumps(self.to_fields(), separators=(",", ":")).encode()).hexdigest())

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a message. What nobody has ordered is not in it, nor in the digest of it."""
        terms = {"terms": self.terms} if self.terms else {}
        return {
            "round_id": self.round_id,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "contributors": [list(item) for item in self.contributors],
            "members": list(self.members),
            "pieces": [list(piece) for piece in self.pieces],
            "digests": list(self.digests),
            "gaps": [list(gap) for gap in self.gaps],
            **terms,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any], known: "CommitRecord | None" = None) -> "CommitRecord":
        """From the plain values of a message.

        Args:
            known: a record that they most likely are; it is returned then, in an eighth of the time.

        Raises:
            BadMessage: something is missing or malformed.
        """
        if known is not None and fields == known.to_fields():
            return known
        message = Message("commit record", fields)
        record = cls(
            round_id=message.get("round_id", str),
            epoch=message.get("epoch", int),
            lineage=Lineage(message.get("lineage", str)),
            contributors=tuple((one_peer_id(peer), used) for peer, used in message.rows("contributors", str, float)),
            members=tuple(one_peer_id(peer) for peer in message.texts("members")),
            pieces=tuple((PeerId(peer), start, stop) for peer, start, stop in message.rows("pieces", str, int, int)),
            digests=message.texts("digests"),
            gaps=tuple((PeerId(peer), start, stop) for peer, start, stop in message.rows("gaps", str, int, int)),
            terms=message.get("terms", str) if "terms" in fields else "",
        )
        if max(len(record.contributors), len(record.members)) > MAX_MEMBERS:
            raise BadMessage(f"commit record names more peers than a group has, at most {MAX_MEMBERS}")
        if len(record.terms) > MAX_MARK_CHARACTERS:
            raise BadMessage(f"commit record with terms of {len(record.terms)} characters")
        if record.epoch < 0 or not record.members or len(set(record.members)) != len(record.members):
            raise BadMessage("commit record has a negative epoch, no member, or one twice")
        if not record.contributors or len(dict(record.contributors)) != len(record.contributors):
            raise BadMessage("commit record names no contributor, or one twice")
        if not all(0 < weight <= MAX_WEIGHT for _, weight in record.contributors):
            raise BadMessage("commit record has a weight that is not positive, absurd or not finite")
        record._check_elements()
        return record

    def _check_elements(self) -> None:
        reached = 0
        for _, start, stop in sorted(self.pieces, key=lambda piece: piece[1:]):
            if start != reached or stop <= start:
                raise BadMessage("commit record has pieces that do not cover the vector once")
            reached = stop
        if not reached or len(self.digests) != len(self.pieces):
            raise BadMessage(f"commit record has {len(self.digests)} digests of {len(self.pieces)} pieces")
        names = dict(self.contributors)
        if not are_gaps_of(self.gaps, names, reached):
            raise BadMessage("commit record has a gap of nobody, beyond the vector, or twice")
        missing = Counter[PeerId]()
        for peer, start, stop in self.gaps:
            missing[peer] += stop - start
        if all(missing[peer] == reached for peer in names):
            raise BadMessage("commit record has nothing of any contributor")


def are_gaps_of(gaps: Iterable[tuple[PeerId, int, int]], names: Collection[PeerId], num_elements: int) -> bool:
    """Whether ``gaps``, which came from another peer, are of ``names``, within the vector, and none twice."""
    reached = dict.fromkeys(names, 0)
    for peer, start, stop in sorted(gaps):
        if peer not in reached or not reached[peer] <= start < stop <= num_elements:
            return False
        reached[peer] = stop
    return True


def genesis(fingerprint: str, state_digest: str) -> Lineage:
    """First link of the chain: the run and its initial state."""
    return Lineage(hashlib.sha256(f"genesis:{fingerprint}:{state_digest}".encode()).hexdigest())


def local_lineage(lineage: Lineage, mean_digest: str) -> Lineage:
    """Link of a step taken without anybody else (strategy ``solo``)."""
    return Lineage(hashlib.sha256(f"local:{lineage}:{mean_digest}".encode()).hexdigest())
