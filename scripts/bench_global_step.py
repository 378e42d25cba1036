#!/usr/bin/env python3
"""Fixed cost of a global step on loopback, beside hivemind.Optimizer's, measured in one run.

    python scripts/bench_global_step.py [--engines collab,hivemind] [--repeats 2] [--json]

Real peer processes on 127.0.0.1 train a model of 650 parameters. "Computing" a microbatch of one sample is a sleep, so
that the cores stay free for what is measured, and a tiny backward. The target batch is peers x microbatches, so that an
ideal global step takes microbatches x step-ms. Two costs are reported, of every step from the third on:

    overhead        = duration - microbatches x step-ms     all that is not ideal: talking, waiting, overshooting
    beyond_compute  = duration - what this very peer spent computing in that step     a microbatch more than planned
                      is work, since its sample is in the mean; what is left is talking and waiting

The engines take turns, so that whatever else the machine does, it does to both. See docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed, Child, Household, await_invite
from global_step_peer import Assignment, Engine, Setup, Step

WARM_UP_STEPS = 2
"""Both engines first learn how fast the swarm is; the figures begin with the step after these."""
START_LIMIT_S = 90.0
"""Imports and joining, on a machine that is busy with other things."""
RUN_FILE = """\
run_id: bench-global-step
seed: {seed}
task: {{name: image_classification, hidden_sizes: []}}
optimizer: {{name: sgd, learning_rate: 0.01}}
strategy: {{name: dedloc, target_batch_size: {target}, max_gradient_norm: null}}
averaging: {{compression: exact}}
checkpoints: {{every_epochs: 1000000}}
"""
"""Nothing but steps: no checkpoint falls into a measurement, and vectors travel as float32 in both engines."""


# -- one run of one engine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the peers of one run of one engine brought home."""

    peers: tuple[tuple[Step, ...], ...]
    epochs: tuple[int, ...]
    parameters: tuple[tuple[float, ...], ...]
    cpu_s: float
    """From the start of training to its end, of all processes."""


