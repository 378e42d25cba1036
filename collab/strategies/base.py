"""The strategy port: a strategy decides, it never sends.

After each microbatch it sees the replica, and the swarm through three narrow doors: progress, averager, worker.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from collab.averaging.base import Averager, Committed, Outcome
from collab.averaging.weights import Weights
from collab.swarm.parameter_store.base import Verdict
from collab.types import Lineage, PeerId, Vector

T = TypeVar("T")
Spans = tuple[tuple[int, int], ...]
Target = Callable[[int], float]
"""Samples of the swarm's batch for the step after so many: the organiser may change it while the run goes on."""
NOTHING: Spans = ()


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An accumulated gradient on its way into a step."""

    mean: Vector
    """[num_elements] float32: sum over the samples / samples."""
    samples: int
    """At least 1; the most behind any element."""
    weights: Weights | None = None
    """Samples behind each element, where an earlier round has used some and not others."""

    @property
    def everything(self) -> Spans:
        """All of its elements, to be settled."""
        return ((0, len(self.mean)),)


class OwnWindows(Protocol):
    """What a replica brings to one round, window by window."""

    vector: Vector
    """[windows * row_elements] float32: the displacement of the parameters in each window, 0 until it is over."""

    def close(self, row: int) -> None:
        """A window is over; may happen while a microbatch is computed, which is of the next one."""
        ...

    def put(self, row: int, mean: Vector | None) -> None:
        """Let a mean take the place of our own window of ``row`` after the present microbatch; None: no more."""
        ...


class Replica(Protocol):
    """The model as strategies see it; ``collab.training.replica.Replica`` is the real one."""

    epoch: int
    lineage: Lineage

    @property
    def samples(self) -> int:
        """Samples behind the accumulated gradient, handed over or not."""
        ...

    @property
    def microbatches_beside(self) -> int:
        """Computed since the last ``hand_over``; in a round of several windows, since the oldest of them was over whose
        mean is not here yet.
        """
        ...

    @property
    def num_elements(self) -> int:
        """Length of what a step takes."""
        ...

    @property
    def windows(self) -> int:
        """That one round of the run averages, each with a row of its own; 1: what is handed over is all of it."""
        ...

    def begin_windows(self) -> OwnWindows:
        """Several, for a round that is to begin: what is accumulated until it has is the first of them. What becomes of
        the round is said as of what is handed over, with elements as they are in its vector.
        """
        ...

    def hand_over(self) -> HandedOver:
        """What is accumulated; microbatches that end from now on accumulate beside it until it is settled."""
        ...

    def settle(self, used: Spans, round_id: str = "") -> None:
        """What was handed over is in a step in the elements of ``used`` (start, stop), and forgotten there; elsewhere
        it is ours again. If that step is one of the rounds in doubt, this is about what was handed over to these.
        """
        ...

    def doubt(self, rounds: frozenset[str]) -> None:
        """What was handed over is ours again, unless one of ``rounds`` has used it after all: it is brought again, and
        kept apart from what comes later until that is known.
        """
        ...

    def step(self, update: Vector, lineage: Lineage, terms: str | None = None) -> None:
        """One global step with a gradient, or with a displacement where the replica steps by itself, under the terms
        that its round names; the replica is then one epoch further, on ``lineage``. None: no round, and the terms that
        this peer knows of.
        """
        ...


class Progress(Protocol):
    """How far the swarm is towards its next step."""

    async def has_reached(self, target_samples: float, *, is_patient: bool = True) -> bool:
        """Whether all trainers of our history together have ``target_samples``, as far as they have said.

        Args:
            is_patient: wait a moment where that may be so soon; else the answer comes at once.
        """
        ...


class Worker(Protocol):
    """The peer's compute port."""

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        """Run ``work`` off the event loop, after what is being computed."""
        ...

    async def beside(self, work: Callable[[], T]) -> T:
        """The same at once, beside a microbatch that is being computed."""
        ...


class Units(Protocol):
    """Units of work that parameter servers hand out: the replica trains on one at a time."""

    @property
    def is_single(self) -> bool:
        """Whether a push has to be answered before the next unit begins."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the last sample of the present unit is accumulated, and what that came to is not pushed yet."""
        ...

    def push(self, copy: HandedOver) -> None:
        """Begin to push what the present unit has come to: its ``mean`` are the parameters."""
        ...

    async def answer(self, *, waits: bool) -> tuple[HandedOver, Verdict] | None:
        """What was pushed, and what has become of it, told once; None: nothing is under way, or, unless it ``waits``,
        there is no answer yet.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """What a strategy may use."""

    peer_id: PeerId
    progress: Progress
    averager: Averager
    worker: Worker
    units: Units | None = None
    """None: the run has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The replica took its step."""

    contributors: int
    swarm_samples: float
    was_ours_used: bool
    """Whether this peer's samples are in the step."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """No step yet: compute on. ``reason`` tells of a lost round; empty: the target is not reached."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The swarm has its batch: ``contribute`` is due, and then ``take``."""


@dataclass(frozen=True, slots=True)
class OutOfStep:
    """The swarm went on without us: take over its state; what is accumulated stays."""

    reason: str


Decision = Stepped | Waiting | Ready | OutOfStep


class Strategy(Protocol):
    """One training algorithm."""

    @property
    def follows_swarm(self) -> bool:
        """Whether all replicas share one history, so that a peer that differs must resynchronise."""
        ...

    @property
    def is_synchronous(self) -> bool:
        """Whether rounds begin between two microbatches and are waited for; else they go on beside them."""
        ...

    async def after_microbatch(self, replica: Replica, swarm: Swarm) -> Decision:
        """Called after every microbatch that no round of ours goes on beside."""
        ...

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        """Bring what is accumulated to the swarm's round.

        Microbatches may be computed meanwhile: nothing that is shared may change.
        """
        ...

    def patience_s(self, replica: Replica, usual_s: float) -> float:
        """How long to wait for the round that was begun, since then, before the next microbatch is computed beside it;
        0: not at all. ``usual_s``: somewhat longer than rounds take that nothing disturbs.
        """
        ...

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        """Act on the outcome of ``contribute``, between two microbatches."""
        ...

    def apply(self, replica: Replica, committed: Committed) -> None:
        """The step of a round that committed without this peer, exactly as its members took it. Runs on the worker."""
        ...


async def decide(strategy: Strategy, replica: Replica, swarm: Swarm) -> Decision:
    """After a microbatch, with the round that may be due; nothing is computed beside it."""
    decision = await strategy.after_microbatch(replica, swarm)
    if not isinstance(decision, Ready):
        return decision
    return await strategy.take(replica, swarm, await strategy.contribute(replica, swarm))


def clip_to_norm(gradient: Vector, max_norm: float | None) -> Vector:
    """``gradient`` scaled down to Euclidean norm ``max_norm`` if it is longer; None: unchanged.

    The norm is summed in float64, so that every peer finds the same factor for the same bytes.
    """
    if max_norm is None:
        return gradient
    wide = gradient.astype(np.float64)
    norm = math.sqrt(float(np.dot(wide, wide)))
    return gradient if norm <= max_norm else gradient * np.float32(max_norm / norm)
