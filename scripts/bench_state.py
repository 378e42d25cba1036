#!/usr/bin/env python3
"""How fast newcomers get the run's state from donors behind links of their own, and what that costs the donors' rounds.

    python scripts/bench_state.py --donors 20,20,20,20 --state-mb 24 [--newcomers 1] [--joins 3] [--json]      # root

Donors train; they, newcomers and a backbone, which has no newer state than its first checkpoint, are real processes,
each in a network namespace behind its link (up/down Mbit/s, see netlab.py). So many newcomers at once come ``--joins``
times, and leave when they all have the state.

    optimum_s      what the newcomers fetch over what all donors can send, or over their own links if that is longer
    seconds        from the moment the first one asks to the moment the last one has all, every chunk verified
    in_rounds_s    of these, while donors averaged: then newcomers get a twentieth of their uplinks
    ratio          seconds over optimum_s; headers make it 1.05 at best
    ratio_between  the same without in_rounds_s
    rounds_s       donors' committed rounds: before anybody came, and those that went on while somebody fetched
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any

from bench_join import width_for
from bench_processes import BenchFailed, Child, Household, await_invite
from netlab import Lab
from netlab_links import Link
from netlab_namespaces import LabFailed
from storm_peer import Assignment

RUN_FILE = """\
run_id: state
access: open
seed: {seed}
microbatch_size: {microbatch}
task: {{name: image_classification, hidden_sizes: [{width}, {width}]}}
optimizer: {{name: adamw, learning_rate: 0.001}}
strategy: {{name: dedloc, target_batch_size: {target}}}
averaging: {{compression: half}}
checkpoints: {{every_epochs: 1000}}
"""
STATE_FLOATS = 3
"""Of AdamW, for each parameter: itself and two moments."""
BACKBONE_LINK = Link(up_mbit_per_s=100.0, down_mbit_per_s=100.0)
PACE_S, MICROBATCH = 0.5, 16
START_LIMIT_S, FETCH_LIMIT_S = 240.0, 300.0
PULSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Round:
    """One committed round, as one donor saw it."""

    began_s: float
    ended_s: float


class Donors:
    """Trainers that hold the state, and a backbone that made them meet."""

    def __init__(self, household: Household, lab: Lab, run_text: str, number: int) -> None:
        self._household, self._lab = household, lab
        self._invite, backbone = household.start_backbone(run_text, "--json", network=lab)
        await_invite(self._invite, backbone, START_LIMIT_S)
        self._trainers = [self.start(index) for index in range(1, number + 1)]
        self.rounds: list[Round] = []

    def start(self, index: int) -> Child:
        """A trainer at one of the lab's links."""
        name = f"peer-{index}"
        place = str(self._household.folder / name)
        work = Assignment(
            invite=str(self._invite), name=name, data_dir=place, pace_s=PACE_S, microbatch_size=MICROBATCH
        )
        return self._household.start(work.words(), place=self._lab.place(index), goodbye=SIGTERM)

    def listen(self) -> None:
        """Take note of the rounds that the trainers have ended."""
        for trainer in self._trainers:
            ended = [event for event in trainer.heard() if event["event"] == "RoundEnded" and event["committed"]]
            self.rounds += [Round(event["at_s"] - event["seconds"], event["at_s"]) for event in ended]

    def wait_for(self, number: int) -> None:
        """Until the trainers have seen so many more rounds, all of them together."""
        so_far, give_up_s = len(self.rounds), time.monotonic() + START_LIMIT_S
        while len(self.rounds) < so_far + number * len(self._trainers):
            if time.monotonic() > give_up_s:
                raise BenchFailed(f"the donors make no rounds:\n{self._trainers[0].log_tail()}")
            time.sleep(PULSE_S)
            self.listen()


def fetch(newcomers: Sequence[Child]) -> list[dict[str, Any]]:
    """What each says when it has the state."""
    fetched: list[dict[str, Any]] = []
    for newcomer in newcomers:
        give_up_s = time.monotonic() + FETCH_LIMIT_S
        while (event := newcomer.answer(max(give_up_s - time.monotonic(), 0.1)))["event"] != "StateFetched":
            pass
        fetched.append(event)
    return fetched


