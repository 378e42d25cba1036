"""A few round engines over in-memory transports."""

import asyncio
import math
from dataclasses import replace
from functools import partial

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected
from collab.averaging.assistant import Assistant
from collab.averaging.base import Contribution, Outcome
from collab.averaging.calls import Call, Reply
from collab.averaging.contribution_plan import Policy
from collab.averaging.round import RoundEngine
from collab.averaging.settings import MOST_TARGETS, FixedTerms, RoundSettings
from collab.ports import Ports
from collab.types import Lineage, PeerId, Vector
from tests.fakes import FakeNetwork, FakeObserver, make_ports

L = Lineage("history")
MAX_WEIGHT = 1000.0
TARGET = MAX_WEIGHT / MOST_TARGETS


class Rounds:
    """Engines of one run. Leader of choice is the first of ``leaders``; all trainers added are in the electorate, but
    those ``behind``."""

    def __init__(self, network: FakeNetwork, *leaders: str, policy: Policy = "exact", reduction: str = "mean") -> None:
        self.network, self._policy, self._reduction = network, policy, reduction
        self.leaders = [PeerId(name) for name in leaders]
        self.engines: dict[str, RoundEngine] = {}
        self.ports: dict[str, Ports] = {}
        self.observers: dict[str, FakeObserver] = {}
        self.trainers: set[PeerId] = set()
        self.helpers: set[PeerId] = set()
        self.ahead: set[PeerId] = set()
        """Trainers that say that they have gone on."""
        self.behind: set[PeerId] = set()
        """Trainers whose last word is of long ago; not in ``trainers``."""
        self.absent: set[str] = set()
        """Trainers that answer a leader's call with: not coming."""
        self.takes_for_here: dict[str, set[PeerId]] = {}
        """Trainers besides these of whom a peer has not heard that they are gone."""
        self.goodbyes_to_read: dict[str, set[PeerId]] = {}
        """Trainers besides these whose goodbye a peer has not read; it does when it looks anew."""
        self.missed_s = 0.0
        """For how long everybody who is not here has been missed by those who are."""

    async def add_trainer(
        self, name: str, *, can_reduce: bool = True, fingerprint: str = "f", target: float = TARGET
    ) -> RoundEngine:
        self.trainers.add(PeerId(name))

        def attend(call: Call, leader: PeerId) -> Reply:
            return Reply(is_coming=name not in self.absent)

        settings = RoundSettings(
            fingerprint=fingerprint,
            policy=self._policy,
            can_reduce=can_reduce,
            terms=FixedTerms(target),
            reduction=self._reduction,
        )
        self.observers[name] = FakeObserver()
        self.ports[name] = replace(make_ports(self.network.join(name)), observer=self.observers[name])
        self.engines[name] = RoundEngine(
            self.ports[name],
            settings,
            leaders=lambda lineage, epoch: list(self.leaders),
            roster=partial(self._roster, name),
            attend=attend,
        )
        await self.engines[name].serve()
        return self.engines[name]

    async def add_auxiliary(self, name: str) -> Assistant:
        """A peer that leads and reduces and has no vector."""
        self.helpers.add(PeerId(name))
        assistant = Assistant()
        settings = RoundSettings(
            fingerprint="f",
            policy=self._policy,
            can_reduce=True,
            terms=FixedTerms(TARGET),
            reduction=self._reduction,
        )
        self.observers[name] = FakeObserver()
        self.ports[name] = replace(make_ports(self.network.join(name)), observer=self.observers[name])
        self.engines[name] = engine = RoundEngine(
            self.ports[name],
            settings,
            leaders=lambda lineage, epoch: list(self.leaders),
            roster=partial(self._roster, name),
            attend=assistant.attend,
        )
        await engine.serve()
        self.network.run(assistant.run(engine))
        return assistant

    async def _roster(self, name: str, epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        if since_s > -math.inf:
            self.goodbyes_to_read.pop(name, None)
        takes_for_here = self.takes_for_here.get(name, set()) | self.goodbyes_to_read.get(name, set())
        return Expected(
            trainers=frozenset(self.trainers - self.behind | takes_for_here),
            helpers=frozenset(self.helpers),
            ahead=frozenset(self.ahead),
            behind=frozenset(self.behind),
            absent_s=lambda _: self.missed_s,
        )

    async def average(
        self,
        vectors: dict[str, Vector],
        weights: dict[str, float] | None = None,
        *,
        epoch: int = 0,
        lineage: Lineage = L,
    ) -> dict[str, Outcome]:
        """All of ``vectors`` come to a round at once, in their order."""
        weights = weights or dict.fromkeys(vectors, 1.0)
        contributions = {
            name: Contribution(epoch=epoch, lineage=lineage, vector=vector, weight=weights[name])
            for name, vector in vectors.items()
        }
        async with asyncio.TaskGroup() as tasks:
            running = {
                name: tasks.create_task(self.engines[name].average(contribution))
                for name, contribution in contributions.items()
            }
        return {name: task.result() for name, task in running.items()}


def random_vectors(names: str, num_elements: int) -> dict[str, Vector]:
    """A vector for each letter."""
    generator = np.random.default_rng(num_elements)
    return {name: generator.normal(size=num_elements).astype(np.float32) for name in names}


def exact_mean(vectors: dict[str, Vector], weights: dict[str, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """In float64."""
    total = sum(weights[name] for name in vectors)
    mean = np.zeros(len(next(iter(vectors.values()))))
    for name, vector in vectors.items():
        mean += vector.astype(np.float64) * (weights[name] / total)
    return mean


def mean_of_record(
    record: CommitRecord, vectors: dict[str, Vector], weights: dict[str, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What the record says is in the mean, averaged in float64."""
    total = np.zeros(record.num_elements)
    samples = np.zeros(record.num_elements)
    for name, vector in vectors.items():
        for start, stop in record.used_of(PeerId(name)):
            total[start:stop] += weights[name] * vector[start:stop].astype(np.float64)
            samples[start:stop] += weights[name]
    return total / samples
