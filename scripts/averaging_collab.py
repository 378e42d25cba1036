"""collab's round engine as a contestant: the engine itself over the real transport, without membership or training."""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from averaging_engine import Result, Turn, Voice
from averaging_heartbeats import PROTOCOL as HEARTBEAT_PROTOCOL, Begin, echo
from averaging_life import Life
from averaging_setup import Assignment, Part

from collab.averaging.assembly import Expected
from collab.averaging.assistant import Assistant
from collab.averaging.base import Committed, Contribution
from collab.averaging.calls import Call, Reply
from collab.averaging.contribution_plan import Policy
from collab.averaging.messages import Group
from collab.averaging.round import RoundEngine
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.clock import SystemClock
from collab.compression.base import codec_by_name
from collab.compute import ThreadCompute
from collab.concurrency import Background
from collab.metrics.records import Event, Phase, PhaseReached
from collab.net.base import Entry, Handler, Stream, Transport
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.loopback import LoopbackTransport
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.identity import load_or_create_identity
from collab.types import Lineage, PeerId

POLICIES: dict[str, Policy] = {"none": "exact", "half": "half", "auto": "auto"}
UNKNOWN = {"up_bytes_per_s": 0.0, "up_is_limit": False, "down_bytes_per_s": 0.0, "down_is_limit": False}
"""In a peer's word to its leader."""
TARGET_SAMPLES = 1e6
"""So that no weight of the benchmark is absurd."""
DIAL_LIMIT_S = 20.0
PROBE_TURN_S = 2.0
"""A newcomer's probe takes 1.3 s, over long ways 2 s."""
MARKS = {Phase.SEND_PARTS: "group", Phase.BEFORE_COMMIT: "whole"}


class NullDirectory:
    """Implements ``Directory`` with nothing in it: everybody has been told of everybody."""

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        return False

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        return {}


class WatchedStream:
    """Implements ``Stream``: counts the payloads that leave this machine, and remembers how a group encodes."""

    def __init__(self, inner: Stream, watch: "WatchedTransport") -> None:
        self._inner, self._watch = inner, watch
        self.close = inner.close

    @property
    def remote(self) -> PeerId:
        return self._inner.remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        if self.remote != self._watch.peer_id:
            self._watch.payload_bytes += len(message.payload)
        if message.kind == "join" and self._watch.is_blind:
            message = Message("join", {**message.fields, **UNKNOWN})
        await self._inner.send(message, timeout_s=timeout_s)

    async def receive(self, *, timeout_s: float) -> Message:
        message = await self._inner.receive(timeout_s=timeout_s)
        if message.kind == "begin":
            self._watch.group = Group.from_message(message)
        return message


class WatchedTransport:
    """Implements ``Transport`` around another one."""

    def __init__(self, inner: Transport, *, is_blind: bool) -> None:
        """
        Args:
            is_blind: leaders are not told what was measured, so that they plan with equal shares.
        """
        self._inner, self.is_blind = inner, is_blind
        self.payload_bytes = 0
        self.group: Group | None = None
        """The newest."""
        self.addresses, self.dial = inner.addresses, inner.dial

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        return WatchedStream(await self._inner.open(peer, protocol, timeout_s=timeout_s), self)

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._inner.serve(protocol, lambda stream: handler(WatchedStream(stream, self)))


