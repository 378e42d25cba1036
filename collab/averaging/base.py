"""What averaging offers to strategies."""

from dataclasses import dataclass
from typing import Protocol

from collab.averaging.agreement import CommitRecord
from collab.averaging.weights import Weights
from collab.types import AnyVector, Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a peer brings to a round. The engine never changes it: it stays the peer's own until a commit."""

    epoch: int
    """Global steps the peer has taken."""
    lineage: Lineage
    vector: AnyVector
    """[num_elements] float32 or float16, finite."""
    weight: float
    """Samples behind the vector, > 0; the most behind any element."""
    weights: Weights | None = None
    """Samples behind each element, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The round happened: every member that goes on has these bytes."""

    mean: AnyVector
    """[num_elements] of the type of the contribution: mean of the contributors' vectors by samples; empty on a peer
    that only reduces."""
    record: CommitRecord

    @property
    def lineage(self) -> Lineage:
        """History after the round."""
        return self.record.next_lineage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The round never happened: the contribution is still the peer's, whole."""

    reason: str
    """One word, for counters."""
    text: str
    """For people."""
    rounds: frozenset[str] = frozenset()
    """Attempts that the contribution was in. Should one of them turn out to be history, it has been used after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The swarm committed this epoch without us: take over its state before contributing again."""

    text: str
    record: CommitRecord | None = None
    """Which of our data is in that step, if it is known: what is, must not be brought again."""


Outcome = Committed | Aborted | Superseded


class Averager(Protocol):
    """Averages vectors over the swarm."""

    async def average(self, contribution: Contribution) -> Outcome:
        """One global mean: joins a group, exchanges, and returns after commit or abort; retries what retrying mends.

        Raises nothing that the network can cause; a lost round is an ``Aborted``.
        """
        ...
