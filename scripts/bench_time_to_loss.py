#!/usr/bin/env python3
"""A race to the same loss: strategies of this project, hivemind's optimizers and torchft's DiLoCo on the same links.

    python scripts/bench_time_to_loss.py [--links 20/100@15,...] [--backbone 200@5] [--engines hivemind,diloco,...]
        [--seconds 40] [--tune-seconds 20] [--rates 0.002,0.004,0.008] [--delays 0,1] [--batches 96,192]
        [--phases 300,600] [--pace-ms 250] [--churn 0.33,0.67] [--seed S] [--json]                        # root

Every engine trains the same small GPT-2 on the standard library's own source for ``--seconds``, one engine after the
other: one process for each link, in a network namespace, with the user's loop around ``collab.join``,
``hivemind.Optimizer`` or torchft's ``DiLoCo``. A microbatch takes ``--pace-ms`` for all, most of which is sleep, as if
each had a device of its own. Trainer 0 judges its model on held-out text right after steps of the swarm; the time that
it takes is not counted. This project's backbone is at ``--backbone``; hivemind has an auxiliary peer there, torchft its
lighthouse.

    hivemind           sends float16 and is told the true bandwidths
    hivemind-delay     the same, and averages and steps beside the next microbatches
    hivemind-local     takes local updates, and averages parameters
    torchft            DiLoCo; sends float32, as it has nothing smaller for CPUs

The same tuning for all: ``--tune-seconds`` for each engine at every rate, batch or phase, and delay (where it has one),
then the best of them for ``--seconds``. Without ``--tune-seconds`` every one runs for ``--seconds``.

    target_loss        the loss that the slowest engine reaches in its time, of those that take a step in it
    seconds_to_loss    until trainer 0 first judged that or less; null: not reached
    microbatch_s       what a microbatch of trainer 0 took: more than --pace-ms where the machine has not enough cores
    bytes_to_loss      that all links had carried in the engine's whole run, by the share of the time until then
    speedup            seconds of the first engine over those of each

With ``--churn`` two trainers are killed and one comes, at these parts of the time.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench_processes import BenchFailed
from netlab_links import Link
from netlab_namespaces import LabFailed
from race_lap import KILLED, Churn, Course, Lap, Race
from race_setup import ENGINES, Engine, not_installed

HOMES = ",".join(["20/100@15"] * 6)
OFTEN = ("hivemind", "hivemind-delay", "dedloc", "dts")
"""Engines that exchange for each batch: gradients, or what a few steps have come to; the others for each phase."""
WITH_DELAY = ("torchft", "dedloc", "diloco")


def tries_of(name: str, options: argparse.Namespace) -> list[Engine]:
    """One contestant at every rate, target and delay."""
    return [
        Engine(
            name=name,
            learning_rate=rate,
            target=target,
            compression=options.dense if name == "diloco" else "auto",
            delay=delay,
            outer_learning_rate=options.outer[0],
            outer_momentum=options.outer[1],
        )
        for rate in options.rates
        for target in (options.batches if name in OFTEN else options.phases)
        for delay in (options.delays if name in WITH_DELAY else [0])
    ]


def race(name: str, options: argparse.Namespace) -> tuple[Lap, list[Lap]]:
    """An engine's lap that counts, and those that chose its settings.

    Raises:
        BenchFailed: not one of them came to an end.
    """
    tries, course = tries_of(name, options), options.course
    tuned = list[Lap]()
    is_tuned_first = options.tune_seconds > 0 and len(tries) > 1
    if is_tuned_first:
        course = replace(course, seconds=options.tune_seconds, churn=None)
    for engine in tries:
        try:
            tuned.append(Race(engine, course).run())
        except BenchFailed as failure:
            print(f"{engine}: {failure}", file=sys.stderr, flush=True)
    if not tuned:
        raise BenchFailed(f"{name}: no run came to an end")
    best = min(tuned, key=lambda lap: float("inf") if lap.best_loss is None else lap.best_loss)
    return (Race(best.engine, options.course).run() if is_tuned_first else best), tuned


def settings_of(engine: Engine) -> dict[str, Any]:
    """What was tried."""
    return {"rate": engine.learning_rate, "target": engine.target, "delay": engine.delay}


def report(
    options: argparse.Namespace, laps: dict[str, tuple[Lap, list[Lap]]], failed: dict[str, str], load_before: float
) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    best = {name: lap for name, (lap, _) in laps.items()}
    reached = [lap.best_loss for lap in best.values() if lap.best_loss is not None]
    target = float(options.loss) if options.loss != "auto" else max(reached, default=0.0)
    seconds = {name: lap.seconds_to(target) for name, lap in best.items()}
    first = next(iter(seconds.values()))
    libraries = [name for name in ("collab", "hivemind", "torch", "torchft") if name not in not_installed()]
    return {
        "benchmark": "time_to_loss",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {name: value for name, value in vars(options).items() if name not in ("json", "course")},
        "versions": {name: version(name) for name in libraries} | {"python": platform.python_version()},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load_before": load_before},
        "parameters": next(iter(best.values())).num_elements,
        "target_loss": target,
        "seconds_to_loss": seconds,
        "bytes_to_loss": {
            name: None if seconds[name] is None else round(lap.wire_bytes * (seconds[name] or 0.0) / options.seconds)
            for name, lap in best.items()
        },
        "speedup": {
            name: None if first is None or not each else round(first / each, 2) for name, each in seconds.items()
        },
        "best_loss": {name: lap.best_loss for name, lap in best.items()},
        "steps": {
            name: {
                "epochs": lap.epochs,
                "own_microbatches": lap.microbatches,
                "in_steps_s": lap.in_steps_s,
                "microbatch_s": round(lap.microbatch_s, 3),
            }
            for name, lap in best.items()
        },
        "settings": {name: settings_of(lap.engine) for name, lap in best.items()},
        "tuning": {
            name: [settings_of(each.engine) | {"best_loss": each.best_loss} for each in tuned]
            for name, (_, tuned) in laps.items()
        },
        "failed": failed,
        "curves": {name: lap.curve for name, lap in best.items()},
    }


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Of the command line; ends the program with a message where they make no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default=HOMES, help="of the trainers")
    parser.add_argument("--backbone", default="200@5", help="its link")
    parser.add_argument("--engines", help="the first is what the others are compared with; default: all that are here")
    parser.add_argument("--seconds", type=float, default=90.0, help="that each engine trains for")
    parser.add_argument("--tune-seconds", type=float, default=0.0, help="for each engine at each rate and delay, first")
    parser.add_argument("--rates", default="0.002", help="learning rates to try for each engine")
    parser.add_argument("--delays", default="1", help="0: exchanges are waited for, 1: they go on beside microbatches")
    parser.add_argument("--batches", default="192", help="samples of a step of dedloc, hivemind or a window of dts")
    parser.add_argument("--phases", default="1200", help="samples between two exchanges of the others, to try")
    parser.add_argument("--dense", default="int8", choices=("half", "int8", "int4"), help="compression of diloco")
    parser.add_argument("--outer", default="0.7,0.9", help="outer learning rate and momentum of diloco and torchft")
    parser.add_argument("--loss", default="auto", help="to reach; auto: what the slowest reaches in its time")
    parser.add_argument("--pace-ms", type=float, default=250.0, help="what a microbatch takes")
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--churn", help="kill two trainers and let one come, at these parts of the time: 0.33,0.67")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args(arguments)
    missing = not_installed()
    options.engines = options.engines.split(",") if options.engines else [e for e in ENGINES if e not in missing]
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"--engines: {', '.join(sorted(unknown))}: there are {', '.join(ENGINES)}")
    if absent := set(options.engines) & set(missing):
        parser.error(f"--engines: {', '.join(absent)} is not installed here: pip install torchft==0.2.0")
    try:
        options.rates = [float(text) for text in options.rates.split(",")]
        options.delays = [int(text) for text in options.delays.split(",")]
        options.batches = [int(text) for text in options.batches.split(",")]
        options.phases = [int(text) for text in options.phases.split(",")]
        options.outer = [float(text) for text in options.outer.split(",")]
        options.course = Course(
            backbone=Link.parse(options.backbone),
            trainers=tuple(Link.parse(text) for text in options.links.split(",")),
            seconds=options.seconds,
            pace_ms=options.pace_ms,
            microbatch=options.microbatch,
            layers=options.layers,
            width=options.width,
            seed=options.seed,
            churn=Churn.parse(options.churn) if options.churn else None,
        )
    except ValueError as error:
        parser.error(str(error))
    if set(options.delays) - {0, 1} or len(options.outer) != 2 or min(*options.batches, *options.phases) < 1:
        parser.error("--delays: 0, 1 or both; --outer: two numbers; --batches, --phases: 1 or more")
    if options.churn and len(options.course.trainers) < len(KILLED) + 2:
        parser.error("--churn needs at least four trainers")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options, load_before = parse_arguments(), round(os.getloadavg()[0], 2)
    laps, failed = dict[str, tuple[Lap, list[Lap]]](), dict[str, str]()
    try:
        for name in options.engines:
            try:
                laps[name] = race(name, options)
            except BenchFailed as failure:
                failed[name] = str(failure)
                print(f"error: {name}: {failure}", file=sys.stderr, flush=True)
    except (LabFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not laps:
        return 1
    content = report(options, laps, failed, load_before)
    print(f"target loss {content['target_loss']}, {content['parameters']} parameters")
    for name, seconds in content["seconds_to_loss"].items():
        sent_mb = (content["bytes_to_loss"][name] or 0) / 1e6
        reached = "not reached" if seconds is None else f"{seconds:.1f} s, {sent_mb:.1f} MB"
        print(f"{name:16}{reached:28}{content['speedup'][name]}  best {content['best_loss'][name]}")
    if options.json:
        print(json.dumps(content))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
