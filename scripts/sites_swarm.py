"""DTS on digits in virtual time: trainers of a real run at four sites, each with data of its own, and synchronous
training on the same data for as many steps.
"""

import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collab.config import ImageClassificationTask, Run, parse_run
from collab.data.sampling import SampleSampler
from collab.metrics.records import EpochFinished, MicrobatchDone
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.world import World
from collab.swarm.bundle import Bundle
from collab.tasks.base import Batch, Evaluation
from collab.tasks.image_classification import ImageClassification
from collab.training.genesis import build_replica, make_genesis
from collab.training.judging import evaluate_state
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.replica import Replica
from collab.training.schedule import learning_rate_factor
from collab.training.trainer import Trainer
from collab.types import PeerId, Reachability
from peers.backbone import Backbone
from peers.backbone_settings import BackboneSettings
from peers.places import DataDir
from peers.workshop import Workshop

RUN = """\
run_id: sites
seed: {seed}
microbatch_size: {batch}
until_epoch: {rounds}
task:
  name: module
  module: digits_of_a_site
  sha256: "0000000000000000000000000000000000000000000000000000000000000000"
  class_name: OfLabels
  placement: local
optimizer: {{name: sgd, learning_rate: {rate}, momentum: {momentum}}}
schedule: {{name: cosine, total_epochs: {rounds}, final_factor: 0.02}}
strategy: {{name: dts, target_batch_size: {target}, max_gradient_norm: null}}
averaging: {{compression: {compression}, reduction: mean}}
checkpoints: {{every_epochs: 1000000}}
"""
WAYS_MS = (13.0, 13.0, 41.0, 51.0)
"""One way from Oregon, Ohio, London and Tokyo to the middle: round trips of 52 to 184 ms, near those of the sites."""
LABELS = 10
HELD_OUT = 500
SITE_BYTES_PER_S = 12.5e6


