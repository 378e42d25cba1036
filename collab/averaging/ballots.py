"""Which round follows a history: one single-decree Paxos instance per (epoch, lineage), without any IO.

Every attempt at the round, and every take-over by a successor, is a ballot. Phase 1 asks the electors what they voted
for, and binds them not to vote below the ballot any more; phase 2 asks them to vote; a quorum of votes decides. All
values here are immutable: an elector keeps the ``Acceptor`` that it last made and sends it as the answer, a proposer
keeps its ``Proposal``.

    elector                                     proposer
    acceptor = acceptor.promise(ballot)         proposal = proposal.hear_promise(peer, acceptor)
                                                if proposal.has_promises: proposal = proposal.propose(own)
    acceptor = acceptor.accept(ballot, value)   proposal = proposal.hear_vote(peer, acceptor)
    acceptor = acceptor.learn(value)            if proposal.is_decided: announce proposal.value

What keeps it safe, besides these rules, is the caller's: a proposer uses a ballot in one life only, an elector answers
after it has stored what it answers, and a peer that has lost its memory has no seat (``seat``). Electors that lie are
not tolerated. See docs/protocol.md.

Source: Lamport, Paxos Made Simple (2001); for the quorum of exactly half: Jajodia and Mutchler, Dynamic Voting
Algorithms for Maintaining the Consistency of a Replicated Database (1990), dynamic-linear voting.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from collab.errors import SplitDecision
from collab.types import PeerId

V = TypeVar("V")
"""What a round made; hashable, compared by ==, never None."""


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """One attempt to decide an instance; ballots are totally ordered."""

    number: int
    proposer: PeerId
    """Breaks ties, so that no two proposers share a ballot."""


LEAP = 1 << 32
"""Ballots of honest peers follow each other one by one. Who may name any number could use all of them up, and nothing
would ever be decided about that step; in leaps of this length that takes two million attempts at it."""


def ballot_above(promised: Iterable[int], proposer: PeerId) -> Ballot:
    """The lowest ballot of ``proposer`` that none refuses who has promised ballots of these numbers; 0: none yet.

    A proposer that has lost its memory must hear a quorum first: whatever ballot it put to the vote in an earlier
    life was promised by a quorum, so it is heard of and not used again. Numbers far beyond what half have promised
    (``LEAP``) are somebody's invention and are passed over; if they are not, their owners abstain.
    """
    known = sorted(promised)
    usual = known[(len(known) - 1) // 2] if known else 0
    return Ballot(1 + max((number for number in known if number <= usual + LEAP), default=0), proposer)


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who decides an instance: the members named in the record whose commit made its lineage, in the record's order."""

    members: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) != len(self.members):
            raise ValueError(f"an electorate names somebody, and nobody twice: got {self.members}")

    def has_quorum(self, voters: Collection[PeerId]) -> bool:
        """Whether ``voters`` hold more than half of the electorate, or exactly half with its first member.

        Any two quorums share an elector. Voters outside of the electorate do not count.
        """
        present = sum(member in voters for member in self.members)
        half_with_first = 2 * present == len(self.members) and self.members[0] in voters
        return 2 * present > len(self.members) or half_with_first


# No slots from here on: Python 3.11 cannot make ``Acceptor[str]()`` of a frozen generic class that has them.


@dataclass(frozen=True)
class Vote(Generic[V]):
    """An elector's vote in one ballot."""

    ballot: Ballot
    value: V


@dataclass(frozen=True, kw_only=True)
class Acceptor(Generic[V]):
    """What one elector remembers of an instance, which is also its answer to every question."""

    promised: Ballot | None = None
    """It refuses every ballot below."""
    vote: Vote[V] | None = None
    """Its latest vote; of the highest ballot that it voted in."""
    decided: V | None = None
    """What was decided, if it knows."""

    def promise(self, ballot: Ballot) -> "Acceptor[V]":
        """Phase 1: refuse lower ballots from now on. Refused (nothing changes) below what was promised already."""
        return self if self._refuses(ballot) else replace(self, promised=ballot)

    def accept(self, ballot: Ballot, value: V) -> "Acceptor[V]":
        """Phase 2: vote for ``value`` in ``ballot``. Refused below what was promised; so is a second value."""
        if self._refuses(ballot) or (self.vote is not None and self.vote.ballot == ballot):
            return self
        return replace(self, promised=ballot, vote=Vote(ballot, value))

    def learn(self, value: V) -> "Acceptor[V]":
        """Keep the decision for those who will ask; from now on the instance is closed.

        Raises:
            SplitDecision: another value was decided here; take part in nothing more and resync.
        """
        if self.decided is not None and self.decided != value:
            raise SplitDecision(f"expected the one decision {self.decided}, and heard of {value}")
        return replace(self, decided=value)

    def _refuses(self, ballot: Ballot) -> bool:
        return self.decided is not None or (self.promised is not None and ballot < self.promised)


