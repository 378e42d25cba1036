"""Butterflies over in-memory transports, without the control of rounds: the test says who is in a group."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from collab.averaging.butterfly import Butterfly
from collab.averaging.complaints import Complaint
from collab.averaging.encodings import Encodings
from collab.averaging.exchange import Bring
from collab.averaging.flow import Links
from collab.averaging.messages import Group, Member
from collab.averaging.weights import Weights
from collab.compression.base import codec_by_name
from collab.net.base import Handler
from collab.net.wire import Message
from collab.types import AnyVector, Lineage, PeerId, Vector
from tests.averaging.spans import equal_shares
from tests.fakes import FakeNetwork, FakeStream, make_ports, run

NONE = codec_by_name("none")
SMALL_PART = 256
LENGTH = 5 * SMALL_PART * 3 + 11


class Streams(FakeNetwork):
    """A network that remembers the streams that were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[FakeStream] = []

    def serve_stream(self, handler: Handler, stream: FakeStream) -> None:
        self.opened.append(stream)
        super().serve_stream(handler, stream)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a member holds in the end."""

    mean: AnyVector | None
    digests: list[str | None]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a member could not go on."""

    complaints: list[Complaint]


@dataclass(frozen=True, slots=True)
class Peer:
    """One butterfly and what it owes."""

    butterfly: Butterfly
    encodings: Encodings
    links: Links


class Swarm:
    """A few peers that do as a leader would say."""

    def __init__(self, network: FakeNetwork, names: str) -> None:
        self.network, self.names = network, names
        self.peers: dict[str, Peer] = {}
        self.rounds = 0
        self.weights: dict[str, Weights] = {}
        """Samples behind each element of a peer's next vector, where they differ."""

    async def serve(self) -> None:
        for name in self.names:
            links = Links(asyncio.get_running_loop().time)
            butterfly = Butterfly(make_ports(self.network.join(name)), links)
            await butterfly.serve()
            self.peers[name] = Peer(butterfly, Encodings(), links)

    def group(self, members: tuple[Member, ...], *, reducers: str = "", result_codec: str = "none") -> Group:
        """The next round of ``members``; all of them reduce unless said otherwise."""
        self.rounds += 1
        names = tuple(PeerId(name) for name in reducers) or tuple(member.peer for member in members)
        return Group(
            round_id=f"r{self.rounds}",
            epoch=self.rounds,
            lineage=Lineage("l"),
            num_elements=LENGTH,
            leader=members[0].peer,
            members=members,
            spans=equal_shares(LENGTH, names),
            part_elements=SMALL_PART,
            result_codec=result_codec,
        )

    async def try_exchange(self, group: Group, vectors: dict[str, AnyVector | None]) -> dict[str, Exchanged | Failed]:
        """What everybody got; the round is over when all are whole or somebody complains, and settled by nobody."""
        outcomes: dict[str, Exchanged | Failed] = {}
        everybody = asyncio.Event()
        await asyncio.gather(*(self._take_part(group, name, vectors, outcomes, everybody) for name in vectors))
        return outcomes

    async def _take_part(
        self,
        group: Group,
        name: str,
        vectors: dict[str, AnyVector | None],
        outcomes: dict[str, Exchanged | Failed],
        everybody: asyncio.Event,
    ) -> None:
        peer = self.peers[name]
        bring = Bring(vectors[name], self.weights.get(name))
        async with peer.butterfly.session(group, bring, peer.encodings) as session:
            while not session.is_whole and not session.complaints and not everybody.is_set():
                session.changed.clear()
                changed, over = asyncio.create_task(session.changed.wait()), asyncio.create_task(everybody.wait())
                await asyncio.wait((changed, over), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                over.cancel()
            is_whole = session.is_whole and not session.complaints
            outcomes[name] = Exchanged(session.mean, session.digests()) if is_whole else Failed(session.complaints)
            if not is_whole or len(outcomes) == len(vectors):
                everybody.set()
            await everybody.wait()

    async def exchange(self, group: Group, vectors: dict[str, AnyVector | None]) -> dict[str, AnyVector | None]:
        """Everybody's means."""
        outcomes = await self.try_exchange(group, vectors)
        means: dict[str, AnyVector | None] = {}
        for name, outcome in outcomes.items():
            assert isinstance(outcome, Exchanged), outcome
            means[name] = outcome.mean
        return means

    def settle(self, *, commits: bool) -> None:
        for peer in self.peers.values():
            if commits:
                peer.encodings.commit()
            peer.encodings.abort()

    def owed_by_senders(self) -> Vector:
        """Weight x value that all senders together have still to bring."""
        total = np.zeros(LENGTH)
        for peer in self.peers.values():
            total += NONE.decode(peer.encodings.part(NONE, 0, np.zeros(LENGTH, np.float32), 1.0), LENGTH)
            peer.encodings.abort()
        return total

    def owed_by_reducers(self) -> Vector:
        """What the means still lack."""
        total = np.zeros(LENGTH)
        for peer in self.peers.values():
            total += NONE.decode(peer.encodings.result(NONE, 0, np.zeros(LENGTH, np.float32)), LENGTH)
            peer.encodings.abort()
        return total


def members(names: str, codec: str = "none", weight: float = 1.0) -> tuple[Member, ...]:
    return tuple(Member(PeerId(name), weight, codec) for name in names)


def random_vector(seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=LENGTH).astype(np.float32)


def swarm_of(names: str, talk: Callable[[Swarm, Streams], Awaitable[None]]) -> None:
    """Run ``talk`` with so many peers."""

    async def main() -> None:
        async with Streams() as network:
            swarm = Swarm(network, names)
            await swarm.serve()
            await talk(swarm, network)

    run(main())


def break_a_part(network: FakeNetwork, after_parts: int) -> None:
    """Break the stream of the part that follows so many."""
    passed = 0

    def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
        nonlocal passed
        passed += message.kind == "part"
        return None if message.kind == "part" and passed == after_parts else message

    network.tamper = tamper
