"""More real trainers than anybody knows by name."""

import signal
from collections import defaultdict
from functools import partial
from pathlib import Path

from collab.swarm.crowd import CROWD_FROM
from tests.live import habits
from tests.live.processes import Peer, live_swarm, wait_until

RUN = """\
run_id: live-crowd
microbatch_size: 8
task: {name: image_classification, hidden_sizes: [32]}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 640}
checkpoints: {every_epochs: 100000}
"""
TRAINERS = CROWD_FROM + 2
PACE_S = 0.15
"""More of a microbatch than two cores compute, so that so many peers share them."""


def test_a_crowd_of_real_peers_trains_as_one_loses_some_and_takes_in_others(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        swarm.backbone()

        def join(number: int) -> Peer:
            telling = partial(habits.tell_of_a_crowd, str(tmp_path / f"crowd-{number}"))
            return swarm.join(f"trainer-{number}", habits=partial(habits.compute_slowly, PACE_S, telling))

        trainers = [join(number) for number in range(TRAINERS)]
        for trainer in trainers:
            trainer.wait_to_contribute()
        told = [tmp_path / f"crowd-{number}" for number in range(TRAINERS)]

        def all_are_told() -> bool:
            numbers = [sign.read_text().split() for sign in told if sign.exists()]
            return len(numbers) == TRAINERS and all(int(known) < int(among) == TRAINERS for among, known in numbers)

        wait_until(all_are_told, "all to go by what the backbone tells", trainers[0])
        wait_until(
            lambda: any(step["contributors"] == TRAINERS for step in trainers[0].steps),
            "a step of all of them",
            trainers[0],
        )
        for dead in trainers[:2]:
            dead.kill()
        newcomer = join(TRAINERS)
        newcomer.wait_to_contribute()
        trainers = [*trainers[2:], newcomer]
        trainers[0].wait_for_epoch(trainers[0].epoch + 3)
        for trainer in trainers:  # one by one: all at once, two cores are not enough for what each has to say in time
            trainer.process.send_signal(signal.SIGINT)
            trainer.finish()
    lineages: dict[int, set[str]] = defaultdict(set)
    for trainer in trainers:
        for step in trainer.steps:
            lineages[step["epoch"]].add(step["lineage"])
    assert all(len(of_one) == 1 for of_one in lineages.values()), "one history"
