#!/usr/bin/env python3
"""What engines of bench_time_to_loss.py could come to if no exchange took any time: the limit that computing sets.

    python scripts/bench_race_limit.py [--losses 6.1,6.0184,5.5] [--rates 0.002,0.004] [--batches 24,48,96]
        [--phases 48,96,150,300,600] [--outer 1.0/0.0,0.9/0.6] [--trainers 6] [--microbatch 4] [--pace-ms 250]
        [--seconds 40] [--seed S] [--json]

The race's model, text, trainers, microbatches and optimiser, in one process without a network, in two ways:

    batch   a step of AdamW for all with the mean gradient of so many samples, clipped: dedloc and hivemind
    phase   each trainer takes steps of its own; after so many samples of all, an outer step by the mean of what they
            have moved, at outer rate and momentum: diloco, torchft's DiLoCo, and with 1.0/0.0 plain averaging, as dts

Every trainer computes a microbatch each ``--pace-ms``, all the time: what it then takes to a loss is how many
microbatches that takes, times the pace. The model of all is judged after each step or phase.

    seconds_to_loss    for each way and setting, in the order of ``--losses``; null: not in ``--seconds``
    best               the least of them for each loss, and by which setting
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from race_setup import Engine, Work

if TYPE_CHECKING:
    import torch

    from collab.tasks.base import Task

CLIP = 1.0
"""Norm of a gradient, as in the race's run file."""
Curve = list[tuple[float, float]]
"""Seconds, and held-out loss."""


class Trainers:
    """The race's trainers in one process."""

    def __init__(self, options: argparse.Namespace) -> None:
        from collab.data.sampling import SampleSampler

        self.options = options
        self.task: Task = Work(
            engine=Engine(name="dedloc", learning_rate=1e-3, target=96),
            index=-1,
            trainers=options.trainers,
            host="",
            up_mbit_per_s=0.0,
            seconds=options.seconds,
            pace_ms=options.pace_ms,
            batch=options.microbatch,
            layers=options.layers,
            width=options.width,
            seed=options.seed,
        ).task()
        self.samplers = [
            SampleSampler(self.task.num_samples, seed=options.seed, peer_id=f"trainer-{index}")
            for index in range(options.trainers)
        ]

    def model(self) -> "torch.nn.Module":
        """The first one, the same for all."""
        import torch

        torch.manual_seed(self.options.seed)
        model = self.task.build_model()
        model.train()
        return model

    def backward(self, model: "torch.nn.Module", index: int) -> None:
        """A microbatch of one trainer, added to the gradients that stand in ``model``."""
        samples = self.samplers[index].next(self.options.microbatch)
        self.task.loss(model, self.task.batch(samples).tensors).backward()  # type: ignore[no-untyped-call]

    def microbatches(self, samples: int) -> int:
        """Of each trainer, for so many samples of all."""
        return max(1, round(samples / len(self.samplers) / int(self.options.microbatch)))

    def judged(self, model: "torch.nn.Module") -> float:
        """Its held-out loss."""
        loss = self.task.evaluate(model).loss
        model.train()
        return float(loss)


def adamw(model: "torch.nn.Module", rate: float) -> "torch.optim.Optimizer":
    """The race's."""
    import torch

    return torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.01)


def in_batches(trainers: Trainers, rate: float, samples: int) -> Iterator[tuple[int, float]]:
    """After each step: microbatches of each trainer so far, and the loss."""
    import torch

    model, each = trainers.model(), trainers.microbatches(samples)
    optimizer, number, taken = adamw(model, rate), len(trainers.samplers), 0
    while True:
        for _ in range(each):
            for index in range(number):
                trainers.backward(model, index)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= each * number
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        taken += each
        yield taken, trainers.judged(model)


