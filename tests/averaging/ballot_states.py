"""What a state of the ballot model is made of."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from collab.averaging.ballots import Acceptor, Electorate, Proposal, Vote


class Elector(NamedTuple):
    """One elector, and all that it ever sent."""

    memory: Acceptor[str] | None
    """None: it has restarted, and abstains."""
    answers: frozenset[Acceptor[str]] = frozenset()
    """To phase 1."""
    votes: frozenset[Vote[str]] = frozenset()
    restarts: int = 0


class Asked(NamedTuple):
    """One ballot, and all votes that its proposer ever asked for."""

    proposal: Proposal[str]
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is enumerated, and which rules hold; the defaults are the rules of the product."""

    electors: int = 3
    ballots: int = 2
    restarts: int = 0
    """Of all electors together."""
    learns: bool = True
    """Whether electors hear of decisions. One that has is as silent as a dead one, but for telling."""
    electorate: type[Electorate] = Electorate
    acceptor: type[Acceptor[str]] = Acceptor
    proposal: type[Proposal[str]] = Proposal
    comes_back_empty: bool = False
    """A broken rule: who has restarted votes again."""
    splits_only: bool = False
    """Two decisions alone are a fault: not one by too few votes."""


class Table:
    """Numbers for values, so that states are tuples of numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def number(self, value: Hashable) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def closed(elector: Elector, value: str) -> Elector:
    """An elector that has learnt the decision: from now on it says nothing else."""
    memory = elector.memory.learn(value) if elector.memory is not None else None
    return elector._replace(memory=replace(memory, promised=None, vote=None) if memory is not None else None)


def settled(proposal: Proposal[str]) -> Proposal[str]:
    """A proposal that has asked for votes, without what can play no part any more: equal futures, equal states."""
    return replace(proposal, promised_by=frozenset(proposal.electorate.members), highest=None)
