"""What a benchmark of faults is asked to do, and which fault each seed means."""

import json
import random
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What befalls a peer."""

    KILL = "kill"
    """SIGKILL to all of its processes."""
    STOP = "stop"
    """SIGSTOP to all of its processes, until the others have their result."""
    LEADER = "leader"
    """Whoever leads the round is killed."""
    STOP_LEADER = "stop-leader"
    """Whoever leads the round is stopped."""
    P2PD = "p2pd"
    """SIGKILL to a reducer's network daemon; its Python lives."""

    @property
    def strikes_leader(self) -> bool:
        return self in (Kind.LEADER, Kind.STOP_LEADER)

    @property
    def freezes(self) -> bool:
        """Whether the victim goes on later; otherwise a stranger takes its place."""
        return self in (Kind.STOP, Kind.STOP_LEADER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The swarm, and what is done to it."""

    peers: int
    mbit_per_s: float
    """Of every link, up and down."""
    num_elements: int
    kinds: tuple[Kind, ...]
    seeds: int
    """Faults of each kind that count."""
    seed: int
    """The first one."""
    rest: int
    """Undisturbed rounds before each fault."""
    limit_s: float
    """A global step that takes longer hangs."""
    window: tuple[float, float]
    """Part of an undisturbed round in which faults come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault as its seed has it."""

    kind: Kind
    seed: int
    attempt: int
    """Times that this seed has missed its round before."""
    victim: int
    """Slot; the leader's, whoever that is, when the fault is for it."""
    moment: float
    """As a part of an undisturbed round's duration, from everybody's wish to average to the last result."""

    @classmethod
    def draw(cls, setup: Setup, kind: Kind, seed: int, attempt: int) -> "Fault":
        """The same for the same arguments, and independent of how many other faults there are."""
        rng = random.Random(f"{kind}:{seed}:{attempt}")
        victim, moment = rng.randrange(setup.peers), rng.uniform(*setup.window)
        return cls(kind=kind, seed=seed, attempt=attempt, victim=victim, moment=moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one peer is told."""

    slot: int
    name: str
    """Of this life: SLOT.NUMBER, in its records, so that others know whose vector is whose."""
    host: str
    bootstrap: tuple[str, ...]
    """Addresses of peers that are there; none: this is the first one of the swarm."""
    num_elements: int
    seed: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Place":
        fields = json.loads(text)
        return cls(bootstrap=tuple(fields.pop("bootstrap")), **fields)
