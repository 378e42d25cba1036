"""VC-ASGD on digits in virtual time: the clients, servers and units of a real run over simulated links.

The store is in one process's memory and costs nothing here; what stores cost is measured by themselves.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collab.config import parse_run
from collab.data.unit_samples import sample_ids_of
from collab.data.work_units import Unit
from collab.metrics.records import EpochFinished, EvaluationDone
from collab.ports import Ports
from collab.simulation.churn import Churn
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.world import World
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.tasks.base import Evaluation
from collab.tasks.registry import build_task
from collab.training.copy_layout import CopyLayout
from collab.training.genesis import build_replica, make_genesis
from collab.training.judging import evaluate_state
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.trainer import Trainer
from collab.types import PeerId, Reachability
from peers.backbone import Backbone
from peers.backbone_settings import BackboneSettings
from peers.places import DataDir
from peers.workshop import Workshop

RUN = """\
run_id: vcasgd
seed: {seed}
microbatch_size: {microbatch}
until_epoch: {pushes}
task: {{name: image_classification, hidden_sizes: [{hidden}]}}
optimizer: {{name: sgd, learning_rate: {rate}}}
strategy: {{name: vc_asgd, shards: {shards}, alpha: {alpha}, units_at_once: {at_once}, first_lease_s: {lease_s}}}
checkpoints: {{every_epochs: {shards}, keep: 1}}
"""
MICROBATCH_SIZE = 8
SERVED_S = 30.0
"""For which backbones stay when the last client has left: the last checkpoint is made then."""
MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a fleet is, and how it learns: the paper's PnCnTn and alpha."""

    seed: int
    alpha: float | str = "pass"
    servers: int = 1
    clients: int = 3
    at_once: int = 1
    shards: int = 50
    passes: int = 40
    hidden: int = 256
    rate: float = 1.5
    samples_per_s: float = 200.0
    server_mbit: float = 1000.0
    """Of each server's link, both ways."""
    client_mbit: float = 100.0
    lease_s: float = 60.0

    def bundle(self) -> Bundle:
        """The run."""
        text = RUN.format(
            seed=self.seed,
            microbatch=MICROBATCH_SIZE,
            pushes=self.shards * self.passes,
            hidden=self.hidden,
            rate=self.rate,
            shards=self.shards,
            alpha=self.alpha,
            at_once=self.at_once,
            lease_s=self.lease_s,
        )
        return Bundle(parse_run(text, origin="the benchmark"), {}, PeerId(""))


class Fleet:
    """One course as a swarm; peers 0 to ``servers - 1`` are the servers."""

    def __init__(self, course: Course, folder: Path) -> None:
        self.course, self._folder, self._bundle = course, folder, course.bundle()
        self._task = build_task(self._bundle.run, assets={}, cache_dir=folder, peer_id="")
        self.store = InProcessStore()
        self.world = World(course.seed)
        self.churn = Churn(self.world)
        self._stops: dict[int, asyncio.Event] = {}
        self._clients: list[SimPeer] = []
        for index in range(course.servers):
            self._add_server(index)
        for index in range(course.servers, course.servers + course.clients):
            self._add_client(index)

    def run(self) -> None:
        """Until every unit is done."""
        with self.world:
            self.world.run()

    def curve(self) -> list[dict[str, float]]:
        """Accuracy and loss of each checkpoint, by pushes and virtual seconds."""
        return [
            {"pushes": event.epoch, "at_s": round(event.at_s - self._began_at, 1), "accuracy": event.accuracy,
             "loss": event.loss}
            for peer in self.world.peers[: self.course.servers]
            for event in peer.events if isinstance(event, EvaluationDone)
        ]  # fmt: skip

    @property
    def training_s(self) -> float:
        """Virtual seconds from the first push to the last."""
        steps = [event.at_s for peer in self._clients for event in peer.events if isinstance(event, EpochFinished)]
        return max(steps) - min(steps)

    def result(self) -> Evaluation:
        """What the parameters are worth that are stored now."""
        stored = self.store.read()
        if stored is None:
            raise ValueError("nothing was stored")
        model = self._task.build_model()
        CopyLayout(model).scatter(torch.from_numpy(stored.values.copy()))
        return self._task.evaluate(model)

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _began_at(self) -> float:
        return min(event.at_s for peer in self._clients for event in peer.events)

    def _link(self, mbit: float) -> Link:
        return Link(up_bytes_per_s=mbit * MBIT, down_bytes_per_s=mbit * MBIT, latency_s=0.01)

    def _add_server(self, index: int) -> None:
        async def main(ports: Ports) -> None:
            workshop = Workshop(
                make_first_state=(lambda: make_genesis(self._bundle, self._task)) if index == 0 else None,
                checkpoint_files=self._task.checkpoint_files,
                evaluate=lambda state: evaluate_state(self._task, state),
                copied_names=lambda: CopyLayout(self._task.build_model()).names,
            )
            place = DataDir(self._folder / f"server-{index}")
            stores = EraStores(lambda _era: self.store)
            settings = BackboneSettings(name=f"server-{index}", data_dir=place, stores=stores)
            backbone = Backbone(ports, self._identity(index), self._bundle, workshop, settings)
            self._stops[index] = asyncio.Event()
            await backbone.begin()
            await backbone.run(self._stops[index])

        self.world.add_peer(main, link=self._link(self.course.server_mbit))

    def _add_client(self, index: int) -> None:
        async def main(ports: Ports) -> dict[str, Any]:
            replica = build_replica(self._bundle, self._task, torch.device("cpu"))
            settings = ParticipantSettings(name=f"client-{index}", reach=Reachability.DIRECT)
            participant = Participant(ports, self._identity(index), self._bundle, replica, settings)
            await Trainer(participant, self._task, microbatch_size=MICROBATCH_SIZE).run(asyncio.Event())
            if not any(peer.is_alive for peer in self._clients if peer.index != index):
                self.world.call_at(self.world.time_s + SERVED_S, self._stop_servers)
            return {"epoch": replica.epoch}

        speed = self.course.samples_per_s
        peer = self.world.add_peer(main, link=self._link(self.course.client_mbit), samples_per_s=speed)
        self._clients.append(peer)

    def _stop_servers(self) -> None:
        for stop in self._stops.values():
            stop.set()

    def _identity(self, index: int) -> Identity:
        return self.world.peers[index].identity


def train(course: Course) -> tuple[Fleet, Evaluation]:
    """One run of a fleet, and what it has learnt."""
    with tempfile.TemporaryDirectory(prefix="collab-vcasgd-") as folder:
        fleet = Fleet(course, Path(folder))
        fleet.run()
        return fleet, fleet.result()


def train_serially(course: Course) -> Evaluation:
    """The same samples, microbatch by microbatch, with one optimiser on one machine."""
    bundle = course.bundle()
    with tempfile.TemporaryDirectory(prefix="collab-vcasgd-") as folder:
        task = build_task(bundle.run, assets={}, cache_dir=Path(folder), peer_id="")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(course.seed)
        model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=course.rate)
    for unit in (Unit(number, shard) for number in range(1, course.passes + 1) for shard in range(course.shards)):
        ids = sample_ids_of(unit, shards=course.shards, num_samples=task.num_samples, seed=course.seed)
        for start in range(0, len(ids), MICROBATCH_SIZE):
            optimizer.zero_grad()
            loss = task.loss(model, task.batch(ids[start : start + MICROBATCH_SIZE]).tensors)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return task.evaluate(model)
