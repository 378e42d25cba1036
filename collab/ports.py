"""The ports that a peer lives on. Real runs and simulations differ in these and in nothing else.

Waiting needs no port: every coroutine waits with ``asyncio`` (``sleep``, ``timeout``, queues), and the simulation runs
them on an event loop whose clock jumps. Network ports are in :mod:`collab.net.base`.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from collab.metrics.records import Event
from collab.net.base import Directory, Door, Transport
from collab.net.errands import Errands
from collab.net.lookups import Lookups
from collab.types import PeerId

T = TypeVar("T")


class Clock(Protocol):
    """Time as the swarm has it."""

    def now(self) -> float:
        """Swarm time: seconds since the Unix epoch, the machine's clock corrected by the measured offset."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump, for measuring durations; equal to the running event loop's ``time()``."""
        ...


class Compute(Protocol):
    """Where work that would block the event loop runs: one worker, in order of arrival."""

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        """Run ``work`` and return its result, or raise what it raised.

        Args:
            work: called once, never concurrently with other work of this peer.
            samples: training samples behind the work. The simulation charges ``samples / samples_per_s`` of virtual
                time; a real machine takes the time it takes.
        """
        ...

    async def beside(self, work: Callable[[], T]) -> T:
        """Run ``work`` off the event loop without waiting for the worker.

        Args:
            work: short, and safe beside whatever the worker is doing; a process that is to end waits for it.
        """
        ...

    async def apart(self, work: Callable[[], T]) -> T:
        """The same for work that may take minutes: a process that is to end does not wait for it.

        Args:
            work: safe also if it is never finished, as after ``kill -9``.
        """
        ...


class Keys(Protocol):
    """The key that this peer's id is made of, and those in the ids of others."""

    def sign(self, content: bytes) -> bytes:
        """64-byte signature of ``content``."""
        ...

    def is_signed_by(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """Whether ``peer`` made ``signature`` over ``content``; False for a malformed id."""
        ...


class Observer(Protocol):
    """Who wants to know what happens: terminal, metrics, the fault scripts of the simulation."""

    def observe(self, event: Event) -> None:
        """Take note of ``event``; must return at once and never raise."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What the owner of a machine allows; None: all that the link gives."""

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None


NO_LIMITS = LinkLimits()


def no_pass() -> bytes:
    """Of a peer that nobody has invited."""
    return b""


@dataclass(slots=True, kw_only=True)
class Entrance:
    """What this peer asks of those who come, and shows where it comes itself; set when the run is known."""

    door: Door | None = None
    """Who may come in; None: everybody."""
    credential: Callable[[], bytes] = no_pass
    """Our pass as of now; empty: none."""
    contributors: Callable[[], Collection[PeerId]] = tuple
    """Whom we have seen in the last rounds."""
    changes: int = 0
    """Counted up when the door has changed its mind about somebody: those who are in are asked about again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything a peer needs from its surroundings."""

    clock: Clock
    compute: Compute
    transport: Transport
    directory: Directory
    keys: Keys
    observer: Observer
    rng: random.Random
    lookups: Lookups = field(default_factory=Lookups)
    """How long ``directory`` is waited for; one for all who ask it, since they learn from each other's questions."""
    errands: Errands = field(default_factory=Errands)
    """The same of other peers, outside rounds."""
    limits: LinkLimits = NO_LIMITS
    """Of this machine's link; ``transport`` keeps to them, rounds are planned with them."""
    entrance: Entrance = field(default_factory=Entrance)
    """``transport`` shows and checks what is said here."""
