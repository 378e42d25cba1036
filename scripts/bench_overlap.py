#!/usr/bin/env python3
"""How many of their steps trainers keep that average beside them: diloco with and without delay, over one alone.

    python scripts/bench_overlap.py [--parameters 5e6] [--inner 50] [--microbatch-s 0.2] [--mbit 50] [--trainers 4]
        [--compression half] [--rounds 10] [--seed 0] [--json]

The roles of a real run in virtual time, over links of so many Mbit/s up and down and 15 ms, with vectors in which
nothing is learnt. Trainers need the same time for a microbatch, which is a step of theirs. Steps are counted after the
first quarter of the rounds, so joining is not in it.

    steps_per_s      of one trainer, mean over the trainers
    kept             of that, over the same machines that train each for itself (``solo``)
    round_s          median
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any, get_args

from collab import config
from collab.averaging.contribution_plan import Policy
from collab.config import Averaging, Optimizer
from collab.simulation.swarm_file import Contender, Group, NoTask, SwarmFile
from peers.figures import Figures
from peers.trying import simulate

MICROBATCH = 8
IN_MEMORY = 100_000
"""Elements of a vector that are really there; each stands for as many as it takes. So parts are large, and rounds take
up to twice as long as real ones, which is not to the advantage of what is measured."""
JOINING_S = 30.0


def swarm_of(options: argparse.Namespace) -> SwarmFile:
    """Solo, and diloco without and with delay."""
    thinned = max(round(options.parameters / IN_MEMORY), 1)
    target = options.inner * MICROBATCH * options.trainers
    link = {"up_mbit_per_s": options.mbit, "down_mbit_per_s": options.mbit}
    return SwarmFile(
        seed=options.seed,
        minutes=(JOINING_S + 2 * options.rounds * options.inner * options.microbatch_s) / 60.0,
        microbatch_size=MICROBATCH,
        task=NoTask(name="none", num_elements=round(options.parameters), thinned=thinned, samples=4000),
        optimizer=Optimizer(name="sgd", learning_rate=1e-6),
        averaging=Averaging(compression=options.compression, reduction="mean"),
        strategies=(
            Contender(label="solo", strategy=config.Solo(name="solo", target_batch_size=MICROBATCH)),
            Contender(label="waits", strategy=config.Diloco(name="diloco", target_batch_size=target)),
            Contender(label="delay 1", strategy=config.Diloco(name="diloco", target_batch_size=target, delay=1)),
        ),
        groups=(
            Group(name="backbone", role="backbone", up_mbit_per_s=200, down_mbit_per_s=200, latency_ms=10),
            Group(
                name="homes",
                count=options.trainers,
                seconds_per_microbatch=options.microbatch_s,
                latency_ms=15,
                **link,
            ),
        ),
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All three."""
    found = {outcome.figures.title: outcome.figures for outcome in simulate(swarm_of(options))}
    alone = found["solo"].samples_per_s

    def figures(each: Figures) -> dict[str, Any]:
        return {
            "steps_per_s": round(each.samples_per_s / MICROBATCH / options.trainers, 4),
            "kept": round(each.samples_per_s / alone, 4),
            "round_s": None if each.title == "solo" else round(each.round_s, 2),
            "rounds_lost": each.rounds_lost,
            "steps_of_the_swarm": each.steps,
        }

    return {
        "benchmark": "overlap",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {name: value for name, value in vars(options).items() if name not in ("json", "seed")},
        "ways": {title: figures(each) for title, each in found.items()},
        "digests": {title: each.digest for title, each in found.items()},
    }


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Steps that trainers keep whose rounds go on beside them.")
    parser.add_argument("--parameters", type=float, default=5e6, help="of the model")
    parser.add_argument("--inner", type=int, default=50, help="steps of a trainer between two rounds")
    parser.add_argument("--microbatch-s", type=float, default=0.2)
    parser.add_argument("--mbit", type=float, default=50.0, help="of each trainer's link, up and down")
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--compression", default="half", choices=get_args(Policy))
    parser.add_argument("--rounds", type=int, default=10, help="that the run has time for, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    content = measure(options)
    if options.json:
        print(json.dumps(content))
        return 0
    print(f"{'':10}{'steps/s':>10}{'kept':>8}{'round s':>10}")
    for title, found in content["ways"].items():
        round_s = "" if found["round_s"] is None else f"{found['round_s']:.1f}"
        print(f"{title:10}{found['steps_per_s']:>10.3f}{found['kept']:>8.3f}{round_s:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
