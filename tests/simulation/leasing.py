"""What became of every block: read from the events of a simulated swarm."""

from collections import defaultdict
from pathlib import Path

from collab.metrics.records import BlockTrained, EpochFinished, SamplesUsed
from collab.simulation.peer import SimPeer
from tests.simulation.swarm import SimSwarm

SAMPLES = 1500
"""Of the digits, without those held out."""
SLOW = 4.0
"""Samples per second of a trainer: a pass of five takes over a minute, a block of eight samples two seconds."""


def slow_swarm(tmp_path: Path, number: int, *, seed: int = 1, until: int = 60, target: int = 64) -> SimSwarm:
    """A backbone and trainers for whom a pass over the digits is long."""
    swarm = SimSwarm(tmp_path, seed=seed, until=until, target=target, every=20)
    swarm.add_backbone()
    for _ in range(number):
        swarm.add_trainer(samples_per_s=SLOW)
    return swarm


def trained_blocks(swarm: SimSwarm) -> dict[tuple[int, int], list[tuple[float, SimPeer]]]:
    """When and by whom each (pass, block) was trained, in order."""
    blocks = defaultdict(list)
    for peer in swarm.world.peers:
        for event in swarm.events(peer, BlockTrained):
            blocks[event.pass_number, event.block].append((event.at_s, peer))
    return {block: sorted(uses, key=lambda use: use[0]) for block, uses in sorted(blocks.items())}


def used_samples(swarm: SimSwarm) -> dict[int, int]:
    """How often each sample went into a step."""
    counts: dict[int, int] = defaultdict(int)
    for peer in swarm.world.peers:
        for event in peer.events:
            if isinstance(event, EpochFinished | SamplesUsed):
                for sample_id in event.sample_ids:
                    counts[sample_id] += 1
    return counts
