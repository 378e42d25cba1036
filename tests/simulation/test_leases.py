"""Whole runs in virtual time: who trained what, and how often, through random lives and deaths of peers."""

from pathlib import Path

from tests.simulation.leasing import SAMPLES, slow_swarm, trained_blocks, used_samples


def test_peers_that_stay_train_each_sample_once_in_a_pass(tmp_path: Path) -> None:
    swarm = slow_swarm(tmp_path, 5, until=30)
    swarm.world.run()
    blocks = trained_blocks(swarm)
    counts = used_samples(swarm)
    print(len(blocks), sum(counts.values()), max(counts.values()), len(counts), swarm.world.time_s)
    assert all(len(uses) == 1 for uses in blocks.values())
    first = {block for pass_number, block in blocks if pass_number == 0}
    assert len(first) == -(-SAMPLES // 8)