def in_phases(
    trainers: Trainers, rate: float, samples: int, outer: tuple[float, float]
) -> Iterator[tuple[int, float]]:
    """As ``in_batches``, after each phase."""
    import torch

    anchor, each, taken = trainers.model(), trainers.microbatches(samples), 0
    models = [deepcopy(anchor) for _ in trainers.samplers]
    optimizers = [adamw(model, rate) for model in models]
    velocities = [torch.zeros_like(parameter) for parameter in anchor.parameters()]
    while True:
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for _ in range(each):
                trainers.backward(model, index)
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            held = zip(anchor.parameters(), velocities, *(model.parameters() for model in models), strict=True)
            for start, velocity, *ends in held:
                moved = torch.stack(ends).mean(dim=0) - start
                velocity.mul_(outer[1]).add_(moved)
                start.add_(moved + outer[1] * velocity, alpha=outer[0])
                for end in ends:
                    end.copy_(start)
        taken += each
        yield taken, trainers.judged(anchor)


def curve_of(steps: Iterator[tuple[int, float]], options: argparse.Namespace) -> Curve:
    """Until the time is over, or everything asked for is reached."""
    curve = Curve()
    for microbatches, loss in steps:
        seconds = microbatches * options.pace_ms / 1e3
        if seconds > options.seconds:
            return curve
        curve.append((round(seconds, 3), round(loss, 4)))
        if loss <= min(options.losses):
            return curve
    return curve


def seconds_to(curve: Curve, loss: float) -> float | None:
    """Until the first judgement that is no higher."""
    return next((seconds for seconds, judged in curve if judged <= loss), None)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Of the command line; ends the program with a message where they make no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default="6.1,6.0184,5.5", help="to reach")
    parser.add_argument("--rates", default="0.002,0.004", help="learning rates to try")
    parser.add_argument("--batches", default="24,48,96", help="samples of a step of all")
    parser.add_argument("--phases", default="48,96,150,300,600", help="samples of all between two outer steps")
    parser.add_argument("--outer", default="1.0/0.0,0.9/0.6", help="outer rate and momentum, to try")
    parser.add_argument("--trainers", type=int, default=6)
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--pace-ms", type=float, default=250.0, help="what a microbatch takes")
    parser.add_argument("--seconds", type=float, default=40.0, help="that each setting is given, of the race's time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args(arguments)
    try:
        options.losses = [float(text) for text in options.losses.split(",")]
        options.rates = [float(text) for text in options.rates.split(",")]
        options.batches = [int(text) for text in options.batches.split(",") if text]
        options.phases = [int(text) for text in options.phases.split(",") if text]
        options.outer = [tuple(float(text) for text in pair.split("/")) for pair in options.outer.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if any(len(pair) != 2 for pair in options.outer) or min(options.trainers, options.microbatch) < 1:
        parser.error("--outer: pairs such as 0.9/0.6; --trainers, --microbatch: 1 or more")
    return options


def main() -> int:
    """Calculate and print; the exit code."""
    import torch

    options = parse_arguments()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    tries: list[tuple[str, dict[str, Any]]] = [
        *(("batch", {"samples": samples, "rate": rate}) for samples in options.batches for rate in options.rates),
        *(
            ("phase", {"samples": samples, "rate": rate, "outer": outer})
            for samples in options.phases
            for rate in options.rates
            for outer in options.outer
        ),
    ]
    for way, setting in tries:
        trainers = Trainers(options)
        steps = (in_batches if way == "batch" else in_phases)(trainers, **setting)
        curve = curve_of(steps, options)
        rows.append({"way": way, **setting, "seconds_to_loss": [seconds_to(curve, loss) for loss in options.losses]})
        print(f"{way:8}{setting}  {rows[-1]['seconds_to_loss']}", file=sys.stderr, flush=True)
    best = []
    for place, loss in enumerate(options.losses):
        there = [row for row in rows if row["seconds_to_loss"][place] is not None]
        first = min(there, key=lambda row: row["seconds_to_loss"][place], default=None)
        best.append({"loss": loss, "seconds": first and first["seconds_to_loss"][place], "by": first})
        print(f"loss {loss}: {best[-1]['seconds']} s at least")
    if options.json:
        content = {
            "benchmark": "race_limit",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": options.seed,
            "setup": {name: value for name, value in vars(options).items() if name != "json"},
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "seconds_to_loss": rows,
            "best": best,
        }
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
