#!/usr/bin/env python3
"""VC-ASGD measured: what it learns, how it scales, what preemptions cost, and how fast its stores are.

    python scripts/bench_vcasgd.py [--parts alpha,scaling,preemption,stores,live] [--alphas pass,0.7] [--seeds 5]
        [--passes 40] [--turns 40] [--unit-s 1.5] [--json]

The last line is one JSON object with a list for each part.

    alpha       accuracy on scikit-learn's digits after as many passes, for alpha = e/(e+1) and constants, beside one
                machine that trains on the same samples one after the other with the same optimiser (``serial``);
                clients, servers and links are those of a real run, in virtual time
    scaling     seconds until everything is done with 1, 3 and 5 servers on thin links, in virtual time (PnCnTn)
    preemption  minutes that preemptions cost a place in fleets worked through with the units' real bookkeeping, beside
                n p/(1-p) t_o and the published n p t_o
    live        seconds that preemptions cost a place when real clients are killed with SIGKILL in their units, with
                probability p, and replaced when the unit's lease is over, or at once; beside the same formulas:
                ``lost_s`` from the beginning of each unit with a kill to that of the place's next one, ``joining_s``
                what of that a new client took to join, which the formulas leave out, ``extra_s`` by how much the run is
                longer than without any kill
    stores      pushes a second of each store, strong and eventual, with 1, 3 and 5 servers on this machine, and the
                share of the pushes that another one has overwritten
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench_processes import BenchFailed
from vcasgd_live import Course as LiveCourse, preempted_live
from vcasgd_preemption import preempted
from vcasgd_stores import measure
from vcasgd_swarm import Course, train, train_serially

from collab.fleet_cost import Fleet

ALPHAS = ("pass", "0.7", "0.95", "0.999")
PUBLISHED = Fleet(
    units=2000, clients=5, at_once=2, unit_s=100.0, preemption=0.0, lost_s=300.0, price=1.0, preemptible_price=0.2
)
"""CIFAR-10 in 50 shards and 40 passes on five clients that train two units each, with a time-out of five minutes: here
three times what a unit takes."""
SIMULATED_RUNS = 1000
PLACES = 3
"""Real clients at a time, whose units are mostly sleep."""
STORE_S = 4.0
STORE_ELEMENTS = 250_000
"""One megabyte."""


def alpha(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy by alpha and seed."""
    rows = []
    serial = [train_serially(Course(seed=seed, passes=options.passes)).accuracy for seed in range(options.seeds)]
    rows.append(_accuracies("serial", serial, serial))
    for choice in options.alphas:
        found = []
        for seed in range(options.seeds):
            began_s = time.monotonic()
            fleet, result = train(Course(seed=seed, alpha=choice, clients=5, passes=options.passes))
            found.append(result.accuracy)
            words = f"alpha {choice} seed {seed}: {100 * result.accuracy:.1f} % after {fleet.store.version()} pushes"
            print(f"{words}, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        rows.append(_accuracies(choice, found, serial))
    return rows


def _accuracies(choice: str, found: list[float], serial: list[float]) -> dict[str, Any]:
    points = 100 * (statistics.fmean(found) - statistics.fmean(serial))
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return {
        "alpha": choice,
        "accuracy": [round(value, 4) for value in found],
        "mean": round(statistics.fmean(found), 4),
        "spread": round(spread, 4),
        "points_over_serial": round(points, 2),
    }


def scaling(_options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same work with more servers: P1C5T2, P3C5T2, P5C5T2, with P1C1T1 beside them."""
    rows: list[dict[str, Any]] = []
    for servers, clients, at_once in ((1, 1, 1), (1, 5, 1), (1, 5, 2), (3, 5, 2), (5, 5, 2)):
        course = Course(
            seed=0, servers=servers, clients=clients, at_once=at_once, passes=4, hidden=2048, server_mbit=20.0
        )
        fleet, _ = train(course)
        name = f"P{servers}C{clients}T{at_once}"
        rows.append({"fleet": name, "training_s": round(fleet.training_s, 1), "pushes": fleet.store.version()})
        print(f"{name}: {fleet.training_s:.0f} virtual s", file=sys.stderr, flush=True)
    base = rows[1]["training_s"]
    return [{**row, "faster_than_P1C5T1": round(base / row["training_s"], 2)} for row in rows]


def preemption(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Simulated fleets beside the formula."""
    fleets = [Fleet(**{**_fields(PUBLISHED), "preemption": p}) for p in (0.05, 0.20)]
    return [preempted(fleet, runs=SIMULATED_RUNS, seed=options.seed) for fleet in fleets]


def _fields(fleet: Fleet) -> dict[str, Any]:
    return {name: getattr(fleet, name) for name in Fleet.__dataclass_fields__}


def stores(_options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each store with 1, 3 and 5 servers, strong and eventual in turns."""
    rows = []
    for kind, servers in ((kind, servers) for kind in ("memory", "sqlite", "redis") for servers in (1, 3, 5)):
        for is_strong in (True,) if kind == "memory" else (True, False):
            row = measure(kind, servers=servers, elements=STORE_ELEMENTS, seconds=STORE_S, is_strong=is_strong)
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    return rows


def live(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Real clients, and real kills."""
    calm = LiveCourse(
        places=PLACES, turns=options.turns, unit_s=options.unit_s, preemption=0.0, waits=True, seed=options.seed
    )
    waiting = [(preemption, True) for preemption in options.preemptions]
    return preempted_live(calm, [*waiting, (max(options.preemptions), False)])


PARTS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "alpha": alpha,
    "scaling": scaling,
    "preemption": preemption,
    "stores": stores,
    "live": live,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas")
    parser.add_argument("--alphas", default=",".join(ALPHAS), help="by commas; pass: e/(e+1) in pass e")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each alpha")
    parser.add_argument("--passes", type=int, default=40, help="over the data, of each of these runs")
    parser.add_argument("--turns", type=int, default=40, help="units for each of the real clients; even")
    parser.add_argument("--unit-s", type=float, default=1.5, help="what such a unit takes")
    parser.add_argument("--preemptions", default="0.05,0.2", help="chances that such a client is killed in a unit")
    parser.add_argument("--seed", type=int, default=0, help="of simulated and real preemptions")
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    options.alphas = options.alphas.split(",")
    try:
        options.preemptions = [float(text) for text in options.preemptions.split(",")]
    except ValueError:
        parser.error(f"--preemptions {options.preemptions}: expected chances, by commas")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if min(options.seeds, options.passes) < 1:
        parser.error("--seeds and --passes must be at least 1")
    if options.turns < 2 or options.turns % 2 or not options.unit_s > 0:
        parser.error("--turns is even and at least 2, --unit-s above 0")
    if not all(0 < chance < 1 for chance in options.preemptions):
        parser.error("--preemptions are between 0 and 1")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    load_before = os.getloadavg()[0]
    content: dict[str, Any] = {
        "benchmark": "vcasgd",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "setup": {"seed": options.seed, "seeds": options.seeds, "passes": options.passes},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load_before": round(load_before, 2)},
    }
    try:
        for part in options.parts:
            content[part] = PARTS[part](options)
    except BenchFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    for part in options.parts:
        print(part)
        for row in content[part]:
            print("  " + "  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
