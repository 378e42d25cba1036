"""A parameter server in virtual time, and clients that do what a test says."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.errors import StateError
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.swarm.identity import Identity
from collab.swarm.parameter_server import ParameterServer, Rules
from collab.swarm.parameter_store.base import Kept
from collab.swarm.parameter_store.calls import StoreCalls
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.swarm.unit_client import Granted, UnitClient
from collab.swarm.unit_scheduler import Plan, UnitScheduler
from collab.types import PeerId

ELEMENTS = 50_000
RUN = "f" * 64
LINK = Link(up_bytes_per_s=2.5e6, down_bytes_per_s=2.5e6, latency_s=0.02)
START = np.ones(ELEMENTS, np.float32)


class Lab:
    """A server, which is peer 0, and clients that do what a test says."""

    def __init__(
        self, *, shards: int = 4, last: int | None = 8, max_staleness: int | None = None, link: Link = LINK
    ) -> None:
        self.world, self.stores = World(1), EraStores(lambda _era: InProcessStore())
        self.store = self.stores.of("")
        self.store.begin(Kept.at_first(START))
        self.complaints: list[StateError] = []
        """Of the store, as the server's keeper hears them."""
        self.era = ""
        """As far as the server knows."""
        self.last, self.shards, self.max_staleness = last, shards, max_staleness
        self.in_charge: PeerId | None = None
        self.is_known = True
        """Whether the server knows that it is a backbone of the run."""
        self.restart: Callable[[], None]
        """Have the scheduler know of no lease, as after a restart."""
        self.world.add_peer(self._serve, link=link)

    async def _serve(self, ports: Ports) -> None:
        me = ports.transport.peer_id
        timeouts = MeasuredTimeouts(ports.clock.monotonic, FIRST)
        plan = Plan(
            fingerprint=RUN,
            era=lambda: self.era,
            shards=self.shards,
            first_lease_s=20.0,
            last_version=lambda: self.last,
        )
        rules = Rules(
            fingerprint=RUN,
            era=lambda: self.era,
            alpha=lambda _: 0.5,
            max_staleness=self.max_staleness,
            is_scheduler=lambda peer: peer == me and self.is_known,
        )
        calls = StoreCalls(ports.compute, self.stores, self.complaints.append)
        scheduler = UnitScheduler(ports, plan, calls, timeouts, lambda: self.in_charge or me)
        self.restart = scheduler.forget
        await scheduler.serve()
        await ParameterServer(ports, rules, calls, timeouts, scheduler.note_brought).serve()
        await asyncio.Event().wait()

    @property
    def server(self) -> Identity:
        return self.world.peers[0].identity

    def add(
        self, work: Callable[[Ports, UnitClient], Coroutine[Any, Any, Any]], run: str = RUN, link: Link = LINK
    ) -> None:
        async def main(ports: Ports) -> Any:
            timeouts = MeasuredTimeouts(ports.clock.monotonic, FIRST)
            client = UnitClient(ports, run, ELEMENTS, lambda: [self.server.peer_id], timeouts)
            return await work(ports, client)

        self.world.add_peer(main, link=link)

    def run(self, for_s: float = 120.0) -> list[Any]:
        with self.world:
            self.world.run(until_s=for_s)
        return [peer.result for peer in self.world.peers[1:]]


async def a_unit(client: UnitClient) -> Granted:
    granted = await client.take()
    assert isinstance(granted, Granted)
    return granted
