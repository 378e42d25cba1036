"""Newcomers and those that help them to measure their links, on simulated links and without rounds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from collab.averaging.flow import Links, Measured
from collab.averaging.probe import PROBE_PROTOCOL, Probe, Probed
from collab.net.base import Handler
from collab.net.limits import within_limits
from collab.ports import NO_LIMITS, LinkLimits, Ports
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.swarm.bandwidth import Rate
from tests.simulation.rounds import link

MBIT = 125_000.0
PAUSE_S = 1.0
FAST = link(1000, delay_ms=5)


class KnownLinks(Links):
    """Of a peer that has measured its link in rounds."""

    def __init__(self, clock: Callable[[], float], its_link: Link) -> None:
        super().__init__(clock)
        self._link = its_link

    def measured(self) -> Measured:
        return Measured(
            up_bytes_per_s=self._link.up_bytes_per_s,
            up_is_limit=True,
            down_bytes_per_s=self._link.down_bytes_per_s,
            down_is_limit=True,
        )


@dataclass
class ProbeLab:
    """Everybody asks the same helpers, in their order, and all at once."""

    newcomers: Sequence[Link]
    helpers: Sequence[Link]
    strange: dict[int, Handler] = field(default_factory=dict)
    """Helpers that answer in their own way."""
    dead: Sequence[int] = ()
    """Helpers that are gone when they are asked."""
    frozen: Sequence[int] = ()
    """Helpers whose machine has stopped."""
    limits: LinkLimits = NO_LIMITS
    """Of the newcomers."""
    knows_links: bool = True
    """Whether the helpers know what their own links carry."""
    before: Callable[[Ports], Awaitable[None]] | None = None
    """What newcomers do first."""
    probed: dict[int, Probed] = field(default_factory=dict)
    """By newcomer."""
    seconds: dict[int, float] = field(default_factory=dict)

    def run(self) -> Probed:
        """What the first newcomer found out; all others are done, too."""
        self.world = World(1)
        self.links: list[Links] = []  # of the helpers, then of the newcomers
        for index, its_link in enumerate(self.helpers):
            self.world.add_peer(self._helper(index, its_link), link=its_link)
        for number, its_link in enumerate(self.newcomers):
            self.world.add_peer(self._newcomer(number), link=its_link)
        for index in self.dead:
            self.world.call_at(PAUSE_S / 2, lambda index=index: self.world.kill(index))
        for index in self.frozen:
            self.world.call_at(PAUSE_S / 2, lambda index=index: self.world.freeze(index))
        self.world.run(until_s=60.0)
        self.world.close()
        return self.probed[0]

    def _helper(self, index: int, its_link: Link) -> Callable[[Ports], Awaitable[None]]:
        async def main(ports: Ports) -> None:
            clock = ports.clock.monotonic
            links = KnownLinks(clock, its_link) if self.knows_links else Links(clock)
            self.links.append(links)
            if index in self.strange:
                await ports.transport.serve(PROBE_PROTOCOL, self.strange[index])
            else:
                await Probe(ports.transport, links).serve()
            await asyncio.Event().wait()

        return main

    def _newcomer(self, number: int) -> Callable[[Ports], Awaitable[None]]:
        async def main(ports: Ports) -> None:
            ports = within_limits(ports, self.limits)
            links = Links(ports.clock.monotonic, ports.limits)
            self.links.append(links)
            probe = Probe(ports.transport, links)
            await asyncio.sleep(PAUSE_S)
            if self.before is not None:
                await self.before(ports)
            began_s = self.world.time_s
            self.probed[number] = await probe.measure([peer.peer_id for peer in self.world.peers[: len(self.helpers)]])
            self.seconds[number] = self.world.time_s - began_s

        return main


def take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links take turns after a few packets, as real ones do; the pieces of long simulations would be queues here."""
    for module in ("collab.simulation.links", "collab.net.memory_stream"):
        monkeypatch.setattr(f"{module}.PIECE_BYTES", 4096)


def mbit(rate: Rate | None) -> float:
    assert rate is not None
    return rate.bytes_per_s / MBIT


def check(probed: Probed, its_link: Link, *, off: float = 0.15) -> None:
    """Both directions were found out, and that the link is the limit."""
    assert mbit(probed.up) == pytest.approx(its_link.up_bytes_per_s / MBIT, rel=off)
    assert mbit(probed.down) == pytest.approx(its_link.down_bytes_per_s / MBIT, rel=off)
    assert [found.is_limit for found in (probed.up, probed.down) if found] == [True, True], probed
