"""Proof that a round is history: votes for its record, signed by a quorum of those who decide.

A vote is signed over the run, the step, the ballot, those who decide as the voter knew them, and the digest of the
whole record. So it proves nothing about another run, step, attempt or record, and nobody can call fewer voters a quorum
than the voters did. What a certificate does not prove is in docs/protocol.md.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from collab.averaging.agreement import MAX_MEMBERS, CommitRecord
from collab.averaging.ballots import Ballot, Electorate
from collab.averaging.seats import ballot_from, ballot_to_row
from collab.errors import BadCertificate, BadMessage
from collab.net.wire import Message
from collab.types import PeerId

DOMAIN = "collab/vote/1"
"""So that no other text that a peer signs is a vote."""
SIGNATURE_BYTES = 64

IsSignedBy = Callable[[PeerId, bytes, bytes], bool]
"""Whether a peer made a signature (last) over some bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The votes that decided."""

    ballot: Ballot
    electors: tuple[PeerId, ...]
    """Who decides, as the voters knew them."""
    votes: tuple[tuple[PeerId, bytes], ...]
    """Voter and signature."""

    @classmethod
    def of(cls, ballot: Ballot, electorate: Electorate, signatures: Mapping[PeerId, bytes]) -> "Certificate":
        """With the first votes that are a quorum: who checks them pays for each."""
        votes: dict[PeerId, bytes] = {}
        for peer in electorate.members:
            if peer in signatures and not electorate.has_quorum(votes.keys()):
                votes[peer] = signatures[peer]
        return cls(ballot=ballot, electors=electorate.members, votes=tuple(votes.items()))

    @property
    def voters(self) -> frozenset[PeerId]:
        """Whose votes these are."""
        return frozenset(peer for peer, _ in self.votes)

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a message."""
        return {
            "ballot": ballot_to_row(self.ballot),
            "electors": list(self.electors),
            "votes": [list(vote) for vote in self.votes],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Certificate":
        """From the plain values of a message; whether it proves anything is ``check``'s question.

        Raises:
            BadMessage: something is missing or malformed, or there is more of it than anybody should check.
        """
        message = Message("certificate", fields)
        ballot = ballot_from(message, "ballot")
        electors = tuple(PeerId(peer) for peer in message.texts("electors"))
        votes = tuple((PeerId(peer), signature) for peer, signature in message.rows("votes", str, bytes))
        if ballot is None or not 0 < len(electors) <= MAX_MEMBERS or len(set(electors)) != len(electors):
            raise BadMessage("certificate without a ballot or electors, with too many of them, or with one twice")
        if not 0 < len(votes) <= len(electors) // 2 + 1:
            raise BadMessage(f"certificate with {len(votes)} votes of {len(electors)} electors")
        if any(len(signature) != SIGNATURE_BYTES for _, signature in votes):
            raise BadMessage(f"certificate with a signature that is not {SIGNATURE_BYTES} bytes long")
        return cls(ballot=ballot, electors=electors, votes=votes)


@dataclass(frozen=True, slots=True)
class Certified:
    """A record with the proof that it is history: what peers tell each other, and remember."""

    record: CommitRecord
    certificate: Certificate

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a message."""
        return {"record": self.record.to_fields(), "certificate": self.certificate.to_fields()}

    @classmethod
    def from_message(cls, message: Message, known: CommitRecord | None = None) -> "Certified":
        """From a message that has them among its fields.

        Args:
            known: see ``CommitRecord.from_fields``.

        Raises:
            BadMessage: something is missing or malformed.
        """
        record = CommitRecord.from_fields(message.get("record", dict), known)
        if not message.fields.get("certificate"):
            raise BadCertificate("no_certificate", f"{message.kind} names a round as history and proves nothing")
        return cls(record, Certificate.from_fields(message.get("certificate", dict)))


def ballot_paper(fingerprint: str, electorate: Electorate, ballot: Ballot, record: CommitRecord) -> bytes:
    """What a voter signs: the same bytes on every peer."""
    electors = hashlib.sha256(json.dumps(electorate.members, separators=(",", ":")).encode()).hexdigest()
    step = [fingerprint, record.epoch, record.lineage, electors]
    vote = [ballot.number, ballot.proposer, record.next_lineage()]
    return json.dumps([DOMAIN, *step, *vote], separators=(",", ":")).encode()


def check(certified: Certified, fingerprint: str, is_signed_by: IsSignedBy) -> None:
    """Check that a quorum of the certificate's own electors voted for its record; who may be one is another question.

    Takes about 0.14 ms a vote, 0.14 s for the quorum of the largest group: not for the event loop.

    Raises:
        BadCertificate: they did not, or nobody can know it from this.
    """
    record, certificate = certified.record, certified.certificate
    electorate = Electorate(certificate.electors)
    if len(certificate.voters) != len(certificate.votes):
        raise BadCertificate("vote_repeated", f"somebody votes twice for round {record.round_id}")
    if strangers := certificate.voters - set(certificate.electors):
        raise BadCertificate("no_elector", f"{min(strangers)} votes for round {record.round_id} and is no elector")
    if not electorate.has_quorum(certificate.voters):
        text = f"{len(certificate.votes)} votes of {len(certificate.electors)} electors decide nothing"
        raise BadCertificate("too_few_votes", text)
    paper = ballot_paper(fingerprint, electorate, certificate.ballot, record)
    for peer, signature in certificate.votes:
        if not is_signed_by(peer, paper, signature):
            raise BadCertificate("not_signed", f"{peer} has not signed a vote for round {record.round_id}")
