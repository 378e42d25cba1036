"""One peer of a simulated world, and what became of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from collab.metrics.records import Event
from collab.net.memory_net import MemoryTransport
from collab.ports import Ports
from collab.simulation.virtual_time import VirtualClock, VirtualCompute
from collab.swarm.identity import Identity
from collab.types import PeerId

Main = Callable[[Ports], Awaitable[Any]]


@dataclass(slots=True, eq=False, kw_only=True)
class SimPeer:
    """One peer, and what became of it."""

    index: int
    name: str
    identity: Identity
    main: Main
    clock: VirtualClock
    compute: VirtualCompute
    transport: MemoryTransport
    ports: Ports
    task: asyncio.Task[Any]
    events: list[Event] = field(default_factory=list)
    """What it observed, over all its lives."""
    result: Any = None
    exception: BaseException | None = None
    lives: int = 1

    @property
    def peer_id(self) -> PeerId:
        """Its libp2p peer id."""
        return self.transport.peer_id

    @property
    def private_key_bytes(self) -> bytes:
        """Seed of its Ed25519 key, 32 bytes."""
        return self.identity.key.private_bytes_raw()

    @property
    def is_alive(self) -> bool:
        """Whether its process runs: its main has not ended, and nobody killed it."""
        return self.transport.is_alive

    @property
    def sent_bytes(self) -> int:
        """Bytes of streams put on its uplink in its present life."""
        return self.transport.access.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of streams that came to its downlink in its present life."""
        return self.transport.access.received_bytes
