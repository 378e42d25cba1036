#!/usr/bin/env python3
"""How long a newcomer takes from its command to its first contribution, among real peers on loopback.

    python scripts/bench_join.py [--parameters 1e6] [--joins 5] [--seed 0] [--json]

A backbone and two volunteers train a small image model of about so many parameters. One after the other newcomers start
with ``collab-peer join``, contribute to a step, and leave. The volunteers' microbatches are mostly sleep: those of a
real swarm would have machines of their own.

    total_s       from the command to the first step with samples of the newcomer
    imports_s     of this, what loading the program takes: measured before each join by a process that only loads it
    transfer_s    fetching the state
    batch_s       from the end of the first microbatch to the step: waiting for the swarm's batch, and the round
    contributors  of that step
    beyond_s      the rest: key, network, dial-back, the run, model and data, the first microbatch
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any

from bench_processes import BenchFailed, Child, Household, await_invite
from storm_peer import Assignment
from storm_setup import NUM_CLASSES, NUM_PIXELS

RUN_FILE = """\
run_id: joining
access: open
seed: {seed}
microbatch_size: {microbatch}
task: {{name: image_classification, hidden_sizes: [{width}, {width}]}}
optimizer: {{name: adamw, learning_rate: 0.001}}
strategy: {{name: dedloc, target_batch_size: {target}}}
checkpoints: {{every_epochs: 1000}}
"""
LOADING = "import peers.joining, peers.machine, torch._dynamo"
LIMIT_S = 120.0
VOLUNTEERS, PACE_S, MICROBATCH = 2, 0.25, 16


def width_for(parameters: float) -> int:
    """Of two hidden layers."""
    outer = NUM_PIXELS + NUM_CLASSES + 2
    return round((math.sqrt(outer**2 + 4 * parameters) - outer) / 2)


class Swarm:
    """A backbone and volunteers that train."""

    def __init__(self, household: Household, run_text: str) -> None:
        self._household = household
        self._invite, backbone = household.start_backbone(run_text, "--json")
        await_invite(self._invite, backbone, LIMIT_S)
        for volunteer in [self._volunteer(f"volunteer-{number}") for number in range(VOLUNTEERS)]:
            first_event(volunteer, lambda event: event["event"] == "EpochFinished")

    def join(self, name: str) -> Child:
        """Start a newcomer."""
        options = [str(self._invite), "--name", name, "--data-dir", self._place(name), "--json"]
        return self._household.start(["-m", "peers.cli", "join", *options], goodbye=SIGTERM, is_fresh=True)

    def _volunteer(self, name: str) -> Child:
        invite, place = str(self._invite), self._place(name)
        work = Assignment(invite=invite, name=name, data_dir=place, pace_s=PACE_S, microbatch_size=MICROBATCH)
        return self._household.start(work.words(), goodbye=SIGTERM)

    def _place(self, name: str) -> str:
        return str(self._household.folder / name)


def first_event(child: Child, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next event of a peer that fits."""
    give_up_s = time.monotonic() + LIMIT_S
    while True:
        event = child.answer(max(give_up_s - time.monotonic(), 0.1))
        if is_it(event):
            return event


def measure_join(swarm: Swarm, number: int) -> dict[str, float]:
    """One newcomer's way in."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", LOADING], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    imports_s = time.monotonic() - began_s
    began_s = time.time()
    newcomer = swarm.join(f"newcomer-{number}")
    reach = first_event(newcomer, lambda event: event["event"] == "ReachDecided")
    fetched = first_event(newcomer, lambda event: event["event"] == "StateFetched")
    first = first_event(newcomer, lambda event: event["event"] == "MicrobatchDone")
    step = first_event(newcomer, lambda event: event["event"] == "EpochFinished" and event["own_samples"] > 0)
    newcomer.leave()
    newcomer.process.wait(LIMIT_S)
    total_s, batch_s = step["at_s"] - began_s, step["at_s"] - first["at_s"]
    return {
        "total_s": total_s,
        "imports_s": imports_s,
        "transfer_s": fetched["seconds"],
        "batch_s": batch_s,
        "beyond_s": total_s - imports_s - fetched["seconds"] - batch_s,
        "reach_decided_after_s": reach["at_s"] - began_s,
        "state_after_s": fetched["at_s"] - began_s,
        "first_microbatch_after_s": first["at_s"] - began_s,
        "contributors": step["contributors"],
    }


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e6)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--target", type=int, default=512, help="samples of one step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    width, load_before = width_for(options.parameters), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        household = Household(Path(folder))
        try:
            swarm = Swarm(
                household, RUN_FILE.format(seed=options.seed, microbatch=MICROBATCH, width=width, target=options.target)
            )
            joins = [measure_join(swarm, number) for number in range(options.joins)]
        except BenchFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 1
        finally:
            household.close()
    medians = {name: round(statistics.median(join[name] for join in joins), 2) for name in joins[0]}
    for name in [name for name in medians if name.endswith("_s")]:
        print(f"{name:26} {medians[name]:6.2f} s   worst {max(join[name] for join in joins):6.2f} s")
    if options.json:
        content = {
            "benchmark": "join",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "setup": {**vars(options), "width": width, "volunteers": VOLUNTEERS},
            "machine": {
                "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version(),
                "load_before": round(load_before, 2),
            },
            "median": medians,
            "joins": [{name: round(seconds, 3) for name, seconds in join.items()} for join in joins],
        }  # fmt: skip
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
