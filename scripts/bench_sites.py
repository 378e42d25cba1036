#!/usr/bin/env python3
"""What DTS learns at equal steps beside synchronous training: four sites, pooled data and data of their own.

    python scripts/bench_sites.py [--rounds 120] [--step-ms 50] [--seeds 5] [--compression exact] [--json]

Trainers, backbone and rounds of a real run over simulated links near those of Oregon, Ohio, London and Tokyo, in
virtual time, with delays as they occur; after the last round, for which all wait, every site holds the same model.
Synchronous training is one optimiser on the mean of all sites' gradients, for as many steps as each site has taken.
Both follow the same course of the learning rate (cosine, to a fiftieth). The last line is one JSON object.

    pooled, skewed   every site draws from all digits; from those of two or three labels that nobody else has
    loss, accuracy   on held-out digits, mean of the seeds and their spread
    over             loss over that of synchronous training on the same data
    points           accuracy less that of synchronous training on the same data; below_pooled: on pooled data
    window           own steps in a round, median; the oldest is up to two windows old when the mean comes
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from sites_swarm import Course, Seen, train, train_synchronously

from collab.tasks.base import Evaluation


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All placements, rules and seeds; a row for each placement and rule."""
    first = Course(
        seed=0, is_skewed=False, rounds=options.rounds, step_ms=options.step_ms, batch=options.batch,
        hidden=options.hidden, rate=options.learning_rate, momentum=options.momentum, compression=options.compression,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for is_skewed in (False, True):
        courses = [replace(first, seed=seed, is_skewed=is_skewed) for seed in range(options.seeds)]
        seen = [train(course) for course in courses]
        plain = [train_synchronously(course, each.steps) for course, each in zip(courses, seen, strict=True)]
        data = "skewed" if is_skewed else "pooled"
        rows.append({"data": data, "rule": "synchronous"} | _figures(plain))
        rows.append({"data": data, "rule": "dts"} | _figures([each.result for each in seen]) | _course_of(seen))
        _compare(rows)
        print(*rows[-2:], sep="\n", file=sys.stderr, flush=True)
    return rows


def _figures(found: list[Evaluation]) -> dict[str, Any]:
    losses, accuracies = [each.loss for each in found], [each.accuracy for each in found]
    return {
        "loss": round(statistics.fmean(losses), 4),
        "loss_spread": round(_spread(losses), 4),
        "accuracy": round(100 * statistics.fmean(accuracies), 2),
        "accuracy_spread": round(100 * _spread(accuracies), 2),
        "losses": [round(loss, 4) for loss in losses],
    }


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _course_of(seen: list[Seen]) -> dict[str, Any]:
    return {
        "steps": [each.steps for each in seen],
        "window": statistics.median(each.window for each in seen),
        "sent_mb": round(statistics.fmean(each.sent_mb for each in seen), 2),
    }


def _compare(rows: list[dict[str, Any]]) -> None:
    """The last row with the one before it, and with synchronous training on pooled data."""
    plain, ours = rows[-2:]
    ours["over"] = round(ours["loss"] / plain["loss"], 4)
    ours["points"] = round(ours["accuracy"] - plain["accuracy"], 2)
    ours["below_pooled"] = round(ours["accuracy"] - rows[0]["accuracy"], 2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=120, help="of each swarm")
    parser.add_argument("--step-ms", type=float, default=50.0, help="of each site")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--batch", type=int, default=8, help="samples of a site's step")
    parser.add_argument("--hidden", type=int, default=32, help="units of the model's hidden layer")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--compression", default="exact", choices=("exact", "half", "auto", "sparse"))
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    if min(options.rounds, options.seeds, options.batch, options.hidden) < 1 or options.step_ms <= 0:
        parser.error("--rounds, --seeds, --batch and --hidden must be at least 1, --step-ms above 0")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = measure(options)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        print(json.dumps({"benchmark": "sites", "date": date, "setup": vars(options), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
