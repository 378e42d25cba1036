#!/usr/bin/env python3
"""A race to the same loss: strategies of this project and hivemind's optimizers on the same home links.

    python scripts/bench_time_to_loss.py [--links 20/100@15,...] [--backbone 200@5] [--engines hivemind,diloco,...]
        [--seconds 120] [--rates 0.002] [--batch 192] [--phase 2400] [--churn] [--seed S] [--json]         # root

Every engine trains the same small GPT-2 on the standard library's own source for ``--seconds``, one engine after the
other: one process for each link, in a network namespace, with the user's loop around ``collab.join`` or
``hivemind.Optimizer``. Trainer 0 judges its model on held-out text right after steps of the swarm; the time that it
takes is not counted. ``hivemind`` sends float16 and is told the true bandwidths; ``hivemind-local`` takes local updates
and averages parameters. This project's backbone is at ``--backbone``; hivemind has a DHT peer there. Each engine runs
once at every rate of ``--rates``, and its best run stands: the same tuning budget for all.

    target_loss        the loss that the slowest engine reaches in its time
    seconds_to_loss    until trainer 0 first judged that or less; null: not reached
    bytes_to_loss      that all links had carried in the engine's whole run, by the share of the time until then
    speedup            seconds of the first engine over those of each

With ``--churn`` two trainers are killed at a third of the time and one comes at two thirds.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench_processes import BenchFailed, Child, Household, await_invite
from netlab import Lab
from netlab_links import Link
from netlab_namespaces import LabFailed
from race_setup import ENGINES, Engine, Work

HOMES = ",".join(["20/100@15"] * 6)
START_LIMIT_S = 240.0
END_LIMIT_S = 90.0
"""For a round that is under way when the time is over, and a judgement."""
KILLED = (1, 2)
"""With ``--churn``: trainers, by index."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One run of one engine."""

    engine: Engine
    curve: list[tuple[float, float]]
    """Seconds and held-out loss."""
    wire_bytes: int
    microbatches: int
    epochs: int
    num_elements: int

    @property
    def best_loss(self) -> float:
        return min((loss for _, loss in self.curve), default=float("inf"))

    def seconds_to(self, loss: float) -> float | None:
        """Until it was first judged no higher."""
        return next((seconds for seconds, judged in self.curve if judged <= loss), None)


