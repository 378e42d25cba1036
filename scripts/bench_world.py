#!/usr/bin/env python3
"""Trainers a continent apart: how many steps a second are left of what one machine takes alone.

    python scripts/bench_world.py [--sites FILE] --strategy dts|dedloc [--step-ms 5,15,50,150,500] [--seed S] [--json]
    python scripts/bench_world.py --strategy dts --steps 400 --step-ms 20 [--delay 20] [--data skewed] [--json]

Root. One trainer at each site and a backbone are real processes, each in a network namespace, with the sites' round
trips and rates between them. A step takes ``--step-ms``, most of which the trainer sleeps, as if a device of its own
computed. The first form measures step rates, each step time three times in a row: alone, synchronous, and with the
strategy. The second takes a fixed number of steps and compares what was learnt on held-out digits, beside synchronous
steps as many (on loopback: their loss does not depend on the links). ``--windows 64`` has many windows in a round.

    steps_per_s      own steps of a trainer (global steps with ``dedloc``), mean of all trainers
    efficiency       the same over alone's
    of_bound         the same over 1 / max(alone's step time, transfer / window): the rate if nothing waits for latency
    over_dedloc      the same over dedloc's
    window, delay    own steps in a window, and those from its end until its mean was here, medians
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed, Household, await_invite
from netlab_links import Loopback, Network
from netlab_namespaces import LabFailed
from world_setup import SITES_FILE, Sites, Work, mean, vector_bytes

START_LIMIT_S = 240.0
SLOWEST_STEP_S = 6.0
"""A synchronous one, on any links that this is meant for."""


def measure(work: Work, sites: Sites, options: argparse.Namespace, *, is_far: bool = True) -> list[dict[str, Any]]:
    """One run of one strategy: what each trainer saw.

    Raises:
        BenchFailed: a process did not come up or did not answer.
    """
    print(f"{work.strategy}, {work.step_ms:g} ms a step", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        network: Network = stack.enter_context(sites.lab()) if is_far else Loopback()
        household = Household(Path(folder))
        stack.callback(household.close)
        told = ""
        if work.strategy != "alone":
            run_text = work.run_text(learning_rate=options.learning_rate, delay=options.delay)
            invite, backbone = household.start_backbone(run_text, "--json", network=network)
            await_invite(invite, backbone, START_LIMIT_S)
            told = invite.read_text().strip()
        peers = []
        for index in range(len(sites.names)):
            own = replace(work, index=index, invite=told)
            program = str(Path(__file__).with_name("world_peer.py"))
            words = [program, own.to_json(), str(options.learning_rate)]
            peers.append(household.start(words, place=network.place(index + 1)))
        for peer in peers:
            peer.answer(START_LIMIT_S)
        for peer in peers:
            peer.say("go")
        limit_s = work.seconds + 60.0 + max(work.steps, 4) * max(SLOWEST_STEP_S, work.step_ms / 1e3)
        return [peer.answer(limit_s) for peer in peers]


# -- figures ---------------------------------------------------------------------------------------------------------


def rates(strategy: str, sites: Sites, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Step rates by step time, each beside alone and dedloc."""
    rows = []
    for step_ms in options.step_ms:
        found: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys(("alone", "dedloc", strategy)):
            seen = measure(work_of(name, step_ms, sites, options), sites, options)
            found[name] = row_of(name, seen, step_ms)
        for name, row in found.items():
            alone_s = 1.0 / found["alone"]["steps_per_s"]
            transfer_s = 2 * (1 - 1 / len(sites.names)) * vector_bytes(options.hidden) * 8 / (sites.mbit_per_s * 1e6)
            row["of_bound"] = round(row["steps_per_s"] * max(alone_s, transfer_s / max(row["window"] or 1, 1)), 4)
            row["efficiency"] = round(row["steps_per_s"] / found["alone"]["steps_per_s"], 4)
            row["over_dedloc"] = round(row["steps_per_s"] / found["dedloc"]["steps_per_s"], 2)
            rows.append({"strategy": name, **row})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def row_of(name: str, seen: list[dict[str, Any]], step_ms: float) -> dict[str, Any]:
    """Of one run."""
    counted = "epochs" if name == "dedloc" else "steps"
    return {
        "step_ms": step_ms,
        "steps_per_s": round(mean([peer[counted] / peer["seconds"] for peer in seen]), 3),
        "busy_ms": round(mean([peer["busy_ms"] for peer in seen]), 2),
        **windows_of(seen),
        "rounds": round(mean([float(peer["epochs"]) for peer in seen]), 1),
    }


