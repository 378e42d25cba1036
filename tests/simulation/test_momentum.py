"""Whole runs of peers that send momenta, in virtual time."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from collab.config import ImageClassificationTask
from collab.metrics.records import EpochFinished
from collab.tasks.image_classification import ImageClassification
from tests.replay import Sample, relative_difference, train_alone
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_training import first_parameters


def test_peers_of_equal_weight_that_send_momenta_are_one_process_with_dampened_momentum(tmp_path: Path) -> None:
    """Three cannot have 0.3 each at most: the cap makes all weigh the same, whoever is faster at the start."""
    swarm = SimSwarm(tmp_path, until=30, target=24, max_share=0.3, worker_momentum=0.9, max_norm=None)
    swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.world.run()
    samples: dict[int, list[Sample]] = {}
    for peer in trainers:
        finished = swarm.events(peer, EpochFinished)
        assert [event.epoch for event in finished if event.sample_ids] == list(range(1, 31)), "all are in every step"
        for event in finished:
            pairs, weight = zip(event.sample_ids, event.sample_epochs, strict=True), 1.0 / len(event.sample_ids)
            samples.setdefault(event.epoch, []).extend(Sample(*pair, weight) for pair in pairs)
    start = first_parameters(swarm)
    alone = train_alone(swarm.bundle.run, swarm.task, start, [samples[epoch] for epoch in sorted(samples)])
    for peer in trainers:
        assert relative_difference(alone, dict(swarm.replicas[peer.index].model.named_parameters())) < 1e-5


class Backwards(ImageClassification):
    """Digits for a liar: its gradients are ten times as long and point backwards."""

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return -10.0 * super().loss(model, tensors)


def held_out_loss(directory: Path, *, liars: int, worker_momentum: float = 0.9) -> float:
    """At the end of a run of four honest peers and some liars; in every step are two microbatches of each of them."""
    swarm = SimSwarm(
        directory,
        until=60,
        target=2 * 32 * (4 + liars),
        optimizer="{name: sgd, learning_rate: 2.0}",
        every=60,
        reduction="centered_clip",
        worker_momentum=worker_momentum,
    )
    swarm.add_backbone()
    honest = [swarm.add_trainer(microbatch_size=32) for _ in range(4)]
    section = swarm.bundle.run.task
    assert isinstance(section, ImageClassificationTask)
    for _ in range(liars):
        swarm.add_trainer(microbatch_size=32, task=Backwards(section))
    swarm.world.run()
    assert {peer.result["epoch"] for peer in honest} == {60}
    assert len({peer.result["lineage"] for peer in honest}) == 1
    assert set(swarm.contributors(honest[0])[-10:]) == {4 + liars}, "the liars are in the rounds"
    return swarm.task.evaluate(swarm.replicas[honest[0].index].model).loss


def test_a_liar_among_five_leaves_the_honest_near_the_clean_loss_if_all_send_momenta(tmp_path: Path) -> None:
    clean = held_out_loss(tmp_path / "clean", liars=0)
    assert held_out_loss(tmp_path / "lied-to", liars=1) == pytest.approx(clean, rel=0.15)
    assert held_out_loss(tmp_path / "gradients", liars=1, worker_momentum=0.0) > 2 * clean
