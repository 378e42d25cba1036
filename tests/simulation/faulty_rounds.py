"""Rounds of one cast on simulated links, with faults at the passing of named messages."""

import asyncio
import copy
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collab.averaging.assembly import Expected
from collab.averaging.base import Aborted, Committed, Contribution, Outcome, Superseded
from collab.averaging.calls import Call, Reply
from collab.averaging.round import RoundEngine
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.concurrency import Background
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.types import Lineage, PeerId, Vector
from tests.simulation.spoiling import SPOILS
from tests.simulation.tapped import TappedTransport

CAST = ("leader", "reducer", "sender", "client", "auxiliary")
"""By index. The first leads, three reduce, the sender can be dialled and reduces nothing, the client cannot."""
TRAINERS = (0, 1, 2, 3)
AUXILIARY = 4
REDUCING = (0, 1, 4)
DIALLED = (0, 1, 4, 2)
"""Who may lead, in this order."""
NUM_ELEMENTS = 150_000  # 0.6 MB: three reducers with some parts each
LINK = Link(up_bytes_per_s=25e6 / 8, down_bytes_per_s=25e6 / 8, latency_s=0.005)
FROZEN_S = 20.0
CUT_S = 10.0  # longer than anybody waits for a silent peer
PAUSE_S = 1.0
TRIES = 3
"""Of a trainer at one step, after aborts, before it gives the step up."""
STRIKES = ("kill", "freeze", "slow", "cancel")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, at the passing of a message."""

    number: int
    """Of the round."""
    peer: int
    kind: str
    """Of ``STRIKES`` or ``SPOILS``, or "cut": off from everybody for a while."""
    message: str
    """Kind of the message."""
    nth: int = 1
    """Of those messages in the round that this peer sends, or gets."""
    is_to: bool = False
    """Whether the peer gets the message, or sends it."""
    is_before: bool = False
    """Whether it strikes before the message leaves; a message that is spoilt is always spoilt before."""


class FaultyRounds:
    """A run of some rounds; afterwards everything that came of it."""

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        rounds: int = 3,
        seed: int = 1,
        bad_vector: int | None = None,
        leaders: Sequence[int] = DIALLED,
    ) -> None:
        """
        Args:
            bad_vector: a trainer whose vector has a NaN in it in round 1.
        """
        self.faults, self.num_rounds, self._seed, self._bad_vector = list(faults), rounds, seed, bad_vector
        self._leaders = leaders
        self.world = World(seed)
        self.fired: set[Fault] = set()
        self.struck: set[int] = set()
        """Who died, or has been frozen: the others wait for them no more."""
        self.outcomes: dict[tuple[int, int], list[Outcome]] = {}
        """By peer and round, of each try."""
        self.caught_up: dict[tuple[int, int], Committed | None] = {}
        self.seconds: dict[tuple[int, int], float] = {}
        """Of all tries of a peer in a round, without what it takes to catch up."""
        self.given: dict[tuple[int, int], bytes] = {}
        """What is left of each contribution after the round."""
        self._round = 0
        self._counts: Counter[tuple[int, int, str, bool]] = Counter()
        self._averaging: dict[int, asyncio.Task[Outcome]] = {}
        self._assisting: list[asyncio.Task[Outcome]] = []
        self._arrived: Counter[tuple[int, int]] = Counter()
        self._index: dict[PeerId, int] = {}
        for index in range(len(CAST)):
            peer = self.world.add_peer(self._main(index), link=LINK, client_mode=CAST[index] == "client")
            self._index[peer.peer_id] = index

    def run(self) -> None:
        """To the end; raises what went wrong beyond the faults."""
        self.world.run()

    def peer_id(self, index: int) -> PeerId:
        return self.world.peers[index].peer_id

    def vector(self, index: int, number: int) -> Vector:
        """Of a trainer in a round."""
        generator = np.random.default_rng([self._seed, index, number])
        vector = generator.standard_normal(NUM_ELEMENTS, dtype=np.float32)
        if number == 1 and index == self._bad_vector:
            vector[:] = np.nan
        return vector

    def commits(self, number: int) -> dict[int, Committed]:
        """Of those who committed a round themselves."""
        last = {i: self.outcomes[i, number][-1] for i in TRAINERS if self.outcomes.get((i, number))}
        return {index: outcome for index, outcome in last.items() if isinstance(outcome, Committed)}

    # -- faults ------------------------------------------------------------------------------------------------------

    def _tap(self, index: int, ports: Ports) -> Ports:
        async def passing(to: PeerId, message: Message) -> list[Message]:
            due = self._due(index, to, message)
            for fault in due:
                if fault.is_before and fault.kind not in SPOILS:
                    self._strike(fault)
                    await asyncio.sleep(0)
            messages = [message]
            for fault in due:
                if fault.kind in SPOILS:
                    messages = SPOILS[fault.kind](copy.copy(message))
                    self.fired.add(fault)
            return messages

        async def passed(to: PeerId, message: Message) -> None:
            for fault in self._due(index, to, message, counts=False):
                if not fault.is_before and fault.kind not in SPOILS:
                    self._strike(fault)
                    if fault.peer == index:
                        await asyncio.sleep(0)  # here its code ends, or stands still

        return replace(ports, transport=TappedTransport(ports.transport, passing, passed))

    def _due(self, sender: int, to: PeerId, message: Message, *, counts: bool = True) -> list[Fault]:
        sides = {False: sender, True: self._index[to]}
        for is_to, index in sides.items():
            self._counts[self._round, index, message.kind, is_to] += counts
        return [
            fault
            for fault in self.faults
            if fault not in self.fired
            and (fault.number, fault.message) == (self._round, message.kind)
            and sides[fault.is_to] == fault.peer
            and self._counts[self._round, fault.peer, message.kind, fault.is_to] >= fault.nth
        ]

    def _strike(self, fault: Fault) -> None:
        if fault in self.fired or fault.peer in self.struck:
            return
        self.fired.add(fault)
        index = fault.peer
        if fault.kind == "slow":
            up, down = LINK.up_bytes_per_s / 10, LINK.down_bytes_per_s / 10
            self.world.set_link(index, replace(LINK, up_bytes_per_s=up, down_bytes_per_s=down))
        elif fault.kind == "cut":
            network = self.world.network
            if not network.fabric.is_split:
                network.split([[self.world.peers[index].transport]])
                self.world.call_at(self.world.time_s + CUT_S, network.heal)
        elif fault.kind == "cancel":
            tasks = self._assisting if index == AUXILIARY else [self._averaging[index]]
            for task in tasks:
                task.cancel()
        else:
            self.struck.add(index)
            if fault.kind == "kill":
                self.world.kill(index)
            else:
                self.world.freeze(index)
                self.world.call_at(self.world.time_s + FROZEN_S, lambda: self.world.thaw(index))

    # -- peers -------------------------------------------------------------------------------------------------------

    def _main(self, index: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        async def main(ports: Ports) -> None:
            calls: asyncio.Queue[tuple[Call, PeerId]] = asyncio.Queue()
            engine = self._engine(index, self._tap(index, ports), calls)
            await engine.serve()
            async with Background() as tasks:
                if index == AUXILIARY:
                    tasks.create_task(self._assist(engine, calls))
                await self._rounds(index, engine)

        return main

    def _engine(self, index: int, ports: Ports, calls: "asyncio.Queue[tuple[Call, PeerId]]") -> RoundEngine:
        async def roster(epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
            trainers = frozenset(self.peer_id(i) for i in TRAINERS)
            return Expected(trainers=trainers, helpers=frozenset({self.peer_id(AUXILIARY)}))

        def attend(call: Call, leader: PeerId) -> Reply:
            if index == AUXILIARY:
                calls.put_nowait((call, leader))
            return Reply(is_coming=True)

        settings = RoundSettings(fingerprint="sim", policy="exact", can_reduce=index in REDUCING, terms=FixedTerms(1e3))
        leaders = [self.peer_id(i) for i in self._leaders]
        return RoundEngine(ports, settings, leaders=lambda lineage, epoch: leaders, roster=roster, attend=attend)

    async def _assist(self, engine: RoundEngine, calls: "asyncio.Queue[tuple[Call, PeerId]]") -> None:
        while True:
            call, leader = await calls.get()
            self._assisting.append(asyncio.create_task(engine.assist(leader, call.epoch, call.lineage)))

    async def _rounds(self, index: int, engine: RoundEngine) -> None:
        lineage = Lineage("sim")
        for number in range(self.num_rounds):
            await self._together(index, number)
            if index in self.struck:
                break
            self._round = max(self._round, number)
            if index in TRAINERS:
                lineage = await self._step(index, number, engine, lineage)
        await self._together(index, self.num_rounds)

    async def _step(self, index: int, number: int, engine: RoundEngine, lineage: Lineage) -> Lineage:
        """One step as a trainer takes it: until a commit of its own, or another's; after aborts it comes again."""
        vector = self.vector(index, number)
        contribution = Contribution(epoch=number, lineage=lineage, vector=vector, weight=1.0 + index)
        tries, began_s = list[Outcome](), self.world.time_s
        self.outcomes[index, number] = tries
        while len([outcome for outcome in tries if isinstance(outcome, Aborted)]) < TRIES:
            self._averaging[index] = task = asyncio.create_task(engine.average(contribution))
            await asyncio.wait({task})
            if task.cancelled():
                continue
            tries.append(task.result())
            self.given[index, number] = vector.tobytes()
            self.seconds[index, number] = self.world.time_s - began_s
            if isinstance(tries[-1], Committed):
                return tries[-1].lineage
            if isinstance(tries[-1], Superseded):
                others = [self.peer_id(i) for i in DIALLED if i in TRAINERS and i != index]
                missed = await engine.history.fetch(others, (number, lineage), NUM_ELEMENTS)
                self.caught_up[index, number] = missed
                return lineage if missed is None else missed.lineage
            await asyncio.sleep(PAUSE_S)
        return lineage

    async def _together(self, index: int, number: int) -> None:
        """All begin each round at once, but those who were struck; at the end the dead alone are not waited for."""
        self._arrived[index, number] += 1
        while not all(self._arrived[i, number] for i in range(len(CAST)) if not self._is_excused(i, number)):
            await asyncio.sleep(0.05)
        await asyncio.sleep(PAUSE_S)

    def _is_excused(self, index: int, number: int) -> bool:
        peer = self.world.peers[index]
        return not peer.is_alive or (index in self.struck and number < self.num_rounds)