def windows_of(seen: list[dict[str, Any]]) -> dict[str, float | None]:
    """Medians over all rounds of all trainers."""
    windows = [window for peer in seen for window in peer["windows"]]
    window, delay = (statistics.median(row[at] for row in windows) if windows else None for at in (0, 1))
    return {"window": window, "delay": delay}


def losses(strategy: str, sites: Sites, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is learnt in as many steps."""
    rows = []
    for step_ms in options.step_ms:
        for name in dict.fromkeys(("dedloc", strategy)):
            pace_ms = 1.0 if name == "dedloc" else step_ms
            seen = measure(work_of(name, pace_ms, sites, options), sites, options, is_far=name != "dedloc")
            row = {
                "strategy": name,
                "step_ms": pace_ms,
                "steps": options.steps,
                "loss": round(mean([peer["loss"] for peer in seen]), 5),
                "accuracy": round(mean([peer["accuracy"] for peer in seen]), 4),
                **windows_of(seen),
                "seconds": round(max(peer["all_seconds"] for peer in seen), 1),
            }
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    return rows


def work_of(strategy: str, step_ms: float, sites: Sites, options: argparse.Namespace) -> Work:
    """Of trainer 0, before there is an invite."""
    return Work(
        strategy=strategy,
        index=0,
        trainers=len(sites.names),
        step_ms=step_ms,
        batch=options.batch,
        hidden=options.hidden,
        seconds=options.seconds,
        steps=options.steps,
        is_skewed=options.data == "skewed",
        seed=options.seed,
        windows=options.windows,
    )


# -- command line ----------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=Path, default=SITES_FILE, help="a JSON file; default: four sites, 50 to 215 ms")
    parser.add_argument("--strategy", choices=("dts", "dedloc"), default="dts")
    parser.add_argument("--step-ms", default="5,15,50,150,500", help="step times, by commas")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a rate is measured for")
    parser.add_argument("--steps", type=int, default=0, help="compare the loss after so many steps instead of rates")
    parser.add_argument("--delay", type=int, help="own steps beside a round, at most; default: any number")
    parser.add_argument("--windows", type=int, default=1, help="that one round of dts averages")
    parser.add_argument("--data", choices=("pooled", "skewed"), default="pooled", help="skewed: own labels only")
    parser.add_argument("--batch", type=int, default=8, help="samples of a microbatch")
    parser.add_argument("--hidden", type=int, default=32, help="units of the model's hidden layer")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    try:
        options.step_ms = [float(text) for text in options.step_ms.split(",")]
    except ValueError:
        parser.error(f"--step-ms {options.step_ms}: expected milliseconds, by commas")
    if min(*options.step_ms, options.seconds, options.batch, options.hidden, options.learning_rate) <= 0:
        parser.error("times, --batch, --hidden and --learning-rate must be above zero")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    load_before = round(os.getloadavg()[0], 2)
    try:
        sites = Sites.read(options.sites)
        rows = (losses if options.steps else rates)(options.strategy, sites, options)
    except (BenchFailed, LabFailed, ValueError, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    content = {
        "benchmark": "world",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {**vars(options), "sites": sites.told(), "vector_bytes": vector_bytes(options.hidden)},
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("collab", "hivemind", "torch")}},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load_before": load_before},
        "losses" if options.steps else "rates": rows,
    }
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
