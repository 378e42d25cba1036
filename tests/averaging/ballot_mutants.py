"""Rules of ``collab.averaging.ballots``, each broken in one way: what the checker must notice."""

from dataclasses import dataclass, replace

from collab.averaging.ballots import Acceptor, Ballot, Electorate, Proposal, Vote
from collab.types import PeerId


@dataclass(frozen=True, kw_only=True)
class AcceptsBelowItsPromise(Acceptor[str]):
    """Votes in any ballot that is not below its latest vote."""

    def accept(self, ballot: Ballot, value: str) -> Acceptor[str]:
        if self.vote is not None and ballot <= self.vote.ballot:
            return self
        return replace(self, vote=Vote(ballot, value))


@dataclass(frozen=True, kw_only=True)
class ForgetsItsVote(Acceptor[str]):
    """Answers to phase 1 without what it voted."""

    def promise(self, ballot: Ballot) -> Acceptor[str]:
        after = Acceptor.promise(self, ballot)
        return after if after == self else replace(after, vote=None)


@dataclass(frozen=True, kw_only=True)
class VotesOnce(Acceptor[str]):
    """Refuses every ballot once it has voted in one."""

    def promise(self, ballot: Ballot) -> Acceptor[str]:
        return self if self.vote is not None else Acceptor.promise(self, ballot)


@dataclass(frozen=True, kw_only=True)
class IgnoresVotesFound(Proposal[str]):
    """Always proposes its own value."""

    def value_to_propose(self, own: str | None) -> str | None:
        return own


@dataclass(frozen=True, kw_only=True)
class TakesAnyVoteFound(Proposal[str]):
    """Proposes the value of the lowest ballot found, not of the highest."""

    def hear_promise(self, peer: PeerId, answer: Acceptor[str]) -> Proposal[str]:
        heard = Proposal.hear_promise(self, peer, answer)
        return replace(heard, highest=self.highest) if self.highest is not None else heard


@dataclass(frozen=True, kw_only=True)
class ProposesWithoutAQuorum(Proposal[str]):
    """One promise is enough for it."""

    @property
    def has_promises(self) -> bool:
        return bool(self.promised_by)


@dataclass(frozen=True, kw_only=True)
class ProposesTwice(Proposal[str]):
    """Uses one ballot again, for another value, as one that has restarted and forgotten it would."""

    def propose(self, own: str) -> Proposal[str]:
        if self.value is None:
            return Proposal.propose(self, own)
        return replace(self, value=f"{own}2") if self.value == own else self


@dataclass(frozen=True, slots=True)
class HalfIsEnough(Electorate):
    """Any half is a quorum, with the first member or without."""

    def has_quorum(self, voters: frozenset[PeerId]) -> bool:  # type: ignore[override]
        return 2 * sum(member in voters for member in self.members) >= len(self.members)
