"""Real trainers over the real directory: each block of a pass is leased by one of them."""

from collections import defaultdict
from pathlib import Path

from tests.live.processes import live_swarm, wait_until

RUN = """\
run_id: live-leases
microbatch_size: 8
task: {name: image_classification, hidden_sizes: [64, 64]}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 128}
averaging: {compression: exact}
checkpoints: {every_epochs: 100000}
"""
"""Blocks take a millisecond, and steps some hundredths of a second: nothing is harder for leases."""
PASSES = 3


def test_of_three_trainers_that_begin_at_once_no_two_lease_one_block(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        swarm.backbone()
        trainers = [swarm.join(f"trainer-{number}") for number in range(3)]
        for trainer in trainers:
            trainer.wait_to_contribute()
        wait_until(
            lambda: any(block["pass_number"] >= PASSES for block in trainers[0].all("BlockTrained")),
            f"{PASSES} passes over the data",
            trainers[0],
        )
        swarm.end()
        for trainer in trainers:
            trainer.finish()
    leased: dict[tuple[int, int], set[str]] = defaultdict(set)
    for trainer in trainers:
        for block in trainer.all("BlockTrained"):
            if block["was_leased"]:
                leased[block["pass_number"], block["block"]].add(trainer.name)
    assert all(len(names) == 1 for names in leased.values()), [b for b, names in leased.items() if len(names) > 1]
    assert {name for names in leased.values() for name in names} == {trainer.name for trainer in trainers}