class Marker:
    """Implements ``Observer``: tells when a round's phases began."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseReached) and event.phase in MARKS:
            self._voice.tell(MARKS[event.phase])


class Acquaintances:
    """Membership that never changes: the dead are found out when they are called."""

    def __init__(self, leading: list[PeerId], expected: Expected) -> None:
        self._leading, self._expected = leading, expected

    def leaders(self, lineage: Lineage, epoch: int) -> list[PeerId]:
        """Auxiliary peers first."""
        return list(self._leading)

    async def roster(self, epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        return self._expected

    def attend(self, call: Call, leader: PeerId) -> Reply:
        """All trainers begin at the same moment, so whoever is called is coming."""
        return Reply(is_coming=True)


class CollabEngine:
    """Implements ``Engine``: the peer lives in an event loop of its own, in a thread."""

    def __init__(self, work: Assignment, voice: Voice) -> None:
        self._work, self._voice = work, voice
        self._indices: dict[PeerId, int] = {}
        self._life = Life(self._live)
        self.contact = self._life.contact

    def connect(self, contacts: Sequence[str]) -> None:
        self._life.wait(self._connect([contact.partition(" ")[::2] for contact in contacts]))

    def average(self, turn: Turn) -> Result:
        unchanged = Result(mean=None, epoch=turn.epoch, lineage=turn.lineage, is_committed=False, contributors={})
        if turn.vector is None:  # an auxiliary peer comes when a leader calls
            return unchanged
        contribution = Contribution(
            epoch=turn.epoch, lineage=Lineage(turn.lineage), vector=turn.vector, weight=turn.weight
        )
        outcome = self._life.wait(self._engine.average(contribution))
        if not isinstance(outcome, Committed):
            return replace(unchanged, reason=outcome.text)
        vector_bytes, result_bytes = self._sizes(len(turn.vector))
        return Result(
            mean=outcome.mean,
            epoch=turn.epoch + 1,
            lineage=outcome.lineage,
            is_committed=True,
            contributors={self._indices[peer]: weight for peer, weight in outcome.record.contributors},
            gaps=tuple((self._indices[peer], start, stop) for peer, start, stop in outcome.record.gaps),
            vector_bytes=vector_bytes,
            result_bytes=result_bytes,
        )

    def _sizes(self, num_elements: int) -> tuple[int, int]:
        """Bytes of our encoded vector and of the result, as the newest group fixed them."""
        group = self._transport.group
        if group is None:
            return 0, 0
        own = next((member for member in group.contributors if member.peer == self._transport.peer_id), None)
        sent = codec_by_name(own.codec).encoded_bytes(num_elements) if own is not None else 0
        return sent, codec_by_name(group.result_codec).encoded_bytes(num_elements)

    def take_payload_bytes(self) -> int:
        taken, self._transport.payload_bytes = self._transport.payload_bytes, 0
        return taken

    def accompany(self, begin: Begin) -> None:
        """Implements ``Host``."""
        self._life.wait(self._accompany(begin))

    def leave(self) -> None:
        self._life.leave()

    # -- in the event loop -------------------------------------------------------------------------------------------

    async def _live(self, opened: "Future[str]", leaving: asyncio.Event) -> None:
        """From p2pd's start to its end."""
        settings = NetworkSettings(
            identity_path=Path.cwd() / f"collab-{self._work.index}.key",
            host=self._work.host,
            is_client=self._work.part is Part.CLIENT,
        )
        identity = load_or_create_identity(settings.identity_path)
        compute = ThreadCompute()
        async with open_transport(settings) as outer, Background() as tasks:
            self._tasks, self._transport = (
                tasks,
                WatchedTransport(LoopbackTransport(outer, tasks), is_blind=self._work.engine == "equal"),
            )
            self._ports = Ports(
                clock=SystemClock(),
                compute=compute,
                transport=self._transport,
                directory=NullDirectory(),
                keys=identity,
                observer=Marker(self._voice),
                rng=random.Random(self._work.seed * 1000 + self._work.index),
            )
            await self._transport.serve(HEARTBEAT_PROTOCOL, echo)
            opened.set_result(" ".join([outer.peer_id, *(await outer.addresses())[:1]]))
            await leaving.wait()
        compute.close()

    async def _connect(self, others: list[tuple[str, str]]) -> None:
        """Build the engine around everybody, and dial whoever can be dialled."""
        peers = [PeerId(peer) for peer, _ in others]
        self._indices = {peer: index for index, peer in enumerate(peers)}
        parts = dict(zip(peers, self._work.parts, strict=True))
        dialled = [peer for peer in peers if parts[peer] is not Part.CLIENT]
        everybody = Acquaintances(
            leading=sorted(dialled, key=lambda peer: parts[peer] is not Part.AUXILIARY),
            expected=Expected(
                trainers=frozenset(peer for peer in peers if parts[peer] is not Part.AUXILIARY),
                helpers=frozenset(peer for peer in peers if parts[peer] is Part.AUXILIARY),
            ),
        )
        assistant = Assistant() if self._work.part is Part.AUXILIARY else None
        self._engine = RoundEngine(
            self._ports,
            RoundSettings(
                fingerprint="bench",
                policy=POLICIES[self._work.codec],
                can_reduce=self._work.part is not Part.CLIENT,
                terms=FixedTerms(TARGET_SAMPLES),
            ),
            leaders=everybody.leaders,
            roster=everybody.roster,
            attend=assistant.attend if assistant else everybody.attend,
        )
        await self._engine.serve()
        if assistant is not None:
            self._tasks.create_task(assistant.run(self._engine))
        for index, (_, address) in enumerate(others):
            # one side dials: over long links two peers that dial each other at once meet in a failed handshake
            is_ours = index < self._work.index or self._work.part is Part.CLIENT
            if address and is_ours and index != self._work.index:
                await self._transport.dial(address, timeout_s=DIAL_LIMIT_S)
        await asyncio.sleep(self._work.index * PROBE_TURN_S)  # as if they had joined one after another
        await self._engine.probe.measure([peer for peer in dialled if peer != self._transport.peer_id])

    async def _accompany(self, begin: Begin) -> None:
        await begin(self._transport, list(self._indices), self._tasks)
