"""Data leases over the real directory: real peers that stay train each sample once in a pass."""

from collections import Counter
from pathlib import Path

from tests.live.processes import live_swarm
from tests.live.test_swarm_life import digits

STEPS, TARGET = 30, 128
"""Passes of 1,500 samples have twelve steps; where they have fewer than eight nothing is leased."""


def test_three_peers_lease_what_they_train_and_no_two_train_the_same_block(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=STEPS, every=1000, target=TARGET)) as swarm:
        swarm.backbone()
        trainers = [swarm.join(name) for name in ("one", "two", "three")]
        for trainer in trainers:
            trainer.finish()
        trained = [(event, trainer.name) for trainer in trainers for event in trainer.all("BlockTrained")]
    leased = Counter((event["pass_number"], event["block"]) for event, _ in trained if event["was_leased"])
    assert len({name for event, name in trained if event["was_leased"]}) == 3
    assert sum(leased.values()) >= 0.5 * len(trained), "even where a block takes 2 ms and a claim fifty"
    assert max(leased.values()) == 1