def figures_of(
    fetched: list[dict[str, Any]], donors: Sequence[Link], newcomer: Link, rounds: Sequence[Round]
) -> dict[str, Any]:
    """Of newcomers that came at once."""
    began_s = min(event["at_s"] - event["seconds"] for event in fetched)
    ended_s = max(event["at_s"] for event in fetched)
    sizes = [event["num_bytes"] for event in fetched]
    together_s = sum(sizes) * 8 / 1e6 / sum(link.up_mbit_per_s for link in donors)
    optimum_s = max(together_s, max(sizes) * 8 / 1e6 / newcomer.down_mbit_per_s)
    inside = [(max(r.began_s, began_s), min(r.ended_s, ended_s)) for r in rounds]
    in_rounds_s = covered_s([span for span in inside if span[0] < span[1]])
    return {
        "began_s": began_s,
        "ended_s": ended_s,
        "seconds": round(ended_s - began_s, 3),
        "optimum_s": round(optimum_s, 3),
        "in_rounds_s": round(in_rounds_s, 3),
        "ratio": round((ended_s - began_s) / optimum_s, 3),
        "ratio_between": round((ended_s - began_s - in_rounds_s) / optimum_s, 3),
        "num_bytes": sizes,
        "donors": [len(event["donors"]) for event in fetched],
        "largest_share": round(max(max(event["donors"].values()) / event["num_bytes"] for event in fetched), 3),
    }


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """By at least one of them: each donor tells of the same rounds."""
    total_s, until_s = 0.0, -math.inf
    for start_s, stop_s in sorted(spans):
        total_s += max(stop_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, stop_s)
    return total_s


def rounds_of(rounds: Sequence[Round], joins: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How long rounds took while nobody fetched, and while somebody did."""
    beside = [
        r.ended_s - r.began_s
        for r in rounds
        if any(r.began_s < join["ended_s"] and join["began_s"] < r.ended_s for join in joins)
    ]
    before = [r.ended_s - r.began_s for r in rounds if r.ended_s < joins[0]["began_s"]][-12:]
    alone_s, beside_s = statistics.median(before), statistics.median(beside) if beside else None
    return {
        "alone": round(alone_s, 3),
        "beside": None if beside_s is None else round(beside_s, 3),
        "ratio": None if beside_s is None else round(beside_s / alone_s, 3),
        "number": [len(before), len(beside)],
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All joins in one swarm, one after the other."""
    donors, newcomer = [Link.parse(text) for text in options.donors.split(",")], Link.parse(options.newcomer_link)
    links = [BACKBONE_LINK, *donors, *[newcomer] * (options.joins * options.newcomers)]
    width = width_for(options.state_mb * 1e6 / 4 / STATE_FLOATS)
    target = round(len(donors) * MICROBATCH / PACE_S * options.epoch_s)
    text = RUN_FILE.format(seed=options.seed, microbatch=MICROBATCH, width=width, target=target)
    joins: list[dict[str, Any]] = []
    with Lab(links) as lab:
        household = Household(folder)
        try:
            swarm = Donors(household, lab, text, len(donors))
            swarm.wait_for(options.rounds)
            for number in range(options.joins):
                first = 1 + len(donors) + number * options.newcomers
                newcomers = [swarm.start(index) for index in range(first, first + options.newcomers)]
                fetched = fetch(newcomers)
                for peer in newcomers:
                    peer.leave()
                for peer in newcomers:
                    peer.process.wait(START_LIMIT_S)
                swarm.wait_for(2)
                joins.append(figures_of(fetched, donors, newcomer, swarm.rounds))
                print(f"join {number}: {joins[-1]['seconds']} s, optimum {joins[-1]['optimum_s']} s", file=sys.stderr)
        finally:
            household.close()
    told = [{name: value for name, value in join.items() if name not in ("began_s", "ended_s")} for join in joins]
    return {
        "width": width,
        "ratio": round(statistics.median(join["ratio"] for join in joins), 3),
        "ratio_between": round(statistics.median(join["ratio_between"] for join in joins), 3),
        "rounds_s": rounds_of(swarm.rounds, joins),
        "joins": told,
    }


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--donors", default="20,20,20,20", help="links, by commas")
    parser.add_argument("--newcomer-link", default="100")
    parser.add_argument("--newcomers", type=int, default=1, help="that come at once")
    parser.add_argument("--joins", type=int, default=3, help="how often so many come")
    parser.add_argument("--state-mb", type=float, default=24.0)
    parser.add_argument("--epoch-s", type=float, default=12.0, help="that the donors compute for one step")
    parser.add_argument("--rounds", type=int, default=6, help="of the donors before anybody comes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options, load_before = parser.parse_args(), os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found = measure(options, Path(folder))
    except (BenchFailed, LabFailed) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    rounds = found["rounds_s"]
    print(f"state: {found['ratio']} of the optimum, {found['ratio_between']} between rounds")
    print(f"rounds: {rounds['alone']} s alone, {rounds['beside']} s beside")
    if options.json:
        machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
        content = {
            "benchmark": "state",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "setup": vars(options),
            "machine": {**machine, "load_before": round(load_before, 2)},
            **found,
        }
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
