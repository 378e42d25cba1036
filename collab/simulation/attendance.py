"""Who is there when machines come and go, and what each coming and going costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collab.simulation.residents import Resident, Session

JOIN_S = 3.0
"""Until a newcomer has found the swarm and its link is measured; then it fetches the state. From
``scripts/bench_forecast.py``."""
LOOKS = 100
"""Moments at which it is looked who is there."""
USUAL = 8
"""Of these, which stand for all: the middle one of each eighth, by how fast all together compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Who is there at a usual moment."""

    here: tuple[Resident, ...]
    """All who do their part; of trainers those that hold the swarm's state."""
    joining: int
    """Trainers that fetch it."""

    @property
    def speeds(self) -> list[float]:
        """Samples per second of each trainer that computes."""
        return [resident.samples_per_s for resident in self.here if resident.role == "trainer"]


class Attendance:
    """Of all machines of a swarm, over some time."""

    def __init__(self, residents: Sequence[Resident], *, end_s: float, state_bytes: float) -> None:
        """
        Args:
            end_s: until when comings and goings count.
            state_bytes: that a newcomer fetches.
        """
        self._residents, self._end_s, self._state_bytes = residents, end_s, state_bytes
        self._up = math.fsum(r.link.up_bytes_per_s * r.seconds_until(end_s) / end_s for r in residents)
        """Bytes per second that all together can send, on average."""

    @property
    def is_steady(self) -> bool:
        """Whether everybody is there from the beginning to the end."""
        return all(resident.seconds_until(self._end_s) >= self._end_s for resident in self._residents)

    def usual(self) -> tuple[Usual, ...]:
        """Some moments, each as usual as the others; one, where nobody comes or goes."""
        if self.is_steady:
            return (Usual(here=tuple(self._residents), joining=0),)
        looks = [self._at((look + 0.5) * self._end_s / LOOKS) for look in range(LOOKS)]
        looks.sort(key=lambda usual: math.fsum(usual.speeds))
        return tuple(looks[(2 * part + 1) * LOOKS // (2 * USUAL)] for part in range(USUAL))

    def lost_samples_per_s(self, left_s: float, killed_s: float, *, microbatch: int) -> float:
        """What goes with those who go: what they computed and no step has, and half of a killed one's microbatch.

        Args:
            left_s: seconds of computing that one who leaves takes along; ``killed_s`` one that is killed.
        """
        lost = 0.0
        for resident in self._residents:
            for session in resident.sessions if resident.samples_per_s > 0 else ():
                if session.ends_s < self._end_s:
                    computing_s = max(session.seconds_until(self._end_s) - self._joining_s(resident, session), 0.0)
                    half_s = microbatch / resident.samples_per_s / 2
                    in_hand_s = killed_s + half_s if session.is_killed else left_s
                    lost += resident.samples_per_s * min(in_hand_s, computing_s)
        return lost / self._end_s

    def _at(self, at_s: float) -> Usual:
        here, joining = [], 0
        for resident in self._residents:
            session = next((one for one in resident.sessions if one.joins_s <= at_s < one.ends_s), None)
            if session is not None and at_s - session.joins_s >= self._joining_s(resident, session):
                here.append(resident)
            elif session is not None:
                joining += 1
        return Usual(here=tuple(here), joining=joining)

    def _joining_s(self, resident: Resident, session: Session) -> float:
        """Who is there from the beginning is taken to have joined; who computes nothing needs no state."""
        if session.joins_s == 0 or resident.samples_per_s == 0:
            return 0.0
        return JOIN_S + self._state_bytes / min(resident.link.down_bytes_per_s, self._up)
