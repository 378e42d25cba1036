#!/usr/bin/env python3
"""What liars in a swarm cost under each reduction, and what each reduction costs without them.

    python scripts/bench_attacks.py [--peers 10] [--attackers 2] [--rules all] [--attacks all] [--seeds 0,1] [--json]

Peers train the project's own digits task with real gradients of unequal batches; every round, each part of the vector
is reduced by the rule, then clipped and applied as DeDLOC does. The liars know what the honest send. Nothing travels;
what is compared are the rules. Everything runs on one core.

    held_out_loss   of the model at the end, on images that nobody trained on; it has settled
    training_loss   of the same, mean over all training samples; still falling, so it shows who was slowed down
    over_clean      held_out_loss over that of the mean of the honest alone: the same start, the same samples
    training_over_clean
    cost            milliseconds for a million elements of one contributor, and times the mean's

Without an attack ("none") the liars stay at home. Of the mean there are three more: "other order 1" and "2" are the
honest alone with other batches, which is how much chance does to the figures; in "all honest" the liars are honest.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from attack_kinds import KINDS, Attack
from attack_swarm import AttackedSwarm, Result, Setup

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.robust import RULES, Rule
from collab.config import Optimizer

COST_REPEATS = 61
OTHER_ORDERS = (1, 2)
ADAM_BETAS = (0.0, 0.999)
"""No momentum of its own: the peers have it."""
WARM_BYTES = 16 << 20
"""A block that is given back once: from then on the allocator keeps smaller ones, as in any process that trains."""


def measure(setup: Setup, rules: Mapping[str, Rule], attacks: list[Attack]) -> dict[str, dict[str, Result]]:
    """Results by rule and label, of one seed; the mean without liars is always there, and first."""
    trainings: list[tuple[str, str, Setup, Attack | None]] = [("mean", "none", setup, None)]
    trainings += [("mean", f"other order {order}", replace(setup, order=order), None) for order in OTHER_ORDERS]
    trainings += [("mean", "all honest", replace(setup, num_attackers=0), None)]
    for name in rules:
        trainings += [(name, "none", setup, None)] if name != "mean" else []
        trainings += [(name, str(attack), setup, attack) for attack in attacks]
    results: dict[str, dict[str, Result]] = {}
    for name, label, each, attack in trainings:
        began_s = time.monotonic()
        result = AttackedSwarm(each, RULES["mean"] if name == "mean" else rules[name], attack).run()
        results.setdefault(name, {})[label] = result
        took_s = time.monotonic() - began_s
        line = f"seed {setup.seed} {name:14} {label:22} {result.held_out_loss:9.4f} {took_s:6.1f} s"
        print(line, file=sys.stderr, flush=True)
    return results


def cost_ms(rule: Rule, num_contributors: int, seed: int) -> float:
    """Milliseconds for 10^6 elements of one contributor, in parts of the usual length: the least disturbed repeat."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=PART_ELEMENTS).astype(np.float32) for _ in range(num_contributors)]
    weights = [float(weight) for weight in rng.integers(8, 48, num_contributors)]
    times_s = []
    for _ in range(COST_REPEATS):
        began_s = time.perf_counter()
        rule.reduce(values, weights)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s) / (PART_ELEMENTS * num_contributors) * 1e9


