"""An invented swarm for the dashboard: peers that train at their speeds, and events as a backbone sees them.

Shared by ``bench_dashboard.py`` and the tests of the page, for which no peer needs to compute anything.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from collab.averaging.agreement import CommitRecord
from collab.clock import SystemClock
from collab.config import parse_run
from collab.metrics.backbone_events import RoundPlanned, RoundShared
from collab.metrics.recorder import Recorder
from collab.metrics.records import CheckpointSaved, RoundEnded, SwarmReport
from collab.metrics.sinks import Fanout
from collab.metrics.store import MetricsStore
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Reachability, Role
from peers.credible import Credible
from peers.credits import CreditBook
from peers.dashboard.recent import Recent
from peers.dashboard.sources import Sources

T = TypeVar("T")
RUN = """\
run_id: invented
until_epoch: 100000
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
schedule: {name: cosine, warmup_epochs: 20, total_epochs: 2000, final_factor: 0.1}
strategy: {name: dedloc, target_batch_size: 512}
"""
BACKBONE = PeerId("12D3KooWbackbone")
SPEEDS = (4.0, 8.0, 12.0, 33.0)
"""Samples/s of trainers, in turn."""
KEEP = 3
"""Of the newest checkpoints, as a backbone does unless it is told otherwise."""


class InCaller:
    """A ``Compute`` that does its work where it is called, off the event loop when it is beside."""

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        return work()

    async def beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def apart(self, work: Callable[[], T]) -> T:
        return await self.beside(work)


class InventedSwarm:
    """Takes one step whenever it is told to."""

    def __init__(self, directory: Path, trainers: int) -> None:
        bundle = Bundle(parse_run(RUN, origin="the invented swarm"), {}, PeerId(""))
        self.clock = SystemClock()
        self.store = MetricsStore.open(directory / "metrics.sqlite")
        self.compute = InCaller()
        self.recorder, self.recent = Recorder(self.compute, self.store), Recent(self.store, lambda: list(self.names))
        self.sink = Fanout(self.recorder, self.recent)
        self.names = {PeerId(f"12D3KooWtrainer{number:03d}"): f"trainer-{number}" for number in range(1, trainers + 1)}
        self.epoch, self.begun_s = 0, time.time()
        self.rounds: list[CommitRecord] = []
        """That are known to have committed; none: of each peer its own word counts."""
        self.problem, self.concern = "", ("", "")
        self.on_disk = [told["epoch"] for told in self.recent.newest(CheckpointSaved)[:KEEP][::-1]]
        self.sources = Sources(
            run=bundle.run,
            mandate=Mandate(bundle),
            clock=self.clock,
            me=BACKBONE,
            view=self.view,
            credible=Credible(bundle.run, str, lambda: self.rounds, trusts=lambda peer: peer == BACKBONE),
            credits=CreditBook(directory / "credits.sqlite", only_seen=True),
            store=self.store,
            recent=self.recent,
            problem=lambda: self.problem,
            concern=lambda: self.concern,
            on_disk=lambda: self.on_disk,
            home=str(directory),
            hub_url="https://hub.example",
        )
        self.sources.credible.came_s(replace(self.view(), at_s=0.0))  # who is here at first has always been

    def close(self) -> None:
        self.recorder.write()
        self.sources.credits.close()
        self.store.close()

    def view(self) -> SwarmView:
        """As of now."""
        now_s, here = self.clock.now(), sorted(self.names)
        backbone = PeerRecord(
            peer=BACKBONE,
            fingerprint="f",
            name="backbone",
            role=Role.BACKBONE,
            state=PeerState.SERVING,
            said_at=now_s - 1.0,
            can_be_dialled=True,
            epoch=self.epoch,
        )
        return SwarmView((backbone, *(self._trainer(peer, at, now_s) for at, peer in enumerate(here))), now_s)

    def step(self) -> None:
        """A round commits, all of whom are here contribute, and everybody goes on."""
        now_s, speeds = self.clock.now(), {peer: SPEEDS[at % len(SPEEDS)] for at, peer in enumerate(sorted(self.names))}
        ended = RoundEnded(
            at_s=now_s,
            epoch=self.epoch,
            round_id=f"round-{self.epoch}",
            committed=True,
            contributors=len(speeds),
            samples=512.0,
            seconds=0.4 + 0.05 * math.sin(self.epoch / 3),
            reason="",
        )
        shared = RoundShared(
            at_s=now_s,
            epoch=self.epoch,
            round_id=f"round-{self.epoch}",
            brought=tuple((peer, 10.0 * speed) for peer, speed in speeds.items()),
            reduced=tuple((peer, 1 / (len(speeds) + 1)) for peer in (BACKBONE, *speeds)),
            left_out=(),
        )
        self.epoch, self.begun_s = self.epoch + 1, now_s
        report = SwarmReport(
            at_s=now_s,
            epoch=self.epoch,
            lineage=self._lineage,
            loss=self.loss,
            eval_loss=self.loss + 0.1,
            eval_epoch=self.epoch // 10 * 10,
            eval_accuracy=math.nan,
            samples_per_s=sum(speeds.values()),
            trainers=len(speeds),
            peers=len(speeds) + 1,
            learning_rate=0.1,
        )
        planned = RoundPlanned(
            at_s=now_s,
            epoch=self.epoch - 1,
            round_id=ended.round_id,
            expected_s=0.35,
            links=tuple((peer, 2.5e6, 12.5e6, "int8") for peer in (BACKBONE, *speeds)),
            moves=tuple((peer, 500_000, 625_000) for peer in (BACKBONE, *speeds)),
        )
        for event in (planned, ended, shared, report):
            self.sink.observe(event)
        if self.epoch % 10 == 0:
            self.on_disk = [*self.on_disk, self.epoch][-KEEP:]
            place = f"{self.sources.home}/checkpoints/epoch-{self.epoch:08d}"
            self.sink.observe(
                CheckpointSaved(at_s=now_s, epoch=self.epoch, path=place, num_bytes=21_300_000, seconds=0.2)
            )
        self.sources.credits.meet(self.view().records)
        self.sources.credits.note(self.view().records, contributors=self.names)

    @property
    def loss(self) -> float:
        """Falls, and is a little uneven."""
        return 1.2 + 5.5 * math.exp(-self.epoch / 60) + 0.05 * math.sin(self.epoch * 1.7)

    @property
    def _lineage(self) -> Lineage:
        return Lineage(f"{self.epoch:064d}")

    def _trainer(self, peer: PeerId, at: int, now_s: float) -> PeerRecord:
        speed = SPEEDS[at % len(SPEEDS)]
        return PeerRecord(
            peer=peer,
            fingerprint="f",
            name=self.names[peer],
            role=Role.TRAINER,
            state=PeerState.TRAINING,
            said_at=now_s - (at % 4),
            can_be_dialled=at % 3 == 0,
            epoch=self.epoch,
            lineage=self._lineage,
            samples=int(speed * (now_s - self.begun_s)),
            samples_per_s=speed,
            loss=self.loss,
            total_samples=int(10 * speed * self.epoch),
            reach=(Reachability.DIRECT, Reachability.CLIENT, Reachability.RELAYED)[at % 3],
            wants_credit=at % 2 == 0,
        )
