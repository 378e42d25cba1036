"""What a leader can tell its members to do, and what they can report: values."""

from dataclasses import dataclass
from enum import StrEnum

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot
from collab.averaging.division import Division
from collab.types import PeerId

Gap = tuple[PeerId, int, int]
UNPROMISED = "no quorum of those who decide has promised to follow this leader"


class Stage(StrEnum):
    """What the members are doing."""

    PROMISING = "promising"
    WORKING = "working"
    HALTED = "halted"
    VOTING = "voting"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Halt:
    """Tell the members of whom nothing comes any more, and what to take no more of; with ``broken`` they answer."""

    generation: int
    gone: tuple[PeerId, ...]
    silenced: tuple[PeerId, ...]
    """Members that are there: only their parts are not waited for."""
    broken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mend:
    """Tell the members how to go on."""

    generation: int
    division: Division


@dataclass(frozen=True, slots=True)
class Lead:
    """Ask the members to go on under this ballot, and what they have voted for."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Prepare:
    """Ask for votes."""

    ballot: Ballot
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Commit:
    """Tell everybody."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell everybody."""

    reason: str
    text: str


Action = Lead | Halt | Mend | Prepare | Commit | Abort


@dataclass(frozen=True, slots=True)
class Report:
    """What a member says it holds."""

    digests: tuple[str | None, ...]
    gaps: tuple[Gap, ...]