class Race:
    """One swarm of one engine."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        self._engine, self._options = engine, options
        self._links = [Link.parse(options.backbone), *map(Link.parse, options.links.split(","))]
        if options.churn:
            self._links.append(self._links[1])

    def run(self) -> Lap:
        """Raises ``BenchFailed`` when a process did not come up or did not answer."""
        print(f"{self._engine}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
            lab: Lab = stack.enter_context(Lab(self._links))
            household = Household(Path(folder))
            stack.callback(household.close)
            contact = self._begin(household, lab)
            trainers = [self._start(household, lab, index, contact) for index in range(self._num_trainers)]
            told = [trainer.answer(START_LIMIT_S) for trainer in trainers]
            before = lab.wire_bytes()
            for trainer in trainers:
                trainer.say("go")
            began_s = time.monotonic()
            if self._options.churn:
                self._churn(household, lab, trainers, contact, began_s)
            curve, last = self._follow(trainers[0], began_s)
            return Lap(
                self._engine, curve, lab.wire_bytes() - before, last["microbatches"], last["epochs"],
                told[0]["num_elements"],
            )

    @property
    def _num_trainers(self) -> int:
        return len(self._links) - 1 - int(self._options.churn)

    def _work(self, lab: Lab, index: int, contact: str) -> Work:
        options = self._options
        return Work(
            engine=self._engine,
            index=index,
            host=lab.host(index + 1),
            up_mbit_per_s=self._links[index + 1].up_mbit_per_s,
            seconds=options.seconds,
            batch=options.microbatch,
            layers=options.layers,
            width=options.width,
            seed=options.seed,
            contact=contact,
        )

    def _begin(self, household: Household, lab: Lab) -> str:
        """The peer that others find the swarm by; how to."""
        work = self._work(lab, 0, "")
        work.task()  # the tokenizer and the tokens are made once, by nobody's time
        if self._engine.is_ours:
            invite, backbone = household.start_backbone(work.run_text, "--json", network=lab)
            await_invite(invite, backbone, START_LIMIT_S)
            return invite.read_text().strip()
        program = str(Path(__file__).with_name("race_meeting.py"))
        meeting = household.start(lab.command(0, [sys.executable, program, lab.host(0)]))
        return str(meeting.answer(START_LIMIT_S)["contact"])

    def _start(self, household: Household, lab: Lab, index: int, contact: str) -> Child:
        program = str(Path(__file__).with_name("race_peer.py"))
        command = [sys.executable, program, self._work(lab, index, contact).to_json()]
        return household.start(lab.command(index + 1, command))

    def _churn(self, household: Household, lab: Lab, trainers: list[Child], contact: str, began_s: float) -> None:
        """Two are killed, and one comes: at a third and two thirds of the time."""
        time.sleep(max(0.0, began_s + self._options.seconds / 3 - time.monotonic()))
        for index in KILLED:
            with suppress(ProcessLookupError):
                os.killpg(trainers[index].process.pid, signal.SIGKILL)
        time.sleep(max(0.0, began_s + self._options.seconds * 2 / 3 - time.monotonic()))
        late = self._start(household, lab, self._num_trainers, contact)
        late.answer(START_LIMIT_S)
        late.say("go")

    def _follow(self, judge: Child, began_s: float) -> tuple[list[tuple[float, float]], dict[str, Any]]:
        """What trainer 0 judges until its time is over."""
        curve = []
        while not (told := judge.answer(self._options.seconds + END_LIMIT_S)).get("is_over"):
            curve.append((round(told["seconds"], 2), round(told["loss"], 4)))
        return curve, told


def engines_of(options: argparse.Namespace) -> list[list[Engine]]:
    """The contestants, each at every rate."""
    phases = {"dts": "", "diloco": f", delay: {options.delay}", "hivemind-local": ""}
    return [
        [
            Engine(
                name=name,
                learning_rate=rate,
                target=options.phase if name in phases else options.batch,
                compression=options.dense if name == "diloco" else "auto",
                options=phases.get(name, ""),
            )
            for rate in options.rates
        ]
        for name in options.engines
    ]


def report(options: argparse.Namespace, laps: list[list[Lap]], load_before: float) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    best = {tried[0].engine.name: min(tried, key=lambda lap: lap.best_loss) for tried in laps}
    target = round(max(lap.best_loss for lap in best.values()), 4) if options.loss == "auto" else float(options.loss)
    seconds = {name: lap.seconds_to(target) for name, lap in best.items()}
    first = next(iter(seconds.values()))
    return {
        "benchmark": "time_to_loss",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {name: value for name, value in vars(options).items() if name != "json"},
        "versions": {n: version(n) for n in ("collab", "hivemind", "torch")} | {"python": platform.python_version()},
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
        "steps": {name: {"epochs": lap.epochs, "own_microbatches": lap.microbatches} for name, lap in best.items()},
        "rates": {name: lap.engine.learning_rate for name, lap in best.items()},
        "curves": {name: lap.curve for name, lap in best.items()},
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default=HOMES, help="of the trainers")
    parser.add_argument("--backbone", default="200@5", help="its link")
    parser.add_argument("--engines", default=",".join(ENGINES), help="the first is what the others are compared with")
    parser.add_argument("--seconds", type=float, default=120.0, help="that each engine trains for")
    parser.add_argument("--rates", default="0.002", help="learning rates to try for each engine")
    parser.add_argument("--batch", type=int, default=192, help="samples of a step of dedloc and hivemind")
    parser.add_argument("--phase", type=int, default=1200, help="samples between two exchanges of the others")
    parser.add_argument("--dense", default="int8", choices=("half", "int8", "int4"), help="compression of diloco")
    parser.add_argument("--delay", type=int, default=1, choices=(0, 1), help="of diloco")
    parser.add_argument("--loss", default="auto", help="to reach; auto: what the slowest reaches in its time")
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--churn", action="store_true", help="kill two trainers, and let one come")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    options.engines = options.engines.split(",")
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"--engines: {', '.join(sorted(unknown))}: there are {', '.join(ENGINES)}")
    try:
        options.rates = [float(text) for text in options.rates.split(",")]
        links = [Link.parse(text) for text in (options.backbone, *options.links.split(","))]
    except ValueError as error:
        parser.error(str(error))
    if options.churn and len(links) < len(KILLED) + 3:
        parser.error("--churn needs at least four trainers")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options, load_before = parse_arguments(), round(os.getloadavg()[0], 2)
    try:
        laps = [[Race(engine, options).run() for engine in tried] for tried in engines_of(options)]
    except (BenchFailed, LabFailed, ValueError, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    content = report(options, laps, load_before)
    print(f"target loss {content['target_loss']}, {content['parameters']} parameters")
    for name, seconds in content["seconds_to_loss"].items():
        sent_mb = (content["bytes_to_loss"][name] or 0) / 1e6
        reached = "not reached" if seconds is None else f"{seconds:.1f} s, {sent_mb:.1f} MB"
        print(f"{name:16}{reached:28}{content['speedup'][name]}  best {content['best_loss'][name]}")
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
