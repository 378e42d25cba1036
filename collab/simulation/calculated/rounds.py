"""The rounds of a swarm of which only the trainers are played: when they begin, how long they take, what they come to.

A round takes the closed form's time (``round_forecast``); what it averages is real: each vector is encoded and decoded
as the plan says, with error feedback, and reduced by the run's rule, in one piece.
"""

import asyncio
import hashlib
import math
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed, Contribution, Outcome
from collab.averaging.deadlines import ENOUGH, FLOOR_S, REMEMBERED, outlier
from collab.averaging.encodings import Encodings
from collab.averaging.forecast import Pace, batch_due_s
from collab.averaging.robust import capped, rule_by_name
from collab.compression.base import codec_by_name
from collab.config import Averaging
from collab.simulation.pacing import CROWD
from collab.simulation.residents import Resident
from collab.simulation.round_forecast import RoundForecast, plan_round
from collab.simulation.virtual_time import VirtualLoop
from collab.types import Lineage, PeerId, Vector

KEPT = 8
"""Rounds whose means whoever missed them can still have; then it takes over a state."""
_AT = struct.Struct(">dQ")


class Attendant(Protocol):
    """A trainer, as rounds see it."""

    peer: PeerId
    """Its machine's name."""
    resident: Resident
    encodings: Encodings
    microbatch_s: float

    @property
    def epoch(self) -> int: ...

    @property
    def samples(self) -> int:
        """In hand."""
        ...

    @property
    def busy_s(self) -> float | None:
        """Until its microbatch is over; None: it computes nothing."""
        ...

    def attend(self) -> bool:
        """Bring at once what is in hand, beside the microbatch; whether it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """What rounds of a run are like."""

    averaging: Averaging
    num_elements: int
    """Of the vectors that travel, before they are thinned."""
    is_synchronous: bool
    """Whether trainers wait for rounds."""
    equal_shares: bool
    batch_size: Callable[[int, int], float]
    """Samples, from the epoch and the number of trainers."""


@dataclass(slots=True)
class _Meeting:
    """One round, from the call on."""

    expected: set[PeerId]
    brought: dict[PeerId, tuple[Contribution, asyncio.Future[Outcome]]] = field(default_factory=dict)
    plan: RoundForecast | None = None
    """None: not everybody has come who was expected."""


class Rounds:
    """One after the other, of all trainers that are here."""

    def __init__(
        self,
        loop: VirtualLoop,
        rules: RoundRules,
        here: Callable[[], Sequence[Resident]],
        committed: Callable[[Committed, RoundForecast], None],
        lineage: Lineage,
    ) -> None:
        """
        Args:
            here: all machines that are there now, of any role.
            committed: hears of each round that commits.
            lineage: of the first state.
        """
        self._loop, self._rules, self._here, self._committed = loop, rules, here, committed
        self.epoch, self.lineage = 0, lineage
        self.history: deque[Committed] = deque(maxlen=KEPT)
        self._trainers: dict[PeerId, Attendant] = {}
        self._held: dict[PeerId, int] = {}
        """Samples that each has reported since the last step."""
        self._reported = 0
        self._meeting: _Meeting | None = None
        self._called: asyncio.Event = asyncio.Event()
        self._residuals: deque[float] = deque(maxlen=REMEMBERED)
        self._means = Encodings()
        self.trace = hashlib.sha256()
        """Of all that has committed, and when."""

    # -- who is there --------------------------------------------------------------------------------------------------

    def come(self, trainer: Attendant) -> None:
        """Holds the swarm's state, and begins to compute."""
        self._trainers[trainer.peer] = trainer

    def go(self, peer: PeerId) -> None:
        """Has gone: what it brought to a round that is not over is not in it."""
        self._trainers.pop(peer, None)
        self._reported -= self._held.pop(peer, 0)
        if self._meeting is not None:
            self._meeting.expected.discard(peer)
            self._meeting.brought.pop(peer, None)
            self.look()

    def decline(self, peer: PeerId) -> None:
        """Has nothing to bring, though it was expected: what it computed is not finite."""
        if self._meeting is not None and peer in self._meeting.expected:
            self._meeting.expected.discard(peer)
            self.look()

    def look(self) -> None:
        """Who is here has changed: a round that waits for somebody may begin."""
        if self._meeting is not None and not self._meeting.expected and self._meeting.plan is None:
            self._begin(self._meeting)

    def note(self, trainer: Attendant) -> None:
        """How much it holds is known to the swarm."""
        if trainer.epoch != self.epoch:
            return
        self._reported += trainer.samples - self._held.get(trainer.peer, 0)
        self._held[trainer.peer] = trainer.samples

    # -- what strategies ask -------------------------------------------------------------------------------------------

    async def has_reached(self, trainer: Attendant, target_samples: float, *, is_patient: bool) -> bool:
        """See ``Progress``: waits for the call where that comes before half a microbatch is computed."""
        self.note(trainer)
        if trainer.epoch != self.epoch:
            return False
        if self._meeting is None and self._reported >= target_samples:
            self._call()
        if self._meeting is not None:
            return self._is_expected(trainer.peer)
        if not is_patient or len(self._trainers) > CROWD:
            return False
        due_s = self._due_s(trainer, target_samples)
        if due_s > trainer.microbatch_s / 2:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(due_s + trainer.microbatch_s / 2):
                await self._called.wait()
        return self._is_expected(trainer.peer)

    def _is_expected(self, peer: PeerId) -> bool:
        return self._meeting is not None and peer in self._meeting.expected

    async def average(self, peer: PeerId, contribution: Contribution) -> Outcome:
        """See ``Averager``; only who is expected asks."""
        meeting = self._meeting
        if meeting is None:
            raise ValueError(f"{peer} comes to no round")
        over: asyncio.Future[Outcome] = self._loop.create_future()
        meeting.brought[peer] = contribution, over
        meeting.expected.discard(peer)
        self.look()
        return await over

    def _due_s(self, trainer: Attendant, target: float) -> float:
        others = [self._pace(other) for peer, other in self._trainers.items() if peer != trainer.peer]
        return batch_due_s(others, self._pace(trainer), target=target, max_share=1.0)

    def _pace(self, trainer: Attendant) -> Pace:
        computing_s = 0.0 if trainer.busy_s is None else max(trainer.microbatch_s - trainer.busy_s, 0.0)
        samples = float(self._held.get(trainer.peer, 0))
        return Pace(
            samples=samples, samples_per_s=trainer.resident.samples_per_s, microbatch_s=trainer.microbatch_s,
            age_s=computing_s,
        )  # fmt: skip

    # -- a round -------------------------------------------------------------------------------------------------------

    def _call(self) -> None:
        """The batch is there. Those whose microbatch ends soon are waited for; others come with what they have."""
        present = {peer: trainer for peer, trainer in self._trainers.items() if trainer.epoch == self.epoch}
        left_s = {peer: trainer.busy_s or 0.0 for peer, trainer in present.items()}
        self._residuals.extend(left_s.values())
        limit_s = 0.0
        if self._rules.is_synchronous:
            limit_s = max(outlier(self._residuals), FLOOR_S) if len(self._residuals) >= ENOUGH else math.inf
        meeting = self._meeting = _Meeting(expected=set(left_s))
        for peer, seconds in left_s.items():
            if seconds > limit_s and not self._trainers[peer].attend():
                meeting.expected.discard(peer)
        self._called.set()
        self._called = asyncio.Event()

    def _begin(self, meeting: _Meeting) -> None:
        if not meeting.brought:
            self._meeting = None
            return
        here = [one for one in self._here() if one.role != "trainer" or PeerId(one.name) in meeting.brought]
        if all(resident.client_mode for resident in here):
            return  # until somebody comes who can reduce
        speed = math.fsum(trainer.resident.samples_per_s for trainer in self._trainers.values())
        meeting.plan = plan_round(
            here,
            num_elements=self._rules.num_elements,
            policy=self._rules.averaging.compression,
            batch_s=self._rules.batch_size(self.epoch, len(self._trainers)) / speed,
            equal_shares=self._rules.equal_shares,
            brings={peer: contribution.weight for peer, (contribution, _) in meeting.brought.items()},
        )
        self._loop.call_later(meeting.plan.seconds, self._end, meeting, meeting.plan)

    def _end(self, meeting: _Meeting, plan: RoundForecast) -> None:
        """Everybody who is still here has the mean."""
        self._meeting, waiting = None, meeting.brought
        senders = {p: c for p, (c, _) in waiting.items() if p in plan.sent_in}
        if not senders:  # all have gone, or only those are left whose uplinks nobody waits for
            senders = {peer: contribution for peer, (contribution, _) in waiting.items()}
        if not senders:
            return
        mean = self._mean(senders, plan)
        record = CommitRecord(
            round_id=f"calculated {self.epoch}",
            epoch=self.epoch,
            lineage=self.lineage,
            contributors=tuple((peer, contribution.weight) for peer, contribution in senders.items()),
            members=tuple(waiting),
            pieces=((next(iter(waiting)), 0, len(mean)),),
            digests=(hashlib.sha256(mean.tobytes()).hexdigest(),),
        )
        committed = Committed(mean=mean, record=record)
        self.epoch, self.lineage = self.epoch + 1, committed.lineage
        self.history.append(committed)
        self._held, self._reported = {}, 0
        self.trace.update(_AT.pack(self._loop.time(), self.epoch) + self.lineage.encode())
        self._committed(committed, plan)
        for peer, (_, over) in waiting.items():
            if peer in senders:
                self._trainers[peer].encodings.commit()
            if not over.done():
                over.set_result(committed)

    def _mean(self, senders: Mapping[PeerId, Contribution], plan: RoundForecast) -> Vector:
        """Of the vectors as they arrive, as it arrives."""
        values, weights = [], {peer: contribution.weight for peer, contribution in senders.items()}
        for peer, contribution in senders.items():
            encodings, codec = self._trainers[peer].encodings, codec_by_name(plan.sent_in.get(peer, plan.codecs[0]))
            vector = contribution.vector.astype(np.float32, copy=False)
            encodings.begin(len(vector), vector)
            values.append(codec.decode(encodings.part(codec, 0, vector, contribution.weight), len(vector)))
        counts = capped(weights, self._rules.averaging.max_share)
        rule = rule_by_name(self._rules.averaging.reduction)
        mean = rule.reduce(values, [counts[peer] for peer in senders])
        codec = codec_by_name(plan.codecs[-1])
        self._means.begin(len(mean), mean)
        told = codec.decode(self._means.result(codec, 0, mean), len(mean))
        self._means.commit()
        return told
