#!/usr/bin/env python3
"""How long a plan takes, and how far it is from the best one there is.

    python scripts/bench_plan.py [--peers 8,256,5000] [--swarms 300] [--repeats 21] [--seed 0] [--json]

Two things are timed: ``shares``, which divides a vector among reducers, and ``auto``, which also chooses contributors
and codecs and so solves the first problem many times (for groups up to the size in which rounds are made). The other
figure is the largest relative difference between our round time and that of DeDLOC's linear program, solved with scipy
HiGHS, over random swarms of 2 to 10 peers of all roles, link speeds and encodings. Everything runs on one core.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the linear program lives with the tests

import numpy as np

from collab.averaging.contribution_plan import Member, plan_contributions
from collab.averaging.shares import PeerLink, solve
from tests.averaging.dedloc_lp import fastest_round_s, random_swarm

NUM_ELEMENTS = 2_000_000
BYTES_PER_ELEMENT = {"none": 4.0, "float16": 2.0, "int8": 1 + 4 / 256, "int4": 0.5 + 2 / 32}
LARGEST_GROUP = 256
"""Four times the size up to which one group averages."""


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """Of ``repeats`` calls, after one that warms up."""
    action()
    durations_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        action()
        durations_s.append(time.perf_counter() - began_s)
    return round(1e3 * statistics.median(durations_s), 3)


def members_of(links: Sequence[PeerLink]) -> list[Member]:
    """The same peers, all equally fast."""
    return [
        Member(
            peer=link.peer,
            up_bytes_per_s=link.up_bytes_per_s,
            down_bytes_per_s=link.down_bytes_per_s,
            has_gradient=link.payload_bytes > 0,
            can_reduce=link.can_reduce,
            receives=link.receives,
            work=1.0,
        )
        for link in links
    ]


def times_ms(peers: int, seed: int, repeats: int) -> dict[str, float]:
    """Of one random swarm of that size."""
    links, result_bytes = random_swarm(np.random.default_rng([seed, peers]), peers)
    found = {"shares": median_ms(lambda: solve(links, result_bytes), repeats)}
    if peers <= LARGEST_GROUP:
        members = members_of(links)
        found["auto"] = median_ms(
            lambda: plan_contributions(
                members,
                num_elements=NUM_ELEMENTS,
                bytes_per_element=BYTES_PER_ELEMENT,
                policy="auto",
                accumulate_s=10.0,
            ),
            repeats,
        )
    return found


def largest_difference(swarms: int, seed: int) -> float:
    """Between our round times and those of the linear program, as a fraction of the latter."""
    rng = np.random.default_rng(seed)
    worst = 0.0
    for _ in range(swarms):
        links, result_bytes = random_swarm(rng, int(rng.integers(2, 11)))
        worst = max(worst, abs(solve(links, result_bytes).seconds / fastest_round_s(links, result_bytes) - 1.0))
    return worst


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="8,256,5000", help="sizes of the timed swarms, by commas")
    parser.add_argument("--swarms", type=int, default=300, help="random swarms that are compared")
    parser.add_argument("--repeats", type=int, default=21, help="calls behind each median")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    sizes = options.peers.split(",")
    if not all(size.isdecimal() and int(size) >= 2 for size in sizes) or min(options.swarms, options.repeats) < 1:
        parser.error("--peers must be numbers from 2 on; --swarms and --repeats at least 1")
    options.peers = [int(size) for size in sizes]
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    load_before = os.getloadavg()[0]
    medians = {str(size): times_ms(size, options.seed, options.repeats) for size in options.peers}
    content: dict[str, Any] = {
        "benchmark": "plan",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {"repeats": options.repeats, "swarms": options.swarms, "num_elements": NUM_ELEMENTS},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("numpy", "scipy")}},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load_before": round(load_before, 2)},
        "median_ms": medians,
        "largest_difference_to_lp": largest_difference(options.swarms, options.seed),
    }
    print(f"{'peers':>6} {'shares ms':>10} {'auto ms':>10}")
    for size, found in medians.items():
        print(f"{size:>6} {found['shares']:>10.3f} {found.get('auto', float('nan')):>10.3f}")
    print(f"largest relative difference to the linear program: {content['largest_difference_to_lp']:.1e}")
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
