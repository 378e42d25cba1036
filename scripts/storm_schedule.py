"""When which fault befalls whom: a storm as a pure function of its settings and seed.

Faults come as a Poisson process: the gaps between them are exponential, so that some come together. Victims are slots:
0 .. peers - 1 are the trainers' places, ``peers`` is the backbone's. A slot outlives the peer in it.

At any moment at most a minority of the trainers is struck, as long as nobody asks for more: a swarm that lost its
majority has to stop, and would measure its own waiting. A fault that finds no room, and a second partition, wait until
there is room; those that would then begin after the storm's end are dropped.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

REPLACED_WITHIN_S = (2.0, 8.0)
"""Who kills a volunteer's process starts the next one by hand, or a job scheduler does."""
JOINING_S = 15.0
"""A newcomer counts as struck for so long, for the bound on how many are: imports, first state, first microbatch."""
SHORTEST_S = {"stop": 5.0, "hang": 5.0, "partition": 10.0, "slow": 10.0}


class Kind(StrEnum):
    """What can happen."""

    KILL = "kill"
    """SIGKILL to a peer and all that it started; another volunteer joins in its place ``duration_s`` later."""
    STOP = "stop"
    """SIGSTOP to the same, as when a laptop is shut; SIGCONT ``duration_s`` later."""
    HANG = "hang"
    """SIGSTOP to the peer's own process only: its p2pd goes on accepting what nobody reads."""
    PARTITION = "partition"
    """A few peers reach each other and nobody else."""
    SLOW = "slow"
    """A peer's link falls to a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of the schedule."""

    at_s: float
    """Since the beginning of the storm."""
    kind: Kind
    slots: tuple[int, ...]
    duration_s: float

    @property
    def over_s(self) -> float:
        """Since the beginning of the storm."""
        return self.at_s + self.duration_s

    def is_striking(self, at_s: float) -> bool:
        """Whether its victims count as struck."""
        over_s = self.over_s + (JOINING_S if self.kind is Kind.KILL else 0.0)
        return self.at_s <= at_s < over_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a storm is to be like."""

    seed: int
    peers: int
    """Trainers; at least 3, so that one is a minority."""
    faults_per_hour: float
    seconds: float
    kinds: tuple[Kind, ...] = (Kind.KILL, Kind.STOP, Kind.PARTITION, Kind.SLOW)
    """Each is as likely as the others."""
    longest_s: float = 60.0
    """Of a stop, a partition and a slow link."""
    strikes_backbone: bool = False
    max_struck: int | None = None
    """At the same time; None: a minority."""
    max_cut: int | None = None
    """In one partition; None: as many as may be struck."""

    def __post_init__(self) -> None:
        if self.peers < 3 or not self.kinds or self.faults_per_hour < 0:
            raise ValueError("a storm needs 3 peers or more, a kind of fault, and a rate that is not negative")
        if self.longest_s < max(SHORTEST_S.values()):
            raise ValueError(f"the longest fault cannot be shorter than {max(SHORTEST_S.values()):g} s")
        if self.most_struck < 1 or (self.max_cut is not None and self.max_cut < 1):
            raise ValueError("at least one peer must be allowed to be struck")

    @property
    def most_struck(self) -> int:
        """At the same time."""
        return (self.peers - 1) // 2 if self.max_struck is None else self.max_struck

    @property
    def slots(self) -> range:
        """That may be struck."""
        return range(self.peers + (1 if self.strikes_backbone else 0))


def schedule(forecast: Forecast) -> tuple[Fault, ...]:
    """All faults of a storm in the order in which they begin; equal forecasts give equal storms."""
    rng = random.Random(f"storm {forecast.seed}")
    faults: list[Fault] = []
    going: list[Fault] = []
    arrival_s = 0.0
    while forecast.faults_per_hour > 0:
        arrival_s += rng.expovariate(forecast.faults_per_hour / 3600.0)
        if arrival_s >= forecast.seconds:
            break
        fault = _draw(forecast, arrival_s, rng)
        begins_s = _first_room_s(fault, forecast, going, faults[-1].at_s if faults else 0.0)
        if begins_s < forecast.seconds:
            going = [other for other in going if other.is_striking(begins_s)]
            faults.append(_aimed(replace(fault, at_s=begins_s), forecast, going, rng))
            going.append(faults[-1])
    return tuple(faults)


def struck_at(faults: Iterable[Fault], at_s: float) -> set[int]:
    """Slots whose peers are struck."""
    return {slot for fault in faults if fault.is_striking(at_s) for slot in fault.slots}


def _draw(forecast: Forecast, at_s: float, rng: random.Random) -> Fault:
    """A fault that has not found its victims yet."""
    kind = rng.choice(forecast.kinds)
    shortest_s, longest_s = REPLACED_WITHIN_S
    if kind is not Kind.KILL:
        shortest_s, longest_s = SHORTEST_S[kind], forecast.longest_s
    return Fault(at_s=at_s, kind=kind, slots=(), duration_s=rng.uniform(shortest_s, longest_s))


def _first_room_s(fault: Fault, forecast: Forecast, earlier: Sequence[Fault], not_before_s: float) -> float:
    """When it may begin: not before those that came before it."""
    at_s = max(fault.at_s, not_before_s)
    while True:
        is_split = fault.kind is Kind.PARTITION and any(
            other.kind is Kind.PARTITION and other.is_striking(at_s) for other in earlier
        )
        if not is_split and len(struck_at(earlier, at_s)) < forecast.most_struck:
            return at_s
        at_s = min(_ends_s(other) for other in earlier if other.is_striking(at_s))


def _ends_s(fault: Fault) -> float:
    return fault.over_s + (JOINING_S if fault.kind is Kind.KILL else 0.0)


def _aimed(fault: Fault, forecast: Forecast, earlier: Sequence[Fault], rng: random.Random) -> Fault:
    struck = struck_at(earlier, fault.at_s)
    sound = [slot for slot in forecast.slots if slot not in struck]
    number = 1
    if fault.kind is Kind.PARTITION:
        number = rng.randint(1, min(forecast.most_struck - len(struck), forecast.max_cut or forecast.peers))
    return replace(fault, slots=tuple(sorted(rng.sample(sound, number))))
