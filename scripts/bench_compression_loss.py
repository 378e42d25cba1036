#!/usr/bin/env python3
"""What lossy encodings cost in training loss: one model, the same data, averaged under each policy.

    python scripts/bench_compression_loss.py [--epochs 60] [--links 10/50@15,...] [--microbatches 2] [--seed 0] [--json]

Trainers on simulated links learn a small GPT-2 on the Python standard library's own source, in virtual time and in
lockstep: every peer computes the same samples in every epoch whatever the policy, and all average through the real
round engine, with its planning, codecs and error feedback. So the policies differ in their encodings and in nothing
else. Links are written as in bench_averaging.py: Mbit/s up/down, @one-way delay in ms, ":client" for peers that cannot
be dialled. Everything runs on one core.

    final_loss       training loss, mean over the last 5 epochs
    held_out_loss    of the model at the end, on text that nobody trained on
    senders          rounds by the codec of each peer's parts, as the groups really formed had it
    sent_fractions   of all elements that were sent to reducers, by codec
    ratios           final_loss and held_out_loss over those of exact
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from averaging_setup import Part
from compression_loss_groups import Course
from compression_loss_swarm import MICROBATCH_SIZE, LossSwarm, RunFailed, Setup, trainers_on_links

from collab.averaging.contribution_plan import Policy
from peers.places import cache_dir

POLICIES: tuple[Policy, ...] = ("exact", "half", "auto", "sparse")
LINKS = "10/50@15,12/50@15,15/50@15,20/50@15,30/50@15,60/100@10"
"""Homes and one better line: slow and unequal enough that ``auto`` takes the coarsest codecs for most. All can send a
mebibyte in the second of the probe, so that all are measured."""
LAST_EPOCHS = 5
"""That the final loss is the mean of."""


def measure(setup: Setup) -> dict[Policy, tuple[Course, float]]:
    """Each policy's run, and the real seconds that it took.

    Raises:
        RunFailed: a round was lost, or the policies did not see the same data.
    """
    courses: dict[Policy, tuple[Course, float]] = {}
    for policy in POLICIES:
        print(f"training with {policy}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        courses[policy] = LossSwarm(setup, policy).run(), time.monotonic() - began_s
    if len({course.data_digest for course, _ in courses.values()}) != 1:
        raise RunFailed("the policies began with other parameters or saw other samples")
    return courses


def final_loss(course: Course) -> float:
    """Training loss at the end."""
    return statistics.fmean(course.losses[-LAST_EPOCHS:])


def figures(course: Course, setup: Setup, seconds: float) -> dict[str, Any]:
    """One policy's figures."""
    links = setup.swarm.links
    return {
        "first_loss": round(course.losses[0], 4),
        "final_loss": round(final_loss(course), 4),
        "held_out_loss": round(course.held_out_loss, 4),
        "senders": [{"link": str(link), "codecs": dict(course.codecs_of(i))} for i, link in enumerate(links)],
        "result_codecs": dict(course.result_codecs()),
        "sent_fractions": {codec: round(share, 4) for codec, share in course.sent_fractions().items()},
        "rounds": len(course.groups),
        "sent_mb": round(course.sent_bytes / 1e6, 1),
        "round_virtual_s": round(statistics.median(course.round_s), 4),
        "training_virtual_s": round(course.training_s, 2),
        "replicas_equal": course.replicas_equal,
        "real_s": round(seconds, 1),
        "losses": [round(loss, 4) for loss in course.losses],
    }


def report(setup: Setup, courses: dict[Policy, tuple[Course, float]], load_before: float) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    exact, _ = courses["exact"]
    ratios = {
        policy: {
            "final_loss": round(final_loss(course) / final_loss(exact), 5),
            "held_out_loss": round(course.held_out_loss / exact.held_out_loss, 5),
        }
        for policy, (course, _) in courses.items()
        if policy != "exact"
    }
    return {
        "benchmark": "compression_loss",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": setup.seed,
        "setup": {
            "links": [str(link) for link in setup.swarm.links],
            "clients": [index for index, part in enumerate(setup.swarm.parts) if part is Part.CLIENT],
            "epochs": setup.epochs,
            "samples_per_peer": setup.microbatches * MICROBATCH_SIZE,
            "samples_per_epoch": setup.batch_samples,
            "parameters": exact.num_elements,
            "data_digest": exact.data_digest,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        },
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load_before": round(load_before, 2)},
        "policies": {policy: figures(course, setup, seconds) for policy, (course, seconds) in courses.items()},
        "ratios": ratios,
    }


def show(content: dict[str, Any]) -> None:
    """The same as a table."""
    columns = "".join(f"{name:>12}" for name in ("final", "over exact", "held-out", "over exact", "MB sent"))
    print(f"{'policy':8}{columns}   elements sent, results")
    for policy, found in content["policies"].items():
        ratios = content["ratios"].get(policy, {"final_loss": 1.0, "held_out_loss": 1.0})
        sent = ", ".join(f"{codec} {share:.0%}" for codec, share in found["sent_fractions"].items())
        results = ", ".join(found["result_codecs"])
        values = (found["final_loss"], ratios["final_loss"], found["held_out_loss"], ratios["held_out_loss"])
        cells = "".join(f"{value:>12.4f}" for value in values)
        print(f"{policy:8}{cells}{found['sent_mb']:>12.1f}   {sent}; {results}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60, help="global steps of each run")
    parser.add_argument(
        "--links", default=LINKS, help="one for each peer, by commas, or a preset of bench_averaging.py"
    )
    parser.add_argument(
        "--microbatches", type=int, default=2, help=f"of each peer in an epoch, {MICROBATCH_SIZE} samples"
    )
    parser.add_argument("--seed", type=int, default=0, help="of parameters, samples and the simulated world")
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    if min(options.epochs, options.microbatches) < 1 or options.seed < 0:
        parser.error("--epochs and --microbatches must be at least 1, --seed at least 0")
    try:
        options.swarm = trainers_on_links(options.links)
    except (ValueError, KeyError) as error:
        parser.error(f"--links {options.links}: {error}")
    return options


def main() -> int:
    """Train, compare and print; the exit code."""
    options = parse_arguments()
    load_before = os.getloadavg()[0]
    setup = Setup(
        swarm=options.swarm,
        epochs=options.epochs,
        microbatches=options.microbatches,
        seed=options.seed,
        cache_dir=cache_dir(),
    )
    try:
        content = report(setup, measure(setup), load_before)
    except RunFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    show(content)
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
