"""Taking over state on simulated links: all donors' uplinks at once, and what becomes of it when some of them fail."""

import asyncio
import statistics
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from collab.averaging.flow import Links
from collab.concurrency import Background
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.swarm.donation import StateServer
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.types import Lineage, PeerId
from tests.simulation.rounds import MBIT, SimRounds, link

MB = 24
FIRST_TAKEN_S = 20.0
"""Three rounds are over by then."""
SNAPSHOT = pack(
    Snapshot(
        epoch=3,
        lineage=Lineage("l"),
        tensors={"model.a": np.random.default_rng(0).standard_normal(MB * 250_000, dtype=np.float32)},
        scalars={},
    ),
    fingerprint="f",
)


@dataclass
class Handing:
    """Donors with these links, and newcomers that take their state at the same time."""

    donors: list[Link]
    newcomers: list[Link]
    seconds: dict[int, float] = field(default_factory=dict)
    """Of each newcomer, by its place among them."""
    brought: dict[int, dict[PeerId, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(1)
        for each in self.donors:
            self.world.add_peer(self._give, link=each)
        for number, each in enumerate(self.newcomers):
            self.world.add_peer(lambda ports, number=number: self._take(ports, number), link=each)  # type: ignore[misc]

    async def _give(self, ports: Ports) -> None:
        async def provide(epoch: int | None) -> PackedSnapshot:
            return SNAPSHOT

        await StateServer(ports.transport, Links(ports.clock.monotonic), "f", provide).serve()
        while any(peer.is_alive for peer in self.world.peers[len(self.donors) :]):
            await asyncio.sleep(0.1)

    async def _take(self, ports: Ports, number: int) -> None:
        await asyncio.sleep(0.1)
        began_s, donors = ports.clock.monotonic(), [peer.peer_id for peer in self.world.peers[: len(self.donors)]]
        links = Links(ports.clock.monotonic)
        packed, brought = await fetch_state(ports.transport, links, donors, fingerprint="f", wanted=Wanted())
        assert packed == SNAPSHOT
        self.seconds[number], self.brought[number] = ports.clock.monotonic() - began_s, dict(brought)


def test_four_donors_bring_the_state_at_the_rate_of_all_their_uplinks_together() -> None:
    handing = Handing([link(20, 100, delay_ms=20)] * 4, [link(20, 200, delay_ms=20)])
    handing.world.run()
    ideal_s = SNAPSHOT.manifest.num_bytes / (4 * 20 * MBIT)
    assert handing.seconds[0] <= 1.3 * ideal_s
    assert len(handing.brought[0]) == 4


def test_each_donor_brings_as_much_as_its_uplink_allows() -> None:
    rates = (5, 10, 20, 40)
    handing = Handing([link(rate, 100, delay_ms=20) for rate in rates], [link(20, 200, delay_ms=20)])
    handing.world.run()
    ideal_s = SNAPSHOT.manifest.num_bytes / (sum(rates) * MBIT)
    assert handing.seconds[0] <= 1.3 * ideal_s
    peers = [peer.peer_id for peer in handing.world.peers[:4]]
    shares = [handing.brought[0].get(peer, 0) / SNAPSHOT.manifest.num_bytes for peer in peers]
    assert shares == pytest.approx([rate / sum(rates) for rate in rates], abs=0.1)


def test_a_donor_that_is_killed_midway_costs_what_it_would_have_brought() -> None:
    handing = Handing([link(20, 100, delay_ms=20)] * 4, [link(20, 200, delay_ms=20)])
    handing.world.call_at(1.0, lambda: handing.world.kill(0))
    handing.world.run()
    ideal_s = 1.0 + (SNAPSHOT.manifest.num_bytes - 4 * 20 * MBIT) / (3 * 20 * MBIT)
    assert handing.seconds[0] <= 1.3 * ideal_s


def test_ten_newcomers_at_once_are_all_served() -> None:
    handing = Handing([link(100, 100, delay_ms=20)] * 4, [link(20, 200, delay_ms=20)] * 10)
    handing.world.run()
    ideal_s = 10 * SNAPSHOT.manifest.num_bytes / (4 * 100 * MBIT)
    assert max(handing.seconds.values()) <= 1.3 * ideal_s


@dataclass
class BusyDonors(SimRounds):
    """Rounds of peers that give their state to newcomers meanwhile."""

    newcomers: int = 0
    taken_s: list[float] = field(default_factory=list)
    """When each newcomer had the state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for _ in range(self.newcomers):
            self.world.add_peer(self._take, link=link(20, 200, delay_ms=20))

    def _main(self, index: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        averages = super()._main(index)

        async def main(ports: Ports) -> None:
            async with Background() as tasks:
                tasks.create_task(self._give(index, ports))
                await averages(ports)

        return main

    async def _give(self, index: int, ports: Ports) -> None:
        async def provide(epoch: int | None) -> PackedSnapshot:
            return SNAPSHOT

        while index not in self.engines:
            await asyncio.sleep(0.01)
        await StateServer(ports.transport, self.engines[index].links, "f", provide).serve()

    async def _take(self, ports: Ports) -> None:
        await asyncio.sleep(FIRST_TAKEN_S)
        links, donors = Links(ports.clock.monotonic), [peer.peer_id for peer in self.world.peers[: len(self.links)]]
        packed, _ = await fetch_state(ports.transport, links, donors, fingerprint="f", wanted=Wanted())
        assert packed == SNAPSHOT
        self.taken_s.append(self.world.time_s)


@pytest.mark.parametrize("newcomers", [1, 3])
def test_donors_average_nearly_as_fast_while_they_give_and_newcomers_get_all_of_it(newcomers: int) -> None:
    donors = [link(20, 100, delay_ms=20)] * 4
    calm, busy = (BusyDonors(donors, newcomers=number, rounds=12) for number in (0, newcomers))
    calm.run()
    busy.run()
    assert len(busy.taken_s) == newcomers
    usual_s = statistics.median(calm.seconds[3:])
    assert FIRST_TAKEN_S + 2 * usual_s < min(busy.taken_s), "they took it while rounds went on"
    assert max(busy.seconds[3:]) <= 1.1 * usual_s