def report(setups: list[Setup], found: list[dict[str, dict[str, Result]]], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures; those of one rule and label are lists by seed."""
    np.ones(WARM_BYTES, np.uint8)
    setup = setups[0]
    costs = {
        name: cost_ms(rule, setup.num_peers, setup.seed) for name, rule in {"mean": RULES["mean"], **rules}.items()
    }
    return {
        "benchmark": "attacks",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": [each.seed for each in setups],
        "setup": asdict(setup) | {"optimizer": setup.optimizer.model_dump(), "samples": setup.samples},
        "rules": {name: str(rule) for name, rule in rules.items()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": version("torch")},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load": round(os.getloadavg()[0], 2)},
        "results": {
            name: {label: figures(name, label, found) for label in labelled} for name, labelled in found[0].items()
        },
        "cost": {
            name: {"ms": round(cost, 3), "over_mean": round(cost / costs["mean"], 1)} for name, cost in costs.items()
        },
    }


def figures(name: str, label: str, found: list[dict[str, dict[str, Result]]]) -> dict[str, list[float | int | None]]:
    """Of one rule and label, seed by seed."""
    results = [by_rule[name][label] for by_rule in found]
    cleans = [by_rule["mean"]["none"] for by_rule in found]
    return {
        "held_out_loss": [_rounded(result.held_out_loss) for result in results],
        "training_loss": [_rounded(result.training_loss) for result in results],
        "accuracy": [round(result.accuracy, 4) for result in results],
        "over_clean": [
            _rounded(result.held_out_loss / clean.held_out_loss) for result, clean in zip(results, cleans, strict=True)
        ],
        "training_over_clean": [
            _rounded(result.training_loss / clean.training_loss) for result, clean in zip(results, cleans, strict=True)
        ],
        "refused": [result.refused for result in results],
    }


def _rounded(value: float) -> float | None:
    """Five significant digits; null for what JSON cannot say, a loss that is not finite."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def show(content: dict[str, Any]) -> None:
    """Held-out losses over the clean one: the mean over the seeds, and the largest where there are several."""
    labels = list(dict.fromkeys(label for found in content["results"].values() for label in found))
    print(f"{'held-out / clean':24}" + "".join(f"{name:>16}" for name in content["results"]))
    for label in labels:
        cells = [_cell(found[label]["over_clean"] if label in found else []) for found in content["results"].values()]
        print(f"{label:24}" + "".join(f"{cell:>16}" for cell in cells))
    costs = [content["cost"][name]["ms"] for name in content["results"]]
    print(f"{'ms / 10^6 / contributor':24}" + "".join(f"{cost:>16.2f}" for cost in costs))


def _cell(ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or len(known) < len(ratios):
        return "-"
    mean = f"{np.mean(known):.3f}"
    return mean if len(known) == 1 else f"{mean} <= {max(known):.3f}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--attackers", type=int, default=2, help="of the peers")
    parser.add_argument("--rules", default="all", help=f"by commas, of {', '.join(RULES)}")
    parser.add_argument("--attacks", default="all", help=f"name or name:strength, by commas, of {', '.join(KINDS)}")
    parser.add_argument("--epochs", type=int, default=400, help="global steps of each training")
    parser.add_argument("--optimizer", default="sgd", choices=["adamw", "sgd"])
    parser.add_argument("--learning-rate", type=float, default=1.0, help="at first; it falls to 0 as a cosine")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the workers, as in a run file")
    parser.add_argument("--claimed", type=float, default=1.0, help="samples a liar claims, over the mean of the honest")
    parser.add_argument("--max-share", type=float, default=1.0, help="cap of a contributor's weight")
    parser.add_argument(
        "--max-norm", type=float, default=1.0, help="of the step's gradient, as DeDLOC clips; 0: do not"
    )
    parser.add_argument("--seeds", default="0", help="by commas; each is a start and an order of samples")
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    if not 0 <= options.attackers < options.peers or options.epochs < 1:
        parser.error("--attackers must be less than --peers, --epochs at least 1")
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    names = list(RULES) if options.rules == "all" else options.rules.split(",")
    if unknown := set(names) - set(RULES):
        parser.error(f"--rules: unknown {', '.join(sorted(unknown))}")
    options.rules = {name: RULES[name] for name in names}
    try:
        options.attacks = [
            Attack.parse(text) for text in (KINDS if options.attacks == "all" else options.attacks.split(","))
        ]
    except ValueError as error:
        parser.error(f"--attacks: {error}")
    return options


def main() -> int:
    """Train, compare and print; the exit code."""
    options = parse_arguments()
    optimizer = Optimizer(name=options.optimizer, learning_rate=options.learning_rate, betas=ADAM_BETAS)
    setups = [
        Setup(
            num_peers=options.peers,
            num_attackers=options.attackers,
            epochs=options.epochs,
            seed=seed,
            optimizer=optimizer,
            max_gradient_norm=options.max_norm or None,
            worker_momentum=options.momentum,
            claimed=options.claimed,
            max_share=options.max_share,
        )
        for seed in options.seeds
    ]
    found = [measure(setup, options.rules, options.attacks) for setup in setups]
    content = report(setups, found, options.rules)
    show(content)
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
