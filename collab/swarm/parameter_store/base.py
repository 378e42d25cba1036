"""What a parameter store is, whatever keeps it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from collab.data.work_units import Unit
from collab.errors import ShapeMismatch
from collab.types import Lineage, PeerId, Vector


@dataclass(frozen=True, slots=True)
class Stored:
    """Parameters as of one version."""

    version: int
    """Pushes that are in them."""
    values: Vector
    """[num_elements] float32, read-only."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What another store could go on from."""

    stored: Stored
    done: Mapping[Unit, str]
    """Under which lease each unit was done that is in the parameters, but for the passes before ``first_open``."""
    first_open: int = 1
    """All units of the passes before this one are in the parameters."""

    @classmethod
    def at_first(cls, values: Vector) -> "Kept":
        """A run's first parameters."""
        return cls(Stored(0, values), {})


def lineage_of(version: int, era: str = "") -> Lineage:
    """Names a version as the digest chain of a history does elsewhere; ``era``: mark of the last rollback before it."""
    name = f"collab/parameters/1:{version}" + (f":{era}" if era else "")
    return Lineage(hashlib.sha256(name.encode()).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What a client's work on one unit has come to."""

    unit: Unit
    lease: str
    """Under which it was done. The same push may come again, when its answer was lost."""
    values: Vector
    """[num_elements] float32, finite: W_c."""
    based_on: int
    """Version that the client began with."""
    alpha: float
    """What is kept of what is stored, 0 to 1."""
    max_staleness: int | None = None
    """Refuse it when more pushes than that came between; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """A unit that was handed out, for whoever hands out units next. Its times are the swarm's."""

    unit: Unit
    lease: str
    client: PeerId
    began_at_s: float
    until_at_s: float


class Verdict(StrEnum):
    """What became of a push."""

    TAKEN = "taken"
    AGAIN = "again"
    """It is in the parameters already: it has come before."""
    DONE = "done"
    """The unit was done under another lease; this push is in nothing."""
    STALE = "stale"
    """Too many others came between; it is in nothing, and the unit is still to be done."""
    REFUSED = "refused"
    """No server would have it; it is in nothing, and the unit is still to be done. Not of a store's own."""


@dataclass(frozen=True, slots=True)
class Assimilated:
    """The answer to a push."""

    verdict: Verdict
    version: int
    """Of the parameters now."""
    staleness: int
    """Pushes of others between the client's pull and this push, if it was taken."""


class ParameterStore(Protocol):
    """One vector, and which units are in it. Every method may block for as long as a disk or a network does, and may be
    called from several threads, processes or machines, as far as the store spans them.

    A push counts once: which unit it did is kept together with the parameters, in one transaction.
    """

    def begin(self, first: Kept) -> bool:
        """Begin with that, if there is nothing yet; whether there was nothing."""
        ...

    def read(self, known: int | None = None) -> Stored | None:
        """The parameters; None: nothing is newer than version ``known``, or there is nothing at all."""
        ...

    def version(self) -> int | None:
        """Of the parameters; None: there is nothing."""
        ...

    def assimilate(self, push: Push) -> Assimilated:
        """``W_s <- alpha W_s + (1 - alpha) W_c``, unless the push does not count.

        Raises:
            ShapeMismatch: the vector has another length than what is stored.
            StateError: there is nothing stored, or the store fails.
        """
        ...

    def done(self, pass_number: int) -> dict[int, str] | None:
        """Shards of a pass that are in the parameters, and under which lease each was done; None: it is settled."""
        ...

    def passes(self) -> range:
        """From the first one that is not settled to the last of which anything is in the parameters."""
        ...

    def note_out(self, out: Out) -> None:
        """A unit is a client's; what was noted of it before does not matter any more."""
        ...

    def note_back(self, unit: Unit) -> None:
        """It is nobody's. What is taken into the parameters is not out either, and need not be said."""
        ...

    def out(self) -> list[Out]:
        """All that was noted, and was not done since."""
        ...

    def keep(self) -> Kept | None:
        """Parameters and what is in them, as of one moment; None: there is nothing. Not what is out."""
        ...

    def settle(self, first_open: int) -> None:
        """All units of the passes before this one are in the parameters: keep no more of them than that. A push for
        such a unit is ``DONE``, whichever lease it names.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def mixed(stored: Vector, push: Push) -> Vector:
    """``alpha W_s + (1 - alpha) W_c`` in float32; over n pushes ``alpha^n W_0 + (1 - alpha) sum_j alpha^(n-j) W_j``.

    Raises:
        ShapeMismatch: the lengths differ.
        ValueError: alpha is not from 0 to 1, or the push has NaN or Inf.

    Source: Atre et al., "Distributed Deep Learning Using Volunteer Computing-Like Paradigm" (2021).
    """
    if push.values.shape != stored.shape:
        raise ShapeMismatch(f"the push has {push.values.shape} elements, {stored.shape} are stored")
    if not 0.0 <= push.alpha <= 1.0:
        raise ValueError(f"alpha {push.alpha}: from 0 to 1")
    if not np.isfinite(push.values).all():
        raise ValueError("the push has NaN or Inf")
    kept = np.float32(push.alpha)
    return kept * stored + (np.float32(1.0) - kept) * push.values.astype(np.float32, copy=False)
