"""A newcomer measures its link while those that help it average."""

import asyncio
from collections.abc import Sequence

import pytest

from collab.averaging.flow import Links
from collab.averaging.probe import LONGEST_S, Probe, Probed
from collab.ports import Ports
from collab.simulation.links import Link
from tests.simulation.rounds import MBIT, PAUSE_S, SimRounds, link

ROUND = 2
"""Links are known by then."""


@pytest.fixture(autouse=True)
def fair_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links take turns after a few packets, as real ones do."""
    for module in ("collab.simulation.links", "collab.net.memory_stream"):
        monkeypatch.setattr(f"{module}.PIECE_BYTES", 4096)


class Visited(SimRounds):
    """Rounds in one of which a newcomer comes."""

    probed: Probed
    probed_s: float

    def visit(self, its_link: Link) -> None:
        self.world.add_peer(self._newcomer, link=its_link)

    async def _newcomer(self, ports: Ports) -> None:
        while len(self._arrived[ROUND]) < len(self.links):
            await asyncio.sleep(0.01)
        await asyncio.sleep(PAUSE_S + 0.2)
        began_s = self.world.time_s
        probe = Probe(ports.transport, Links(ports.clock.monotonic))
        self.probed = await probe.measure([peer.peer_id for peer in self.world.peers[: len(self.links)]])
        self.probed_s = self.world.time_s - began_s


def rounds(links: Sequence[Link], newcomer: Link | None) -> Visited:
    swarm = Visited(links, mb=3.0, rounds=ROUND + 2)
    if newcomer is not None:
        swarm.visit(newcomer)
    swarm.run()
    return swarm


@pytest.mark.parametrize(("rate", "most_s"), [(10.0, 0.1), (100.0, 0.35)])
def test_a_newcomer_slows_the_round_that_runs_beside_its_probe_by_no_more_than_its_upload_takes(
    rate: float, most_s: float
) -> None:
    """What it sends comes into the helpers' downlinks beside the round; what they send comes behind it."""
    links = [link(25, delay_ms=5)] * 4
    alone, visited = rounds(links, None), rounds(links, link(rate, delay_ms=5))
    assert visited.probed_s <= LONGEST_S + 0.3
    assert visited.seconds[ROUND] <= alone.seconds[ROUND] + most_s
    assert visited.seconds[ROUND + 1] <= 1.05 * alone.seconds[ROUND + 1]
    for found in (visited.probed.up, visited.probed.down):
        assert found is not None
        assert found.bytes_per_s <= 1.15 * rate * MBIT
