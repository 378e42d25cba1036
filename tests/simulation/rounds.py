"""Round engines on simulated links, without membership or training: what links allow, and what engines make of it."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collab.averaging.assembly import Expected
from collab.averaging.assistant import Assistant
from collab.averaging.base import Committed, Contribution, Outcome, Superseded
from collab.averaging.calls import Call, Reply
from collab.averaging.contribution_plan import Policy
from collab.averaging.round import RoundEngine
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.averaging.shares import PeerLink, solve
from collab.concurrency import Background
from collab.errors import StreamClosed
from collab.metrics.records import Event, Phase, PhaseReached
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.world import World
from collab.types import Lineage, PeerId, Vector

MBIT = 1e6 / 8
PAUSE_S = 1.0
HEARTBEAT, HEARTBEAT_EVERY_S, HEARTBEAT_BYTES = "test/heartbeat/1", 0.1, 200


def link(up: float, down: float | None = None, *, delay_ms: float = 0.5) -> Link:
    """Rates in Mbit/s."""
    return Link(up_bytes_per_s=up * MBIT, down_bytes_per_s=(down or up) * MBIT, latency_s=delay_ms / 1e3)


@dataclass(kw_only=True)
class Heartbeats:
    """A small message every 100 ms from one peer to another, on a stream of its own."""

    sender: int
    receiver: int
    delays_s: list[float] = field(default_factory=list)
    """Of those that arrived."""
    num_sent: int = 0

    async def receive(self, stream: Stream) -> None:
        """On the receiver."""
        loop = asyncio.get_running_loop()
        while True:
            message = await stream.receive(timeout_s=1e6)
            self.delays_s.append(loop.time() - message.get("sent_s", float))

    async def send(self, ports: Ports, to: PeerId) -> None:
        """On the sender, until it is cancelled."""
        loop = asyncio.get_running_loop()
        stream = await ports.transport.open(to, HEARTBEAT, timeout_s=1e6)
        with suppress(StreamClosed):  # the receiver's last round was over first
            while True:
                await stream.send(Message("beat", {"sent_s": loop.time()}, bytes(HEARTBEAT_BYTES)), timeout_s=1e6)
                self.num_sent += 1
                await asyncio.sleep(HEARTBEAT_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault in one round."""

    number: int
    """Of the round."""
    after_s: float
    """From the moment that the first peer has its group."""
    peer: int
    kind: str
    """"kill", "freeze" (for ever), or "slow" (a tenth of its link)."""


