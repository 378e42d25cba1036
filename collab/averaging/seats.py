"""This peer's votes: what it has promised and voted about what follows recent histories, while it lives."""

from collections import OrderedDict
from typing import Any

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Acceptor, Ballot, Electorate, Vote, seat
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId

REMEMBERED = 16
"""Instances, and histories that we helped to make; nobody asks for what is older."""

Instance = tuple[int, Lineage]
"""Epoch and lineage whose next step is decided."""
RecordBallot = Ballot
RecordSeat = Acceptor[CommitRecord]


class Seats:
    """One seat for each instance that this peer may vote in.

    Who votes about what follows a history are the members of the round that made it. A peer that was in that round in
    an earlier life may have voted since, and has forgotten: it has no seat.
    """

    def __init__(self) -> None:
        self._seats: OrderedDict[Instance, RecordSeat] = OrderedDict()
        self._made: OrderedDict[Lineage, None] = OrderedDict()
        self._is_closed = False

    def close(self) -> list[Instance]:
        """Vote no more: others shall be able to decide without us. Returns where we have voted."""
        self._is_closed = True
        return [instance for instance, ours in self._seats.items() if ours.vote is not None]

    def has_made(self, lineage: Lineage) -> bool:
        """Whether we helped to make a history in this life."""
        return lineage in self._made

    @property
    def has_made_any(self) -> bool:
        """Whether we helped to make any history in this life."""
        return bool(self._made)

    def free_from(self) -> int | None:
        """First epoch about which we have promised nothing; None: not known, as an earlier life of ours may have."""
        return 1 + max(epoch for epoch, _ in self._seats) if self._made and self._seats else None

    def of(self, instance: Instance, electors: tuple[PeerId, ...], me: PeerId) -> RecordSeat | None:
        """Our seat, as it is; None: we abstain.

        Args:
            electors: of the instance; none: a first step, about which everybody may vote who is there.
        """
        fresh: RecordSeat | None = Acceptor()
        if self._is_closed:
            return None
        if electors:
            fresh = seat(me, Electorate(electors), took_part=instance[1] in self._made)
        return None if fresh is None else self._seats.get(instance, fresh)

    def promised(self, instance: Instance) -> int:
        """Number of the highest ballot that we have promised; 0: none."""
        ours = self._seats.get(instance)
        return ours.promised.number if ours is not None and ours.promised is not None else 0

    def voted(self, epoch: int, lineage: Lineage) -> CommitRecord | None:
        """What we have put our name to, about what follows a history."""
        ours = self._seats.get((epoch, lineage))
        return ours.vote.value if ours is not None and ours.vote is not None else None

    def decided(self, instance: Instance) -> CommitRecord | None:
        """What followed a history, of which we hold the result."""
        ours = self._seats.get(instance)
        return ours.decided if ours is not None else None

    def forget(self, instance: Instance) -> None:
        """What was decided is void, since nobody has it."""
        self._seats.pop(instance, None)

    def keep(self, instance: Instance, ours: RecordSeat) -> None:
        """What we answer with ``ours`` holds from now on.

        Of too many those go first that follow no history of our making: strangers can invent as many as they like.
        """
        self._seats[instance] = ours
        self._seats.move_to_end(instance)
        while len(self._seats) > REMEMBERED:
            others = [other for other in self._seats if other != instance]
            forgotten = next((other for other in others if other[1] not in self._made), others[0])
            del self._seats[forgotten]
            self._made.pop(forgotten[1], None)  # a vote that is forgotten must not be given again

    def learn(self, record: CommitRecord) -> None:
        """A round is history, whose result we hold; we are among those who decide what follows it.

        Raises:
            SplitDecision: another round was decided for the same history.
        """
        instance = record.epoch, record.lineage
        self.keep(instance, self._seats.get(instance, Acceptor()).learn(record))
        self._made[record.next_lineage()] = None
        while len(self._made) > REMEMBERED:
            self._made.popitem(last=False)


def seat_to_fields(ours: RecordSeat | None) -> dict[str, Any]:
    """As plain values for a message; {} for no seat."""
    if ours is None:
        return {}
    vote = ours.vote
    return {
        "promised": ballot_to_row(ours.promised),
        "voted": ballot_to_row(vote.ballot if vote else None),
        "value": _record_to_fields(vote.value if vote else None),
        "decided": _record_to_fields(ours.decided),
    }


def seat_from_fields(fields: dict[str, Any], known: CommitRecord | None = None) -> RecordSeat | None:
    """From the plain values of a message.

    Args:
        known: see ``CommitRecord.from_fields``.

    Raises:
        BadMessage: something is missing or malformed.
    """
    if not fields:
        return None
    message = Message("seat", fields)
    voted, value = ballot_from(message, "voted"), _record_from(message, "value", known)
    if (voted is None) != (value is None):
        raise BadMessage("a seat has a vote without a value, or a value without a vote")
    return Acceptor(
        promised=ballot_from(message, "promised"),
        vote=Vote(voted, value) if voted is not None and value is not None else None,
        decided=_record_from(message, "decided", known),
    )


def ballot_to_row(ballot: Ballot | None) -> list[Any]:
    """As plain values for a message; [] for none."""
    return [] if ballot is None else [ballot.number, ballot.proposer]


def ballot_from(message: Message, name: str) -> Ballot | None:
    """From a field of a message.

    Raises:
        BadMessage: it is missing or malformed.
    """
    if message.get(name, list) == []:
        return None
    ((number, proposer),) = Message(message.kind, {name: [message.get(name, list)]}).rows(name, int, str)
    if not 0 < number < 1 << 53:
        raise BadMessage(f"{message.kind} names ballot {number}")
    return Ballot(number, PeerId(proposer))


def _record_to_fields(record: CommitRecord | None) -> dict[str, Any]:
    return {} if record is None else record.to_fields()


def _record_from(message: Message, name: str, known: CommitRecord | None) -> CommitRecord | None:
    fields = message.get(name, dict)
    return CommitRecord.from_fields(fields, known) if fields else None
