"""What became of every block: read from the events of a simulated swarm."""

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from collab.metrics.records import BlockTrained, EpochFinished, SamplesUsed
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm

SAMPLES = 1500
"""Of the digits, without those held out."""
REISSUED_S = 120.0
"""Between the last sign of a peer that dies or freezes and the moment when blocks that it held, or whose training it
could not tell, have been trained again: a lease, and the block itself."""
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


@dataclass(slots=True)
class History:
    """Peers that come, leave, die, freeze and come back, at random moments of one seed."""

    swarm: SimSwarm
    killed: dict[int, list[float]]
    """When (virtual seconds) each peer was killed or frozen."""
    left: dict[int, float]
    """When each peer was asked to leave."""

    def run(self, until_s: float) -> None:
        """Let it happen."""
        with self.swarm.world as world:
            world.run(until_s=until_s)


def random_history(tmp_path: Path, seed: int, *, peers: int, faults: int, span_s: float) -> History:
    """``peers`` trainers at first; within ``span_s`` so many of them die, freeze or leave, and as many come."""
    rng = random.Random(f"history {seed}")
    swarm = slow_swarm(tmp_path, peers, seed=seed, until=10_000)
    history = History(swarm, defaultdict(list), {})
    world = swarm.world
    victims = rng.sample(range(1, peers + 1), faults)
    for victim in victims:
        at_s = rng.uniform(15.0, span_s)
        match rng.choice(("die", "die and come back", "freeze", "leave")):
            case "die":
                swarm.churn.fail_at(peer=victim, time_s=at_s)
                history.killed[victim].append(at_s)
            case "die and come back":
                swarm.churn.fail_at(peer=victim, time_s=at_s, restart_after_s=rng.uniform(2.0, 20.0))
                history.killed[victim].append(at_s)
            case "freeze":
                swarm.churn.freeze_at(peer=victim, time_s=at_s, for_s=rng.uniform(5.0, 60.0))
                history.killed[victim].append(at_s)
            case "leave":
                world.call_at(at_s, lambda index=victim: swarm.ask_to_leave(world.peers[index]))
                history.left[victim] = at_s
        world.call_at(rng.uniform(10.0, span_s), lambda: swarm.add_trainer(samples_per_s=rng.choice((SLOW, 3 * SLOW))))
    return history


def unexplained(history: History) -> list[tuple[tuple[int, int], list[tuple[float, int]]]]:
    """Blocks that were trained twice though nobody who had trained them died or froze just before or after."""
    found = []
    for block, uses in trained_blocks(history.swarm).items():
        doers = [(at_s - EPOCH_S, peer.index) for at_s, peer in uses]
        is_explained = any(
            abs(at_s - dead_s) < REISSUED_S for at_s, index in doers for dead_s in history.killed[index]
        )
        if len(doers) > 1 and not is_explained:
            found.append((block, doers))
    return found