@dataclass(frozen=True, kw_only=True)
class Proposal(Generic[V]):
    """One ballot as its proposer sees it."""

    ballot: Ballot
    electorate: Electorate
    promised_by: frozenset[PeerId] = field(default_factory=frozenset)
    highest: Vote[V] | None = None
    """Of the votes among the promises that of the highest ballot."""
    is_proposed: bool = False
    """Votes were asked for; promises that come later change nothing."""
    value: V | None = None
    """What votes were asked for, or what was found decided."""
    supporters: frozenset[PeerId] = field(default_factory=frozenset)
    """Electors that voted for it in this ballot."""
    is_known_decided: bool = False
    """An elector answered that ``value`` is decided."""

    def hear_promise(self, peer: PeerId, answer: Acceptor[V]) -> "Proposal[V]":
        """Count an elector's answer to phase 1; its refusal, and a stranger's word, change nothing."""
        if peer not in self.electorate.members:
            return self
        heard = self._hear_decision(answer)
        if heard.is_known_decided or self.is_proposed or answer.promised != self.ballot:
            return heard
        votes = [vote for vote in (self.highest, answer.vote) if vote is not None]
        highest = max(votes, key=lambda vote: vote.ballot, default=None)
        return replace(self, promised_by=self.promised_by | {peer}, highest=highest)

    @property
    def has_promises(self) -> bool:
        """Whether a quorum promised: no ballot below can gain a quorum any more."""
        return self.electorate.has_quorum(self.promised_by)

    def value_to_propose(self, own: V | None) -> V | None:
        """What this ballot must stand for: the value of the highest vote found, else ``own``.

        Args:
            own: what the round of this very ballot made; None where it made nothing. Never the value of an older
                attempt: that comes back by a vote that was found, or not at all.

        Returns:
            None: no ballot below has decided or can by itself. A value that was voted for there is not gone: a later
            ballot may find such a vote and carry it on.

        Raises:
            ValueError: there is no quorum of promises yet.
        """
        if self.is_known_decided:
            return self.value
        if not self.has_promises:
            raise ValueError(f"ballot {self.ballot} proposes without a quorum of promises: {sorted(self.promised_by)}")
        return own if self.highest is None else self.highest.value

    def propose(self, own: V) -> "Proposal[V]":
        """Fix what votes are asked for: ``value``.

        Raises:
            ValueError: there is no quorum of promises yet.
        """
        if self.value is not None:
            return self
        return replace(self, is_proposed=True, value=self.value_to_propose(own))

    def hear_vote(self, peer: PeerId, answer: Acceptor[V]) -> "Proposal[V]":
        """Count an elector's vote in this ballot; its refusal, and a stranger's word, change nothing."""
        if peer not in self.electorate.members:
            return self
        heard, vote = self._hear_decision(answer), answer.vote
        if heard.is_known_decided or not self.is_proposed or vote is None or vote.ballot != self.ballot:
            return heard
        return replace(self, supporters=self.supporters | {peer}) if vote.value == self.value else self

    @property
    def is_decided(self) -> bool:
        """Whether ``value`` is what follows the history, for everybody and for good."""
        has_votes = self.value is not None and self.electorate.has_quorum(self.supporters)
        return self.is_known_decided or has_votes

    def _hear_decision(self, answer: Acceptor[V]) -> "Proposal[V]":
        if answer.decided is None:
            return self
        if self.is_decided and self.value != answer.decided:
            raise SplitDecision(f"ballot {self.ballot} decided {self.value}, and an elector knows {answer.decided}")
        return replace(self, value=answer.decided, is_known_decided=True)


def seat(peer: PeerId, electorate: Electorate, *, took_part: bool) -> Acceptor[V] | None:
    """The seat with which ``peer`` enters an instance; None: it abstains, for ever.

    Args:
        peer: whose seat.
        electorate: of the instance.
        took_part: whether ``peer`` was in the round that made this electorate in its present life. A peer that has
            restarted since may have voted, and does not know; its next chance is a round made in this life.
    """
    return Acceptor() if took_part and peer in electorate.members else None
