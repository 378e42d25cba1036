"""What averaging offers to strategies."""

from dataclasses import dataclass
from typing import Protocol

from collab.averaging.agreement import CommitRecord
from collab.averaging.weights import Weights
from collab.types import AnyVector, Lineage


class Windows(Protocol):
    """A contribution that grows while its round goes on: its vector has a row of equal length for each window.

    The round's mean is of what stands in the rows, with equal weight for each contributor.
    """

    @property
    def count(self) -> int:
        """Rows of the vector, the same for all peers of a run; at least 2."""
        ...

    async def close(self, row: int) -> None:
        """The window of ``row`` is over: its row of the vector is final when this returns. Called once for each, in
        order, when their round has begun.
        """
        ...

    def put(self, row: int, mean: AnyVector | None) -> None:
        """The mean of ``row`` is here, with our own in it, ahead of the verdict: it may take the place of our own.

        None: it may not any more. After a repair it may come again, and be another.
        """
        ...


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
    windows: Windows | None = None
    """Several, of which ``vector`` has one row each, that only they fill; then it has no ``weights``."""


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
