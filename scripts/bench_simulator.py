#!/usr/bin/env python3
"""What simulations cost: processor seconds for a swarm file's strategies, with calculated rounds and by the roles.

    python scripts/bench_simulator.py docs/swarms/thousand.yaml [--strategies dedloc,diloco] [--minutes M]
        [--roles-minutes 0] [--repeat 1] [--json]

With calculated rounds (``collab-peer simulate --calculated``) each strategy is simulated to the end of the file, or for
``--minutes``, as often as ``--repeat`` says: the digests must be the same. With ``--roles-minutes`` the roles of a real
run are simulated for so long beside it (the baseline), and what both come to is told. Seconds are of this process on
one core; loading torch is not among them.
"""

import argparse
import json
import math
import platform
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collab.simulation.swarm_file import SwarmFile, load_swarm
from peers.figures import Figures
from peers.trying import simulate

TOLD = ("steps", "step_s", "round_s", "samples_per_s", "compute_use", "lost_share", "held_out_loss", "digest")


def timed(swarm: SwarmFile, title: str, *, is_calculated: bool) -> tuple[Figures, float]:
    """One strategy, and the processor seconds that it took."""
    began_s = time.process_time()
    (outcome,) = simulate(swarm, (title,), is_calculated=is_calculated)
    return outcome.figures, time.process_time() - began_s


def told(figures: Figures, seconds: float) -> dict[str, Any]:
    """What is told of one simulation; None: there is no such thing."""
    known = {name: value for name, value in asdict(figures).items() if name in TOLD}
    found = {name: None if isinstance(value, float) and not math.isfinite(value) else value
             for name, value in known.items()}  # fmt: skip
    return {"processor_s": round(seconds, 1), "virtual_minutes": round(figures.virtual_s / 60, 2), **found}


def measured(swarm: SwarmFile, title: str, *, repeat: int, roles_minutes: float) -> dict[str, Any]:
    """One strategy, in both ways."""
    runs = [timed(swarm, title, is_calculated=True) for _ in range(repeat)]
    found = {
        "calculated": [told(*run) for run in runs],
        "same_digest": len({figures.digest for figures, _ in runs}) == 1,
    }
    if roles_minutes:
        short = swarm.model_copy(update={"minutes": roles_minutes})
        found["roles"] = told(*timed(short, title, is_calculated=False))
        found["calculated_beside"] = told(*timed(short, title, is_calculated=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--strategies", default="", help="only these of the file's")
    parser.add_argument("--minutes", type=float, default=None, help="of virtual time, in place of the file's")
    parser.add_argument("--roles-minutes", type=float, default=0.0, help="by the roles of a real run; 0: not at all")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()
    swarm = load_swarm(options.file)
    if options.minutes is not None:
        swarm = swarm.model_copy(update={"minutes": options.minutes})
    import torch._dynamo  # noqa: F401 - each optimizer's first step does

    import collab.training.genesis  # noqa: F401 - torch and all that it loads

    titles = tuple(title for title in options.strategies.split(",") if title)
    found = {}
    for contender in swarm.contenders(titles):
        name = contender.title
        found[name] = measured(swarm, name, repeat=options.repeat, roles_minutes=options.roles_minutes)
        if not options.json:
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    setup = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "file": options.file.name, "seed": swarm.seed,
        "trainers": sum(group.count for group in swarm.groups if group.role == "trainer"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip
    print(json.dumps({"setup": setup, "strategies": found}))


if __name__ == "__main__":
    main()
