"""What happens in a backbone or a leader of rounds, as values: the events of ``records`` that nobody else tells."""

from dataclasses import dataclass

from collab.metrics.records import Event
from collab.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlanned(Event):
    """A round begins that this peer leads."""

    epoch: int
    round_id: str
    expected_s: float
    """That the exchange takes if the links are what they seem; 0: nothing is known of them."""
    links: tuple[tuple[PeerId, float, float, str], ...]
    """Members with bytes/s up and down, as they have measured them (0: not yet), and how their vectors are encoded."""
    moves: tuple[tuple[PeerId, int, int], ...] = ()
    """Members with the bytes that they send and receive, as planned; none in what earlier versions wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShared(Event):
    """Who brought what to a committed round, and who reduced it, as its record says; told by backbones."""

    epoch: int
    """As ``RoundEnded``: global steps taken before it."""
    round_id: str
    brought: tuple[tuple[PeerId, float], ...]
    """Contributors, and how many of their samples are in the mean."""
    reduced: tuple[tuple[PeerId, float], ...]
    """Who averaged, and which share of the vector, 0 .. 1."""
    left_out: tuple[tuple[PeerId, str], ...]
    """Trainers with samples for this step that are not in it, and why, in a word; they bring them to a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """The organiser has gone back to ``epoch``, and what this backbone has told of what came after it counts no more.

    Who hears of several rollbacks at once tells of them together, with the earliest of their epochs.
    """

    epoch: int
    era: str
    """Mark of the rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardServed(Event):
    """A backbone shows its run to browsers."""

    url: str
