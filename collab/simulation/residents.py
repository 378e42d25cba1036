"""From a swarm file to its machines: how fast each one is, how it is connected, and when it is there."""

import math
import random
from dataclasses import dataclass
from typing import Literal

from collab.simulation.links import Link
from collab.simulation.swarm_file import BITS, MEGA, MILLI, Group, PartTime, SwarmFile, Trace

SLOWEST_SESSION_S = 1.0
"""Shorter sessions and absences are no sessions: a peer needs as long to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One stay of a machine."""

    joins_s: float
    ends_s: float
    """Infinite: it stays to the end."""
    is_killed: bool
    """Ends without a goodbye."""

    def seconds_until(self, end_s: float) -> float:
        """Of the stay, up to a moment."""
        return max(min(self.ends_s, end_s) - self.joins_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One machine."""

    name: str
    group: str
    role: Literal["trainer", "auxiliary", "backbone"]
    link: Link
    samples_per_s: float
    """0: it computes nothing."""
    client_mode: bool
    price_per_hour: float
    sessions: tuple[Session, ...]

    def seconds_until(self, end_s: float) -> float:
        """That it is there, up to a moment."""
        return math.fsum(session.seconds_until(end_s) for session in self.sessions)

    def price_until(self, end_s: float) -> float:
        """Of its hours, up to a moment."""
        return self.price_per_hour * self.seconds_until(end_s) / 3600.0


def residents_of(swarm: SwarmFile, *, end_s: float) -> tuple[Resident, ...]:
    """All machines of the file, backbones first; who is how fast and there when follows from the file's seed.

    Args:
        end_s: until when comings and goings are drawn.
    """
    found: list[Resident] = []
    for group in sorted(swarm.groups, key=lambda group: group.role != "backbone"):
        for number in range(group.count):
            rng = random.Random(f"{swarm.seed} {group.name} {number}")
            speed = _samples_per_s(group, swarm.microbatch_size) * math.exp(group.spread * rng.gauss(0.0, 1.0))
            found.append(
                Resident(
                    name=f"{group.name} {number}" if group.count > 1 else group.name,
                    group=group.name,
                    role=group.role,
                    link=link_of(group),
                    samples_per_s=speed,
                    client_mode=group.client_mode,
                    price_per_hour=group.price_per_hour,
                    sessions=_sessions(group, number, rng, end_s),
                )
            )
    return tuple(found)


def link_of(group: Group) -> Link:
    """As the simulation has it."""
    return Link(
        up_bytes_per_s=group.up_mbit_per_s * MEGA / BITS,
        down_bytes_per_s=group.down_mbit_per_s * MEGA / BITS,
        latency_s=group.latency_ms * MILLI,
    )


def _samples_per_s(group: Group, microbatch_size: int) -> float:
    if group.seconds_per_microbatch is not None:
        return microbatch_size / group.seconds_per_microbatch
    return group.samples_per_s or 0.0


def _sessions(group: Group, number: int, rng: random.Random, end_s: float) -> tuple[Session, ...]:
    if isinstance(group.churn, PartTime):
        return _drawn(group.churn, rng, end_s)
    if isinstance(group.churn, Trace):
        return _traced(group.churn, number)
    return (Session(joins_s=0.0, ends_s=math.inf, is_killed=False),)


def _drawn(churn: PartTime, rng: random.Random, end_s: float) -> tuple[Session, ...]:
    """As if it had gone on for ever before: at the beginning each is there as likely as at any other time."""
    found: list[Session] = []
    is_there = rng.random() < churn.mean_session_s / (churn.mean_session_s + churn.mean_absence_s)
    now_s = 0.0 if is_there else max(rng.expovariate(1.0 / churn.mean_absence_s), SLOWEST_SESSION_S)
    while now_s < end_s:
        ends_s = now_s + max(rng.expovariate(1.0 / churn.mean_session_s), SLOWEST_SESSION_S)
        found.append(Session(joins_s=now_s, ends_s=ends_s, is_killed=rng.random() < churn.killed))
        now_s = ends_s + max(rng.expovariate(1.0 / churn.mean_absence_s), SLOWEST_SESSION_S)
    return tuple(found)


def _traced(churn: Trace, number: int) -> tuple[Session, ...]:
    lines = sorted((line for line in churn.happenings if line.peer == number), key=lambda line: line.at_s)
    is_there = not lines or lines[0].what != "join"
    joined_s = 0.0 if is_there else math.inf
    found: list[Session] = []
    for line in lines:
        if line.what == "join" and not is_there:
            is_there, joined_s = True, line.at_s
        elif line.what != "join" and is_there:
            is_there = False
            found.append(Session(joins_s=joined_s, ends_s=line.at_s, is_killed=line.what == "kill"))
    if is_there:
        found.append(Session(joins_s=joined_s, ends_s=math.inf, is_killed=False))
    return tuple(found)
