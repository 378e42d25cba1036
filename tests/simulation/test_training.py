"""Whole runs in virtual time."""

from pathlib import Path

import pytest
import torch

from collab.training.genesis import make_genesis
from tests.replay import relative_difference, samples_by_epoch, train_alone
from tests.simulation.swarm import SimSwarm


@pytest.mark.parametrize(
    "optimizer",
    [
        "{name: sgd, learning_rate: 0.2, momentum: 0.9}",
        "{name: adamw, learning_rate: 0.003, epsilon: 1.0e-6}",
        "{name: lamb, learning_rate: 0.01}",
    ],
)
def test_three_uneven_peers_equal_one_process_on_the_same_samples(tmp_path: Path, optimizer: str) -> None:
    """AdamW's epsilon is above what rounding makes of a gradient that is zero: 1e-8 turns that into whole steps."""
    swarm = SimSwarm(tmp_path, until=20, target=200, optimizer=optimizer, every=20)
    swarm.add_backbone()
    trainers = [
        swarm.add_trainer(samples_per_s=speed, microbatch_size=size) for speed, size in ((30, 4), (90, 8), (200, 20))
    ]
    swarm.world.run()
    assert len({peer.result["lineage"] for peer in trainers}) == 1
    assert {peer.result["epoch"] for peer in trainers} == {20}
    samples = samples_by_epoch(swarm.finished_epochs())
    assert all(len(step) >= 200 for step in samples.values())
    start = first_parameters(swarm)
    alone = train_alone(swarm.bundle.run, swarm.task, start, [samples[epoch] for epoch in sorted(samples)])
    for peer in trainers:
        replica = swarm.replicas[peer.index]
        assert relative_difference(alone, dict(replica.model.named_parameters())) < 1e-5


def first_parameters(swarm: SimSwarm) -> dict[str, torch.Tensor]:
    """Parameters of epoch 0."""
    tensors = make_genesis(swarm.bundle, swarm.task).tensors
    return {name.removeprefix("model."): torch.from_numpy(tensor) for name, tensor in tensors.items()}
