"""A trainer without a model in a long-lived swarm: the round engine, with membership as trainers have it.

Records in the DHT say who is there and at which history; leaders, rosters and calls follow from them. What stands for
the model's state is the place in the history alone: a newcomer takes over where most trainers are, a peer that missed
rounds fetches their means.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from averaging_collab import WatchedTransport
from averaging_contest import GENESIS
from averaging_engine import Voice
from averaging_life import Life
from faults_setup import Place

from collab.averaging.base import Aborted, Committed, Contribution, Outcome, Superseded
from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.round import RoundEngine
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.averaging.standing import Standing
from collab.concurrency import Background
from collab.metrics.records import Event, PeerRefused, Phase, PhaseReached, RoundEnded
from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import StartupSettings, start_peer
from collab.ports import Ports
from collab.swarm.batch_watch import BatchWatch
from collab.swarm.board import ProgressBoard
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.time_sync import serve_time
from collab.types import AnyVector, Lineage, PeerId, Role

FINGERPRINT = "bench-faults"
TARGET_SAMPLES = 8
"""Less than anybody brings: who has a vector wishes to average at once."""
MICROBATCH_S = 0.05
"""What a trainer computes before it looks again whether there is a round."""
MOST_TOLD = 300
"""Characters of a reason."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One global step of one peer."""

    committed: Committed
    attempts: int = 0
    """Times that it asked somebody to lead."""
    was_late: bool = False
    """It has fetched the result: the others committed without it."""
    reasons: list[str] = field(default_factory=list)
    """Of the attempts that came to nothing."""


class Told:
    """Implements ``Observer``: says what happens in rounds, and counts attempts."""

    def __init__(self, member: "Member", voice: Voice) -> None:
        self._member, self._voice = member, voice
        self.attempts = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseReached) and event.phase is Phase.JOIN_GROUP:
            self.attempts += 1
        elif isinstance(event, PhaseReached) and event.phase is Phase.SEND_PARTS:
            self._voice.tell("group", leader=self._member.leader_slot())
        elif isinstance(event, RoundEnded) and not event.committed:
            self._voice.tell("event", event="RoundEnded", seconds=event.seconds, text=event.reason[:MOST_TOLD])
        elif isinstance(event, PeerRefused):
            slot = self._member.slots.get(event.peer)
            fields = {"slot": slot, "reason": event.reason, "text": event.text[:MOST_TOLD]}
            self._voice.tell("event", event="PeerRefused", **fields)


