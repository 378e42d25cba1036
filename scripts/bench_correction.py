#!/usr/bin/env python3
"""What the correction of DTS is worth: accuracy with late gradients, with it and without.

    python scripts/bench_correction.py [--delays 5,10,15,20] [--seeds 5] [--steps 600] [--json]

Workers train an image model on scikit-learn's digits, each on samples of its own, without any network: what is late is
late by a number of steps. The last line is one JSON object with a row for each delay and rule.

    none         every step uses the mean of all workers' gradients at once
    without      w <- w - eta mean_j g_(n-t, j): each step uses the mean of t steps ago, and nothing until then
    with         the replicas of the strategy: a step of one's own at once; t steps make a window, whose mean over the
                 workers takes the window's place t steps later, when its first step is 2t - 1 steps old
    points       mean accuracy less that of ``none``, in hundredths
"""

import argparse
import json
import os
import statistics
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from collab.config import ImageClassificationTask, Optimizer, Schedule
from collab.strategies.base import HandedOver
from collab.tasks.image_classification import ImageClassification
from collab.training.anchored import AnchoredReplica
from collab.training.optimizers import build_optimizer
from collab.types import Lineage

PUBLISHED = {5: (88.7, 89.2), 10: (86.9, 89.3), 15: (85.5, 89.0), 20: (84.2, 88.7)}
"""ResNet-18 on CIFAR-10 by delay, without and with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One training."""

    seed: int
    steps: int
    workers: int
    batch: int
    hidden: int
    optimizer: Optimizer

    def task(self) -> ImageClassification:
        """With as many pictures held out as are needed to see a tenth of a point."""
        return ImageClassification(
            ImageClassificationTask(name="image_classification", hidden_sizes=(self.hidden,), eval_samples=500)
        )

    def model(self, task: ImageClassification) -> torch.nn.Module:
        """The same start for all rules."""
        torch.manual_seed(self.seed)
        return task.build_model()

    def batches(self, task: ImageClassification, worker: int) -> Iterator[tuple[int, ...]]:
        """Sample ids of one worker's steps."""
        rng = np.random.default_rng((self.seed, worker))
        while True:
            order = rng.permutation(task.num_samples)
            for start in range(0, len(order) - self.batch + 1, self.batch):
                yield tuple(int(one) for one in order[start : start + self.batch])


def without(course: Course, delay: int) -> float:
    """Accuracy of plain late gradients; 0: none is late."""
    task = course.task()
    model = course.model(task)
    optimizer = build_optimizer(course.optimizer, model)
    streams = [course.batches(task, worker) for worker in range(course.workers)]
    late = deque[list[torch.Tensor]]()
    for step in range(course.steps + delay):
        if step < course.steps:
            ids = tuple(one for stream in streams for one in next(stream))
            loss = task.loss(model, task.batch(ids).tensors)
            late.append([gradient.detach() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
        if step >= delay:
            for parameter, gradient in zip(model.parameters(), late.popleft(), strict=True):
                parameter.grad = gradient
            optimizer.step()
    return task.evaluate(model).accuracy


def corrected(course: Course, delay: int) -> float:
    """Accuracy of the strategy's replicas."""
    task = course.task()
    replicas = []
    for _ in range(course.workers):
        model = course.model(task)
        optimizer = build_optimizer(course.optimizer, model)
        replicas.append(AnchoredReplica(model, optimizer, Schedule(name="constant"), device=torch.device("cpu")))
    streams = [course.batches(task, worker) for worker in range(course.workers)]
    under_way: list[HandedOver] = []
    for step in range(1, course.steps + 1):
        for replica, stream in zip(replicas, streams, strict=True):
            replica.accumulate(task.batch(next(stream)), task.loss)
        if step % delay == 0:
            _arrive(replicas, under_way)
            under_way = [replica.hand_over() for replica in replicas]
    _arrive(replicas, under_way)
    if all(replica.samples for replica in replicas):
        _arrive(replicas, [replica.hand_over() for replica in replicas])
    ends = {replica.layout.parameters_vector().tobytes() for replica in replicas}
    if len(ends) != 1:
        raise RuntimeError("after a drain the workers hold different models")
    return task.evaluate(replicas[0].model).accuracy


def _arrive(replicas: list[AnchoredReplica], windows: list[HandedOver]) -> None:
    """The mean of the windows, at everybody."""
    if not windows:
        return
    update = np.stack([window.mean * window.samples for window in windows]).mean(0)
    for replica, window in zip(replicas, windows, strict=True):
        replica.step(update, Lineage(str(replica.epoch + 1)))
        replica.settle(window.everything)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rules and delays."""
    section = Optimizer(name="sgd", learning_rate=options.learning_rate, momentum=options.momentum)
    courses = [
        Course(
            seed=seed, steps=options.steps, workers=options.workers, batch=options.batch, hidden=options.hidden,
            optimizer=section,
        )
        for seed in range(options.seeds)
    ]  # fmt: skip
    baseline = [without(course, 0) for course in courses]
    rows = [_row("none", 0, baseline, baseline)]
    for delay in options.delays:
        for rule, train in (("without", without), ("with", corrected)):
            rows.append(_row(rule, delay, [train(course, delay) for course in courses], baseline))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _row(rule: str, delay: int, found: list[float], baseline: list[float]) -> dict[str, Any]:
    row = {
        "rule": rule,
        "delay": delay,
        "accuracy": [round(value, 4) for value in found],
        "mean": round(statistics.fmean(found), 4),
        "spread": round(statistics.stdev(found), 4) if len(found) > 1 else 0.0,
        "points": round(100 * (statistics.fmean(found) - statistics.fmean(baseline)), 2),
    }
    if delay in PUBLISHED:
        row["published"] = PUBLISHED[delay][rule == "with"]
    return row


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="5,10,15,20", help="in steps, by commas")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--steps", type=int, default=600, help="of each worker")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="samples of a worker's step")
    parser.add_argument("--hidden", type=int, default=32, help="units of the model's hidden layer")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    try:
        options.delays = [int(text) for text in options.delays.split(",")]
    except ValueError:
        parser.error(f"--delays {options.delays}: expected numbers of steps, by commas")
    if min(*options.delays, options.seeds, options.steps, options.workers, options.batch, options.hidden) < 1:
        parser.error("--delays, --seeds, --steps, --workers, --batch and --hidden must be at least 1")
    return options


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = measure(options)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        print(json.dumps({"benchmark": "correction", "date": date, "setup": vars(options), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
