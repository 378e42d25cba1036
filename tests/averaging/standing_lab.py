"""Leaders, trainers that stand with them, and strangers, over in-memory transports."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.following import Following
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.averaging.standing import STANDING_PROTOCOL, History, Standing, Word
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.concurrency import Background
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, make_ports, run

L, M = Lineage("l"), Lineage("m")
HERE: History = (3, L)
TARGET = 100.0


class Trainer:
    """One trainer's end, with the eta that it answers calls with; None: it is not coming."""

    def __init__(self, lab: "Lab", name: str, *, eta_s: float | None, fingerprint: str) -> None:
        self.eta_s, self.asked, self.accepted = eta_s, list[tuple[int, Lineage, PeerId]](), list[History]()
        ports = make_ports(lab.network.join(name))
        self.timeouts = MeasuredTimeouts(ports.clock.monotonic, FIRST)
        self.standing = Standing(ports, fingerprint, lab.leaders_of, self._attend, self.timeouts)

    def _attend(self, call: Call, leader: PeerId) -> Reply:
        self.asked.append((call.epoch, call.lineage, leader))
        if self.eta_s is None:
            return NOT_COMING
        self.accepted.append((call.epoch, call.lineage))
        return Reply(is_coming=True, comes_in_s=self.eta_s)

    def is_called(self, history: History) -> bool:
        """And has said that it is coming."""
        return history in self.accepted

    async def says(
        self, samples: float, *, speed: float = 1.0, microbatch_s: float = 0.0, history: History = HERE
    ) -> None:
        """And is heard."""
        self.standing.report(Word(*history, samples, speed, microbatch_s))
        await asyncio.sleep(0.1)


class Lab:
    """Leaders that are asked in the order of ``leaders``, and trainers that keep a stream to the first."""

    def __init__(self, network: FakeNetwork, tasks: Background) -> None:
        self.network, self._tasks = network, tasks
        self.leaders: list[PeerId] = []
        self.prepared_s: list[float] = []
        """When a leader was told that a batch is nearly there."""

    def _prepare(self) -> None:
        self.prepared_s.append(asyncio.get_running_loop().time())

    def leaders_of(self, lineage: Lineage, epoch: int) -> list[PeerId]:
        """Of any history."""
        return list(self.leaders)

    async def add_leader(self, name: str) -> Following:
        settings = RoundSettings(fingerprint="f", policy="exact", can_reduce=True, terms=FixedTerms(TARGET))
        ports = make_ports(self.network.join(name))
        following = Following(ports, settings, MeasuredTimeouts(ports.clock.monotonic, FIRST), self._prepare)
        await following.serve()
        self.leaders.append(PeerId(name))
        return following

    async def add_trainer(self, name: str, *, eta_s: float | None = 0.0, fingerprint: str = "f") -> Trainer:
        trainer = Trainer(self, name, eta_s=eta_s, fingerprint=fingerprint)
        self._tasks.create_task(trainer.standing.run())
        return trainer

    async def stranger(self, name: str, leader: str = "leader", *, fingerprint: str = "f") -> Stream:
        """A raw stream of somebody who stands with ``leader``."""
        stream = await self.network.join(name).open(PeerId(leader), STANDING_PROTOCOL, timeout_s=1.0)
        await stream.send(Message("stand", {"fingerprint": fingerprint}), timeout_s=1.0)
        return stream

    def told(self, kind: str) -> list[PeerId]:
        """To whom a message of one kind went over standing streams, in order."""
        return [
            to
            for _, to, protocol, message in self.network.sent
            if (protocol, message.kind) == (STANDING_PROTOCOL, kind)
        ]


def in_lab(test: Callable[[Lab], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network, Background() as tasks:
            await test(Lab(network, tasks))

    run(main())


def word(**changes: Any) -> Message:
    """A trainer's word, with ``changes``."""
    return Message("word", {**asdict(Word(*HERE, 5.0, 1.0)), **changes})