class OfLabels:
    """Implements ``Task``: the samples of another one that have some labels."""

    def __init__(self, whole: ImageClassification, labels: frozenset[int]) -> None:
        self._whole = whole
        found = whole.batch(tuple(range(whole.num_samples))).tensors["labels"].tolist()
        self._ids = [index for index, label in enumerate(found) if label in labels]
        self.build_model, self.loss, self.evaluate = whole.build_model, whole.loss, whole.evaluate
        self.checkpoint_files = whole.checkpoint_files

    @property
    def num_samples(self) -> int:
        """Of these labels."""
        return len(self._ids)

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        """By their place among those of these labels."""
        tensors = self._whole.batch(tuple(self._ids[index] for index in sample_ids)).tensors
        return Batch(sample_ids=sample_ids, tensors=tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One training."""

    seed: int
    is_skewed: bool
    """Whether each site has labels of its own only."""
    rounds: int
    step_ms: float
    batch: int = 8
    hidden: int = 32
    rate: float = 0.2
    momentum: float = 0.0
    compression: str = "exact"

    def run(self) -> Run:
        """The run file; a window is worth a round as soon as everybody has taken a step."""
        sizes = {"batch": self.batch, "rounds": self.rounds, "target": self.batch * len(WAYS_MS)}
        text = RUN.format(
            seed=self.seed, rate=self.rate, momentum=self.momentum, compression=self.compression, **sizes
        )
        return parse_run(text, origin="the benchmark")

    def tasks(self) -> list[OfLabels]:
        """Of each site."""
        section = ImageClassificationTask(
            name="image_classification", hidden_sizes=(self.hidden,), eval_samples=HELD_OUT
        )
        whole, sites = ImageClassification(section), len(WAYS_MS)
        everything = frozenset(range(LABELS))
        own = [frozenset(label for label in everything if label * sites // LABELS == site) for site in range(sites)]
        return [OfLabels(whole, labels if self.is_skewed else everything) for labels in own]

    def sampler(self, task: OfLabels, name: str) -> SampleSampler:
        """A site's order of its samples."""
        return SampleSampler(task.num_samples, seed=self.seed, peer_id=PeerId(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a swarm has come to."""

    result: Evaluation
    steps: int
    """Of each site, mean."""
    window: float
    """Steps of a site in a round, median."""
    sent_mb: float
    """Of all sites and the backbone, 10^6 bytes, with everything that keeps a swarm together."""


class Sites:
    """One course as a swarm; peer 0 is the backbone."""

    def __init__(self, course: Course, folder: Path) -> None:
        self._course, self._folder = course, folder
        self._bundle = Bundle(course.run(), {}, PeerId(""))
        self._tasks = course.tasks()
        self.world = World(course.seed)
        self._stop = asyncio.Event()
        self._replicas: list[Replica] = []
        self._add_backbone()
        for site, way_ms in enumerate(WAYS_MS):
            self._add_trainer(site, way_ms)

    def run(self) -> Seen:
        """Train to the last round.

        Raises:
            RuntimeError: the sites do not end with one model.
        """
        with self.world as world:
            world.run()
        models = {replica.layout.parameters_vector().tobytes() for replica in self._replicas}
        if len(models) != 1:
            raise RuntimeError(f"after the last round {len(WAYS_MS)} sites hold {len(models)} different models")
        trainers = world.peers[1:]
        steps = [sum(isinstance(event, MicrobatchDone) for event in peer.events) for peer in trainers]
        windows = [
            event.own_samples / self._course.batch
            for peer in trainers
            for event in peer.events
            if isinstance(event, EpochFinished) and event.own_samples
        ]
        return Seen(
            result=self._tasks[0].evaluate(self._replicas[0].model),
            steps=round(statistics.fmean(steps)),
            window=statistics.median(windows),
            sent_mb=sum(peer.sent_bytes for peer in world.peers) / 1e6,
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _add_backbone(self) -> None:
        task = self._tasks[0]

        async def main(ports: Ports) -> None:
            workshop = Workshop(
                make_first_state=lambda: make_genesis(self._bundle, task),
                checkpoint_files=task.checkpoint_files,
                evaluate=lambda state: evaluate_state(task, state),
            )
            settings = BackboneSettings(name="backbone", data_dir=DataDir(self._folder / "backbone"))
            backbone = Backbone(ports, self.world.peers[0].identity, self._bundle, workshop, settings)
            await backbone.begin()
            await backbone.run(self._stop)

        self.world.add_peer(main, link=_link(WAYS_MS[1]))

    def _add_trainer(self, site: int, way_ms: float) -> None:
        async def main(ports: Ports) -> dict[str, Any]:
            replica = build_replica(self._bundle, self._tasks[site], torch.device("cpu"))
            self._replicas.append(replica)
            identity = self.world.peers[1 + site].identity
            settings = ParticipantSettings(name=f"site-{site}", reach=Reachability.DIRECT)
            participant = Participant(ports, identity, self._bundle, replica, settings)
            trainer = Trainer(participant, self._tasks[site], microbatch_size=self._course.batch)
            await trainer.run(asyncio.Event())
            if not any(peer.is_alive for peer in self.world.peers[1:] if peer.index != 1 + site):
                self._stop.set()
            return {"epoch": replica.epoch}

        speed = self._course.batch / (self._course.step_ms / 1e3)
        self.world.add_peer(main, link=_link(way_ms), samples_per_s=speed)


def _link(way_ms: float) -> Link:
    return Link(up_bytes_per_s=SITE_BYTES_PER_S, down_bytes_per_s=SITE_BYTES_PER_S, latency_s=way_ms / 1e3)


def train(course: Course) -> Seen:
    """DTS."""
    with tempfile.TemporaryDirectory(prefix="collab-sites-") as folder:
        return Sites(course, Path(folder)).run()


def train_synchronously(course: Course, steps: int) -> Evaluation:
    """What a round for each step comes to: one optimiser on the mean of all sites' gradients."""
    run, tasks = course.run(), course.tasks()
    bundle = Bundle(run, {}, PeerId(""))
    replica = build_replica(bundle, tasks[0], torch.device("cpu"))
    replica.load(make_genesis(bundle, tasks[0]))
    model, samplers = replica.model, [course.sampler(task, f"site-{site}") for site, task in enumerate(tasks)]
    optimizer = torch.optim.SGD(model.parameters(), lr=course.rate, momentum=course.momentum)
    schedule = run.schedule.model_copy(update={"total_epochs": steps})
    for step in range(steps):
        drawn = zip(tasks, samplers, strict=True)
        batches = [task.batch(sampler.next(course.batch)).tensors for task, sampler in drawn]
        joined = {name: torch.cat([tensors[name] for tensors in batches]) for name in batches[0]}
        for group in optimizer.param_groups:
            group["lr"] = course.rate * learning_rate_factor(schedule, step)
        optimizer.zero_grad()
        tasks[0].loss(model, joined).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return tasks[0].evaluate(model)
