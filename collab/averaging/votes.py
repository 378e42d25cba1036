"""Votes of one ballot as its leader hears them: checked, and kept as the proof of what they decide."""

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Vote
from collab.averaging.certificates import Certificate, Certified
from collab.averaging.electors import electorate_of
from collab.averaging.messages import Group
from collab.averaging.notary import Notary
from collab.averaging.seats import RecordSeat, seat_from_fields
from collab.averaging.steps import Prepare
from collab.errors import BadCertificate
from collab.net.wire import Message
from collab.types import PeerId


class Votes:
    """One round's signatures; whether they are enough is the course's question."""

    def __init__(self, group: Group, notary: Notary) -> None:
        self._instance, self._electorate, self._notary = (group.epoch, group.lineage), electorate_of(group), notary
        self._asked: Prepare | None = None
        self._paper = b""
        """What is signed in a vote for what was asked."""
        self._signatures: dict[PeerId, bytes] = {}
        self._known: Certified | None = None
        """What an elector has proved to be decided already."""

    def ask_for(self, asked: Prepare) -> None:
        """From now on votes are for this."""
        self._asked = asked
        self._paper = self._notary.ballot_paper(self._electorate, asked.ballot, asked.record)

    async def seat_of(self, peer: PeerId, message: Message) -> RecordSeat | None:
        """The seat in a member's message; what it says was decided is proved.

        Raises:
            BadMessage: it is malformed, or nothing proves it.
        """
        asked = self._asked.record if self._asked is not None else None
        seat = seat_from_fields(message.get("seat", dict), asked)
        if seat is not None and seat.decided is not None:
            fields = {"record": seat.decided.to_fields(), "certificate": message.get("certificate", dict)}
            known = await self._notary.examine(peer, Message(message.kind, fields), self._instance, self._electorate)
            self._known = self._known or known
        return seat

    async def voter_of(self, peer: PeerId, message: Message) -> RecordSeat | None:
        """The seat in a member's answer to PREPARE; if it is a vote for what was asked, it is signed.

        Raises:
            BadMessage: see ``seat_of``, or the vote is not signed.
        """
        seat, asked = await self.seat_of(peer, message), self._asked
        if seat is None or asked is None or peer not in self._electorate.members:
            return seat
        if seat.vote == Vote(asked.ballot, asked.record):
            signature = message.get("signature", bytes)
            if not self._notary.is_signed(peer, self._paper, signature):
                raise BadCertificate("not_signed", f"{peer} has not signed its vote")
            self._signatures[peer] = signature
        return seat

    def certify(self, record: CommitRecord) -> Certified:
        """What was decided, with the votes that did: of this ballot, or of an earlier one."""
        if self._known is not None and self._known.record == record:
            return self._known
        if self._asked is None:
            raise ValueError(f"round {record.round_id} is decided, and nobody has voted")
        return Certified(record, Certificate.of(self._asked.ballot, self._electorate, self._signatures))
