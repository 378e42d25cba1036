#!/usr/bin/env python3
"""What a training sends until it has seen so many tokens, and the loss that it has then: strategies on the same data.

    python scripts/bench_bytes.py [--variants dedloc:half,diloco:int8,diloco:int4] [--microbatches 400] [--inner 50]
        [--rates 0.002,0.004] [--outer 0.9/0.6,0.7/0.9] [--links 20/100@15,...] [--seed 0] [--json]

Trainers on simulated links learn a small GPT-2 on the Python standard library's own source, in virtual time and in
lockstep, through the real strategies, replicas, round engine and codecs. ``dedloc`` averages after every microbatch;
``diloco`` after ``--inner`` of them, with outer steps of RATE/MOMENTUM. Every variant computes the same microbatches of
the same samples in the same order, so tokens are equal. Each is trained once at every rate of ``--rates``, ``diloco``
with each outer step of ``--outer``, and the run with the least held-out loss stands: with one outer step the budget for
tuning is the same for all. A variant is STRATEGY:COMPRESSION of a run file.

    sent_mb          of all peers, everything that left them over their links
    held_out_loss    of the model at the end, on text that nobody trained on
    fewer_bytes      sent by the first variant over sent by this one
    loss_ratio       held-out loss over that of the first variant
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

from compression_loss_groups import Course
from compression_loss_swarm import MICROBATCH_SIZE, LossSwarm, RunFailed, Setup, trainers_on_links

from collab import config
from collab.averaging.contribution_plan import Policy
from peers.places import cache_dir

LINKS = ",".join(["20/100@15"] * 4)
STRATEGIES = ("dedloc", "diloco")
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train."""

    strategy: str
    compression: Policy

    def __str__(self) -> str:
        return f"{self.strategy}:{self.compression}"

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Raises ``ValueError`` for what is none."""
        strategy, _, compression = text.partition(":")
        policy = next((policy for policy in POLICIES if policy == compression), None)
        if strategy not in STRATEGIES or policy is None:
            raise ValueError(f"{text!r} is no variant: {'|'.join(STRATEGIES)}:{'|'.join(POLICIES)}")
        return cls(strategy, policy)


@dataclass(frozen=True, slots=True)
class Trial:
    """One training."""

    rate: float
    outer: str
    """Its outer step, RATE/MOMENTUM; empty: it has none."""
    course: Course
    real_s: float

    @property
    def settings(self) -> str:
        """What it was tried with."""
        return f"{self.rate} {self.outer}".strip()


def train(variant: Variant, rate: float, outer: str, options: argparse.Namespace) -> Trial:
    """Raises ``RunFailed`` when a round was lost."""
    inner, strategy = 1, f"name: {variant.strategy}"
    if outer:
        outer_rate, momentum = outer.split("/")
        inner = options.inner
        strategy += f", outer_learning_rate: {outer_rate}, outer_momentum: {momentum}"
    setup = Setup(
        swarm=trainers_on_links(options.links),
        epochs=options.microbatches // inner,
        microbatches=inner,
        seed=options.seed,
        cache_dir=cache_dir(),
        strategy=strategy,
        learning_rate=rate,
    )
    print(f"training {variant} at {rate} {outer}", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    course = LossSwarm(setup, variant.compression).run()
    return Trial(rate, outer, course, time.monotonic() - began_s)


def report(options: argparse.Namespace, trials: dict[Variant, list[Trial]]) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    best = {variant: min(tried, key=lambda trial: trial.course.held_out_loss) for variant, tried in trials.items()}
    first = next(iter(best.values())).course
    peers = len(first.peers)
    return {
        "benchmark": "bytes",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {
            "links": options.links,
            "parameters": first.num_elements,
            "microbatches": options.microbatches,
            "inner": options.inner,
            "samples": options.microbatches * MICROBATCH_SIZE * peers,
            "rates": options.rates,
            "outer": options.outer,
        },
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "variants": {
            str(variant): {
                "learning_rate": trial.rate,
                "outer": trial.outer,
                "rounds": len(trial.course.groups),
                "sent_mb": round(trial.course.sent_bytes / 1e6, 3),
                "fewer_bytes": round(first.sent_bytes / trial.course.sent_bytes, 1),
                "held_out_loss": round(trial.course.held_out_loss, 4),
                "loss_ratio": round(trial.course.held_out_loss / first.held_out_loss, 4),
                "training_virtual_s": round(trial.course.training_s, 1),
                "replicas_equal": trial.course.replicas_equal,
                "tried": {each.settings: round(each.course.held_out_loss, 4) for each in trials[variant]},
                "real_s": round(sum(each.real_s for each in trials[variant]), 1),
            }
            for variant, trial in best.items()
        },
    }


def show(content: dict[str, Any]) -> None:
    """The same as a table."""
    print(f"{'variant':16}{'MB sent':>10}{'fewer':>8}{'held-out':>10}{'ratio':>8}{'rate':>8}  outer")
    for name, found in content["variants"].items():
        print(
            f"{name:16}{found['sent_mb']:>10.2f}{found['fewer_bytes']:>8.1f}{found['held_out_loss']:>10.4f}"
            f"{found['loss_ratio']:>8.3f}{found['learning_rate']:>8}  {found['outer']}"
        )


def outer_step(text: str) -> str:
    """RATE/MOMENTUM, checked; raises ``ValueError`` for what is none."""
    rate, _, momentum = text.partition("/")
    config.Diloco(name="diloco", outer_learning_rate=float(rate), outer_momentum=float(momentum))
    return text


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What strategies send for the same tokens, and the loss they reach.")
    parser.add_argument("--variants", default="dedloc:half,diloco:int8,diloco:int4", help="the first is the baseline")
    parser.add_argument("--microbatches", type=int, default=400, help="of each trainer; a multiple of --inner")
    parser.add_argument("--inner", type=int, default=50, help="steps between two outer steps")
    parser.add_argument("--rates", default="0.002", help="learning rates to try for each variant")
    parser.add_argument("--outer", default="0.9/0.6", help="outer steps to try for diloco, RATE/MOMENTUM each")
    parser.add_argument("--links", default=LINKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        options.variants = [Variant.parse(text) for text in options.variants.split(",")]
        options.rates = [float(text) for text in options.rates.split(",")]
        options.outer = [outer_step(text) for text in options.outer.split(",")]
        trainers_on_links(options.links)
    except ValueError as error:
        parser.error(str(error))
    if options.inner < 1 or options.microbatches < options.inner or options.microbatches % options.inner:
        parser.error("--microbatches must be a multiple of --inner, so that all variants see the same samples")
    return options


def main() -> int:
    options = parsed()
    try:
        trials = {
            variant: [
                train(variant, rate, outer, options)
                for rate in options.rates
                for outer in (options.outer if variant.strategy == "diloco" else [""])
            ]
            for variant in options.variants
        }
    except RunFailed as error:
        print(f"bench_bytes: {error}", file=sys.stderr)
        return 1
    content = report(options, trials)
    print(json.dumps(content)) if options.json else show(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