@dataclass
class SimRounds:
    """Peers that average random vectors, round after round, all starting together."""

    links: Sequence[Link]
    roles: dict[int, str] = field(default_factory=dict)
    """"aux" or "client"; anybody else is a trainer that can be dialled."""
    mb: float = 8.0
    rounds: int = 4
    policy: Policy = "exact"
    seed: int = 1
    changes: dict[int, dict[int, Link]] = field(default_factory=dict)
    """Round -> peer -> its new link."""
    strikes: Sequence[Strike] = ()
    heartbeats: Sequence[Heartbeats] = ()
    """At most one to a receiver."""
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    """By peer and round."""
    caught_up: dict[tuple[int, int], Committed | None] = field(default_factory=dict)
    """What a peer that was left out of a round took over from the others."""
    seconds: list[float] = field(default_factory=list)
    """Of each round, from the first group to the last whole result."""

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.engines: dict[int, RoundEngine] = {}
        self.absent: set[int] = set()
        """Killed or frozen."""
        self.num_elements = int(self.mb * 1e6 / 4)
        self._arrived: list[list[int]] = [[] for _ in range(self.rounds + 1)]
        self._began: dict[int, list[float]] = {number: [] for number in range(self.rounds)}
        self._ended: dict[int, list[float]] = {number: [] for number in range(self.rounds)}
        self.world.subscribe(self._note)
        for index, its_link in enumerate(self.links):
            self.world.add_peer(self._main(index), link=its_link, client_mode=self.role(index) == "client")

    def role(self, index: int) -> str:
        """Of one peer."""
        return self.roles.get(index, "trainer")

    @property
    def trainers(self) -> list[int]:
        """Peers with a vector."""
        return [index for index in range(len(self.links)) if self.role(index) != "aux"]

    def links_in(self, number: int) -> list[Link]:
        """The links as they are in a round."""
        links = list(self.links)
        for change in sorted(change for change in self.changes if change <= number):
            for index, its_link in self.changes[change].items():
                links[index] = its_link
        return links

    def optimum_s(self, bytes_per_element: float = 4.0, *, number: int = 0) -> float:
        """What the links allow in a round."""
        size = self.num_elements * bytes_per_element
        links = [
            PeerLink(
                peer=PeerId(str(index)),
                up_bytes_per_s=its_link.up_bytes_per_s,
                down_bytes_per_s=its_link.down_bytes_per_s,
                payload_bytes=0.0 if self.role(index) == "aux" else size,
                can_reduce=self.role(index) != "client",
                receives=self.role(index) != "aux",
            )
            for index, its_link in enumerate(self.links_in(number))
        ]
        return solve(links, size).seconds

    def run(self) -> list[float]:
        """Seconds of each round over the optimum for float32 on the links as they are then."""
        self.world.run()
        self.seconds = [max(self._ended[n]) - min(self._began[n]) for n in range(self.rounds)]
        return [seconds / self.optimum_s(number=number) for number, seconds in enumerate(self.seconds)]

    def vector(self, index: int) -> Vector:
        """Of a trainer, in every round."""
        return np.random.default_rng([self.seed, index]).standard_normal(self.num_elements, dtype=np.float32)

    def _note(self, peer: SimPeer, event: Event) -> None:
        if isinstance(event, PhaseReached) and event.phase is Phase.SEND_PARTS:
            if not self._began[event.epoch]:
                for strike in self.strikes:
                    if strike.number == event.epoch:
                        at_s = self.world.time_s + strike.after_s
                        self.world.call_at(at_s, lambda strike=strike: self._strike(strike))
            self._began[event.epoch].append(self.world.time_s)
        if isinstance(event, PhaseReached) and event.phase is Phase.BEFORE_COMMIT and peer.index in self.trainers:
            self._ended[event.epoch].append(self.world.time_s)

    def _strike(self, strike: Strike) -> None:
        index = strike.peer
        if strike.kind == "slow":
            whole = self.links[index]
            self.world.peers[index].transport.access.link = replace(
                whole, up_bytes_per_s=whole.up_bytes_per_s / 10, down_bytes_per_s=whole.down_bytes_per_s / 10
            )
            return
        self.absent.add(index)
        (self.world.kill if strike.kind == "kill" else self.world.freeze)(index)

    def _main(self, index: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        async def main(ports: Ports) -> None:
            assistant = Assistant()
            self.engines[index] = engine = self._engine(index, ports, assistant)
            await engine.serve()
            async with Background() as tasks:
                if self.role(index) == "aux":
                    tasks.create_task(assistant.run(engine))
                for heartbeats in self.heartbeats:
                    if index == heartbeats.receiver:
                        await ports.transport.serve(HEARTBEAT, heartbeats.receive)
                await self._together(index, 0)
                for heartbeats in self.heartbeats:
                    if index == heartbeats.sender:
                        tasks.create_task(heartbeats.send(ports, self.world.peers[heartbeats.receiver].peer_id))
                await self._rounds(index, engine)

        return main

    def _engine(self, index: int, ports: Ports, assistant: Assistant) -> RoundEngine:
        async def roster(epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
            peers = {i: peer.peer_id for i, peer in enumerate(self.world.peers)}
            return Expected(
                trainers=frozenset(peers[i] for i in self.trainers),
                helpers=frozenset(peer for i, peer in peers.items() if self.role(i) == "aux"),
            )

        def leaders(lineage: Lineage, epoch: int) -> list[PeerId]:
            able = [i for i in range(len(self.links)) if self.role(i) != "client"]
            return [self.world.peers[i].peer_id for i in sorted(able, key=lambda i: (self.role(i) != "aux", i))]

        def attend(call: Call, leader: PeerId) -> Reply:
            return assistant.attend(call, leader) if self.role(index) == "aux" else Reply(is_coming=True)

        settings = RoundSettings(
            fingerprint="sim", policy=self.policy, can_reduce=self.role(index) != "client", terms=FixedTerms(1e3)
        )
        return RoundEngine(ports, settings, leaders=leaders, roster=roster, attend=attend)

    async def _rounds(self, index: int, engine: RoundEngine) -> None:
        vector, lineage = self.vector(index) if index in self.trainers else None, Lineage("sim")
        for number in range(self.rounds):
            if number:
                await self._together(index, number)
            if index in self.changes.get(number, {}):
                self.world.peers[index].transport.access.link = self.changes[number][index]
            if vector is None:
                continue
            contribution = Contribution(epoch=number, lineage=lineage, vector=vector, weight=1.0)
            outcome = await engine.average(contribution)
            self.outcomes[index, number] = outcome
            if isinstance(outcome, Superseded):
                others = [peer.peer_id for peer in self.world.peers if peer.index in self.trainers]
                missed = await engine.history.fetch(others, (number, lineage), self.num_elements)
                self.caught_up[index, number] = missed
                lineage = missed.lineage if missed is not None else lineage
            if isinstance(outcome, Committed):
                lineage = outcome.lineage
        await self._together(index, self.rounds)
        for frozen in self.absent:
            if self.world.peers[frozen].is_alive:
                self.world.kill(frozen)

    async def _together(self, index: int, number: int) -> None:
        """All begin each round at once."""
        self._arrived[number].append(index)
        while not set(range(len(self.links))) - self.absent <= set(self._arrived[number]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(PAUSE_S)


def rounds_of_homes(homes: int, *, rounds: int) -> SimRounds:
    """Of home lines that reduce nothing, a trainer on a good line that does, and an auxiliary; 4 kB."""
    return SimRounds(
        [link(1000, delay_ms=10), link(200, delay_ms=15), *[link(20, 100, delay_ms=15)] * homes],
        roles={0: "aux", **dict.fromkeys(range(2, homes + 2), "client")},
        mb=0.004,
        rounds=rounds,
    )
