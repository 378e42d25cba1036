"""What a simulated swarm has come to: samples, steps, bytes and losses, counted as they happen."""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from collab.metrics.records import EpochFinished, Event, MicrobatchDone, RoundEnded, SamplesUsed
from collab.simulation.links import Access
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World
from collab.tasks.base import Evaluation

REMEMBERED_STEPS = 64
"""Whose samples are counted already; a step is told of by all who took it, within a few steps."""


@dataclass(slots=True)
class Tally:
    """Of one machine, over all its lives."""

    computed_samples: int = 0
    busy_s: float = 0.0
    """In which it computed."""
    accesses: list[Access] = field(default_factory=list)
    """Its links' counters, one for each life."""

    @property
    def sent_bytes(self) -> int:
        return sum(access.sent_bytes for access in self.accesses)

    @property
    def received_bytes(self) -> int:
        return sum(access.received_bytes for access in self.accesses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far it was at one moment."""

    at_s: float
    samples: float
    """Committed by then."""
    sent_bytes: int
    """By all peers."""
    loss: float
    accuracy: float


class Account:
    """Of all machines, by their names. Whoever simulates tells it what happens, or lets it watch a world."""

    def __init__(self, *, has_rounds: bool) -> None:
        """
        Args:
            has_rounds: all peers take the same steps; else each step is one peer's own.
        """
        self._has_rounds = has_rounds
        self.tallies: dict[str, Tally] = {}
        self.looks: list[Look] = []
        self.steps, self.computed_samples = 0, 0
        self.committed_samples = 0.0
        """As their peers have told; one that is killed before it hears of its last step tells nothing of that. Samples
        of which a step has some elements count by these, as what is left of them goes into a later step."""
        self.rounds_committed, self.rounds_lost = 0, 0
        """As each member saw them."""
        self.round_s: list[float] = []
        """Of committed rounds, as each member saw them."""
        self._steps: list[tuple[float, float]] = []
        """Virtual seconds at which the swarm took its steps, by whoever was first, and samples committed by then."""
        self._losses: deque[tuple[float, float, int]] = deque()
        """When, loss and samples of microbatches."""
        self._seen: deque[Hashable] = deque(maxlen=REMEMBERED_STEPS)

    # -- what happens --------------------------------------------------------------------------------------------------

    def follow(self, name: str, access: Access) -> None:
        """A life of a machine has begun, over this link."""
        self.tallies.setdefault(name, Tally()).accesses.append(access)

    def microbatch(self, name: str, *, at_s: float, samples: int, loss: float, busy_s: float) -> None:
        """A machine has computed one."""
        tally = self.tallies.setdefault(name, Tally())
        tally.computed_samples += samples
        tally.busy_s += busy_s
        self.computed_samples += samples
        self._losses.append((at_s, loss, samples))

    def used(self, weight: float) -> None:
        """So many of a machine's samples are in a step."""
        self.committed_samples += weight

    def step(self, step: Hashable, *, at_s: float) -> None:
        """A machine has taken a step; one of all counts once, whoever tells of it."""
        if self._has_rounds:
            if step in self._seen:
                return
            self._seen.append(step)
        self.steps += 1
        self._steps.append((at_s, self.committed_samples))

    def round(self, seconds: float | None) -> None:
        """A round is over, as one of its members saw it. None: it was lost."""
        self.rounds_committed += seconds is not None
        self.rounds_lost += seconds is None
        if seconds is not None:
            self.round_s.append(seconds)

    def look(self, worth: Evaluation, *, at_s: float) -> None:
        """The model is worth so much now."""
        look = Look(at_s=at_s, samples=self.committed_samples, sent_bytes=self.sent_bytes, loss=worth.loss,
                    accuracy=worth.accuracy)  # fmt: skip
        self.looks.append(look)

    def watch(self, world: World) -> None:
        """Take note of a world's events, and let them go, so that days of a thousand peers fit into the memory."""
        world.subscribe(self._note)

    def _note(self, peer: SimPeer, event: Event) -> None:
        if isinstance(event, MicrobatchDone):
            busy_s = event.samples / peer.compute.samples_per_s
            self.microbatch(
                peer.name, at_s=event.at_s - EPOCH_S, samples=event.samples, loss=event.loss, busy_s=busy_s
            )
        elif isinstance(event, EpochFinished):
            self.used(event.own_weight)
            self.step((event.epoch, event.lineage), at_s=event.at_s - EPOCH_S)
        elif isinstance(event, SamplesUsed):
            self.used(event.weight)
        elif isinstance(event, RoundEnded):
            self.round(event.seconds if event.committed else None)
        peer.events.clear()

    # -- what has come of it -------------------------------------------------------------------------------------------

    def pace(self, settled: float) -> tuple[float, float]:
        """Seconds of a step and samples committed per second, after that share of the steps; NaN: too few steps."""
        first = int(settled * len(self._steps))
        if len(self._steps) - first < 2:
            return math.nan, math.nan
        (began_s, before), (ended_s, after) = self._steps[first], self._steps[-1]
        if ended_s <= began_s:
            return math.nan, math.nan
        return (ended_s - began_s) / (len(self._steps) - 1 - first), (after - before) / (ended_s - began_s)

    def training_loss(self, *, since_s: float) -> float:
        """Mean over the samples of microbatches that ended since then; earlier ones are forgotten. NaN: none did."""
        while self._losses and self._losses[0][0] < since_s:
            self._losses.popleft()
        samples = sum(count for _, _, count in self._losses)
        return math.fsum(loss * count for _, loss, count in self._losses) / samples if samples else math.nan

    @property
    def sent_bytes(self) -> int:
        """By all peers."""
        return sum(tally.sent_bytes for tally in self.tallies.values())
