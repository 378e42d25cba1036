"""What a simulated swarm has come to: samples, steps, bytes and losses, counted as they happen."""

import math
from collections import deque
from dataclasses import dataclass, field

from collab.metrics.records import EpochFinished, Event, MicrobatchDone, RoundEnded, SamplesUsed
from collab.simulation.links import Access
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World

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


class Account:
    """Watches a world. Events are counted and let go, so that days of a thousand peers fit into the memory."""

    def __init__(self, world: World, *, has_rounds: bool) -> None:
        """
        Args:
            has_rounds: all peers take the same steps; else each step is one peer's own.
        """
        self._world, self._has_rounds = world, has_rounds
        self.tallies: dict[int, Tally] = {}
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
        self._seen: deque[tuple[int, str]] = deque(maxlen=REMEMBERED_STEPS)
        world.subscribe(self._note)

    def follow(self, peer: SimPeer) -> None:
        """A life of a peer has begun."""
        self.tallies.setdefault(peer.index, Tally()).accesses.append(peer.transport.access)

    def _note(self, peer: SimPeer, event: Event) -> None:
        if isinstance(event, MicrobatchDone):
            tally = self.tallies.setdefault(peer.index, Tally())
            tally.computed_samples += event.samples
            tally.busy_s += event.samples / peer.compute.samples_per_s
            self.computed_samples += event.samples
            self._losses.append((event.at_s - EPOCH_S, event.loss, event.samples))
        elif isinstance(event, EpochFinished):
            self.committed_samples += event.own_weight
            self._note_step(event)
        elif isinstance(event, SamplesUsed):
            self.committed_samples += event.weight
        elif isinstance(event, RoundEnded):
            self.rounds_committed += event.committed
            self.rounds_lost += not event.committed
            if event.committed:
                self.round_s.append(event.seconds)
        peer.events.clear()

    def _note_step(self, event: EpochFinished) -> None:
        """A step of all counts once, whoever tells of it."""
        if self._has_rounds:
            step = event.epoch, event.lineage
            if step in self._seen:
                return
            self._seen.append(step)
        self.steps += 1
        self._steps.append((event.at_s - EPOCH_S, self.committed_samples))

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