class Member:
    """The peer lives in an event loop of its own, in a thread; calls come from another one and block."""

    def __init__(self, place: Place, voice: Voice) -> None:
        self._place = place
        self._told = Told(self, voice)
        self.slots: dict[PeerId, int] = {}
        """Of everybody who was ever heard of."""
        self._epoch, self._lineage = 0, Lineage("")
        self._state, self._samples = PeerState.SYNCING, 0
        self._life = Life(self._live)
        self.contact = self._life.contact

    def enter(self, *, is_newcomer: bool) -> None:
        """Measure the link, and take a place in the swarm's history: its first one, or where most are."""
        self._life.wait(self._enter(is_newcomer=is_newcomer))

    def look(self) -> tuple[int, int | None]:
        """How many trainers are known to be where we are, ourselves included, and the slot of who would lead them."""
        return self._life.wait(self._look())

    def step(self, vector: AnyVector, weight: float) -> Step:
        """Take part until there is a result; as many attempts as that takes."""
        return self._life.wait(self._step(vector, weight))

    def leave(self) -> None:
        self._life.leave()

    @property
    def history(self) -> tuple[int, Lineage]:
        """Where we stand."""
        return self._epoch, self._lineage

    def leader_slot(self) -> int | None:
        """Of the newest round."""
        group = self._transport.group
        return self.slots.get(group.leader) if group is not None else None

    # -- in the event loop -------------------------------------------------------------------------------------------

    async def _live(self, opened: "Future[str]", leaving: asyncio.Event) -> None:
        network = NetworkSettings(identity_path=Path.cwd() / f"{self._place.name}.key", host=self._place.host)
        settings = StartupSettings(network=network, bootstrap=self._place.bootstrap)
        async with start_peer(settings, self._told) as started, Background() as tasks:
            self._tasks = tasks
            self._transport = WatchedTransport(started.ports.transport, is_blind=False)
            ports = Ports(
                clock=started.ports.clock,
                compute=started.ports.compute,
                transport=self._transport,
                directory=started.ports.directory,
                keys=started.identity,
                observer=self._told,
                rng=started.ports.rng,
            )
            self._build(ports, started.identity)
            await serve_time(ports.transport, ports.clock)
            await self._engine.serve()
            for task in (self._membership.keep_alive(), self._standing.run()):
                tasks.create_task(task)
            opened.set_result((await self._transport.addresses())[0])
            await leaving.wait()

    def _build(self, ports: Ports, identity: Identity) -> None:
        """As a trainer's ``Participant`` does."""
        self._clock = ports.clock
        self._membership = Membership(ProgressBoard(ports, identity, FINGERPRINT), ports.clock, self._record)
        leaders = self._membership.leaders
        self._engine = RoundEngine(
            ports,
            RoundSettings(fingerprint=FINGERPRINT, policy="exact", can_reduce=True, terms=FixedTerms(TARGET_SAMPLES)),
            leaders=leaders,
            roster=self._membership.roster,
            attend=self._attend,
        )
        self._standing = Standing(ports, FINGERPRINT, leaders, self._engine.attend, self._engine.links.timeouts)
        self._watch = BatchWatch(self._membership, self._standing)

    def _record(self) -> PeerRecord:
        return PeerRecord(
            peer=self._transport.peer_id,
            fingerprint=FINGERPRINT,
            name=self._place.name,
            role=Role.TRAINER,
            state=self._state,
            said_at=self._clock.now(),
            can_be_dialled=True,
            epoch=self._epoch,
            lineage=self._lineage,
            samples=self._samples,
            microbatch_s=MICROBATCH_S,
        )

    def _attend(self, call: Call, _leader: PeerId) -> Reply:
        """Everybody wishes to average at the same moment, so whoever is called is coming, if it is called for."""
        if not self._membership.is_training_at(call.epoch, call.lineage):
            return NOT_COMING
        self._watch.note_call((call.epoch, call.lineage))
        return Reply(is_coming=True)

    async def _enter(self, *, is_newcomer: bool) -> None:
        await self._report()
        await self._engine.probe.measure(self._membership.dialable())
        while is_newcomer:
            await self._report()
            consensus = self._membership.view.consensus()
            if consensus is not None:
                self._epoch, self._lineage = consensus
                break
            await asyncio.sleep(MICROBATCH_S)
        if not is_newcomer:
            self._lineage = Lineage(GENESIS)
        self._state = PeerState.TRAINING
        await self._report()

    async def _report(self) -> None:
        await self._membership.report()
        self._learn_names()

    def _learn_names(self) -> None:
        for record in self._membership.view.records:
            slot, _, _ = record.name.partition(".")
            if slot.isdigit():
                self.slots[record.peer] = int(slot)

    async def _look(self) -> tuple[int, int | None]:
        await self._report()
        leaders = self._membership.leaders(self._lineage, self._epoch)
        companions = self._membership.view.trainers(*self.history)
        return len(companions), self.slots.get(leaders[0]) if leaders else None

    async def _step(self, vector: AnyVector, weight: float) -> Step:
        """The loop of a trainer whose microbatches cost nothing: see ``Participant.after_microbatch``."""
        self._samples, self._told.attempts = int(weight), 0
        reasons: list[str] = []
        while True:
            outcome: Outcome | None = None
            if await self._watch.has_reached(TARGET_SAMPLES):
                contribution = Contribution(epoch=self._epoch, lineage=self._lineage, vector=vector, weight=weight)
                outcome = await self._engine.average(contribution)
            if isinstance(outcome, Aborted):
                reasons.append(outcome.text[:MOST_TOLD])
            committed, was_late = outcome if isinstance(outcome, Committed) else None, False
            if isinstance(outcome, Superseded) or self._membership.is_out_of_step():
                committed = await self._fetch(len(vector))
                was_late = committed is not None
            if committed is not None:
                self._apply(committed)
                return Step(committed=committed, attempts=self._told.attempts, was_late=was_late, reasons=reasons)
            await asyncio.sleep(MICROBATCH_S)

    async def _fetch(self, num_elements: int) -> Committed | None:
        """What a trainer that has missed the step does: takes the mean from those who have it."""
        await self._report()
        ahead = self._membership.trainers_ahead(self._epoch)
        return await self._engine.history.fetch(ahead, (self._epoch, self._lineage), num_elements)

    def _apply(self, committed: Committed) -> None:
        """The global step."""
        self._epoch, self._lineage, self._samples = self._epoch + 1, committed.lineage, 0
        self._membership.note_step()
        self._tasks.create_task(self._report())