def measure(engine: Engine, setup: Setup) -> Result:
    """Let ``engine`` train once.

    Raises:
        BenchFailed: a process did not come up or did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        household = Household(Path(folder))
        stack.callback(household.close)
        contact = open_collab(household, setup) if engine.name == "collab" else ""
        peers: list[Child] = []
        for index in range(setup.peers):
            work = Assignment(engine=engine, setup=setup, index=index, contact=contact)
            program = Path(__file__).with_name("global_step_peer.py")
            peers.append(household.start([str(program), json.dumps(asdict(work))]))
            if not contact:
                contact = str(peers[0].answer(START_LIMIT_S)["contact"])
        for peer in peers if engine.name == "collab" else peers[1:]:
            peer.answer(START_LIMIT_S)
        began_cpu_s = household.cpu_s()
        for peer in peers:
            peer.say("go")
        answers = [peer.answer(setup.limit_s + 60.0) for peer in peers]
        return Result(
            peers=tuple(tuple(Step(**step) for step in answer["steps"]) for answer in answers),
            epochs=tuple(answer["epoch"] for answer in answers),
            parameters=tuple(tuple(answer["parameters"]) for answer in answers),
            cpu_s=household.cpu_s() - began_cpu_s,
        )


def open_collab(household: Household, setup: Setup) -> str:
    """Start a backbone; its invite."""
    text = RUN_FILE.format(seed=setup.seed, target=setup.target_batch)
    invite, backbone = household.start_backbone(text)
    await_invite(invite, backbone, START_LIMIT_S)
    return invite.read_text().strip()


# -- figures ---------------------------------------------------------------------------------------------------------


def spread(values: list[float]) -> dict[str, float]:
    """Median, 90th percentile by nearest rank, and worst, in seconds."""
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return {"median": round(statistics.median(ordered), 4), "p90": round(p90, 4), "worst": round(ordered[-1], 4)}


def figures(results: list[Result], setup: Setup) -> dict[str, Any]:
    """All steps of all peers and runs of one engine together.

    Raises:
        BenchFailed: no step was measured.
    """
    steps = [step for result in results for peer in result.peers for step in peer if step.epoch > WARM_UP_STEPS]
    if not steps:
        raise BenchFailed(f"no step after the first {WARM_UP_STEPS} within {setup.limit_s:.0f} s")
    overhead = [[s.duration_s - setup.ideal_s for p in r.peers for s in p if s.epoch > WARM_UP_STEPS] for r in results]
    measured = [epoch for result in results for epoch in range(WARM_UP_STEPS + 1, max(result.epochs) + 1)]
    names = dict.fromkeys(name for step in steps for name in step.phases_s)
    return {
        "overhead_s": spread([value for run in overhead for value in run]),
        "overhead_median_by_run_s": [round(statistics.median(run), 4) for run in overhead if run],
        "beyond_compute_s": spread([step.duration_s - step.compute_s for step in steps]),
        "duration_median_s": round(statistics.median(step.duration_s for step in steps), 4),
        "microbatches_mean": round(statistics.mean(step.microbatches for step in steps), 2),
        "steps": len(measured),
        "steps_with_all_contributing": sum(count_whole(result, setup.peers) for result in results),
        "epochs": [list(result.epochs) for result in results],
        "parameter_difference": max(difference(result) for result in results),
        "cpu_s_per_step": round(sum(r.cpu_s for r in results) / sum(max(r.epochs) for r in results), 3),
        "phases_median_s": {
            name: round(statistics.median(s.phases_s[name] for s in steps if name in s.phases_s), 4) for name in names
        },
    }


def count_whole(result: Result, num_peers: int) -> int:
    """Measured steps that every peer took from a round of everybody."""
    whole = [{step.epoch for step in peer if step.contributors == num_peers} for peer in result.peers]
    return len([epoch for epoch in set.intersection(*whole) if epoch > WARM_UP_STEPS])


def difference(result: Result) -> float:
    """Largest difference of a parameter between two peers at the end."""
    worst = 0.0
    for values in zip(*result.parameters, strict=True):
        worst = max(worst, max(values) - min(values))
    return worst


def report(runs: dict[Engine, list[Result]], setup: Setup, load: tuple[float, float]) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    by_engine = {engine.label: figures(results, setup) for engine, results in runs.items()}
    ours = by_engine.get("collab")
    ratios = {
        label: round(ours["overhead_s"]["median"] / other["overhead_s"]["median"], 3)
        for label, other in by_engine.items()
        if ours is not None and label != "collab"
    }
    return {
        "benchmark": "global_step",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": setup.seed,
        "setup": {**asdict(setup), "ideal_s": setup.ideal_s, "parameters": 650, "runs": len(next(iter(runs.values())))},
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("collab", "hivemind", "torch")}},
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.system(),
            "load_before": load[0],
            "load_after": load[1],
        },
        "figures": by_engine,
        "ratio_of_median_overheads": ratios,
    }


def show(content: dict[str, Any]) -> None:
    """The same as a table."""
    print(f"{'engine':16} {'median':>8} {'p90':>8} {'worst':>8} {'beyond':>8}   all contributed   cpu s/step")
    for label, found in content["figures"].items():
        cost, beyond = found["overhead_s"], found["beyond_compute_s"]["median"]
        whole = f"{found['steps_with_all_contributing']}/{found['steps']}"
        print(
            f"{label:16} {cost['median']:8.3f} {cost['p90']:8.3f} {cost['worst']:8.3f} {beyond:8.3f}"
            f"   {whole:>15}   {found['cpu_s_per_step']:10.3f}"
        )


# -- command line ----------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="collab,hivemind", help="separated by commas")
    parser.add_argument("--matchmaking", default="1.0", help="hivemind's matchmaking times in seconds, by commas")
    parser.add_argument("--repeats", type=int, default=1, help="how often the engines take turns")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4, help="per peer and global step")
    parser.add_argument("--step-ms", type=float, default=50.0, help="one microbatch")
    parser.add_argument("--steps", type=int, default=50, help="global steps of one run")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of training in one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    unknown = set(options.engines.split(",")) - {"collab", "hivemind"}
    if unknown:
        parser.error(f"unknown engine {', '.join(sorted(unknown))}: choose from collab, hivemind")
    if options.steps <= WARM_UP_STEPS or min(options.peers, options.microbatches, options.repeats) < 1:
        parser.error(f"--steps must be over {WARM_UP_STEPS}; --peers, --microbatches and --repeats at least 1")
    return options


def _interrupt(*_: object) -> None:
    """Ctrl+C and SIGTERM end the measurement; nothing interrupts the cleaning up, which takes seconds."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    setup = Setup(
        peers=options.peers,
        microbatches=options.microbatches,
        step_ms=options.step_ms,
        steps=options.steps,
        seed=options.seed,
        limit_s=options.limit_s,
    )
    engines: list[Engine] = []
    for name in options.engines.split(","):
        times = options.matchmaking.split(",") if name == "hivemind" else ["0"]
        engines += [Engine(name=name, matchmaking_s=float(seconds)) for seconds in times]
    runs: dict[Engine, list[Result]] = {engine: [] for engine in engines}
    load_before = os.getloadavg()[0]
    try:
        for repeat in range(options.repeats):
            for engine in engines:
                print(f"run {repeat + 1} of {options.repeats}: {engine.label}", file=sys.stderr, flush=True)
                runs[engine].append(measure(engine, setup))
        content = report(runs, setup, (round(load_before, 2), round(os.getloadavg()[0], 2)))
    except BenchFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    show(content)
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
