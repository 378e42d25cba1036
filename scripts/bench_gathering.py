#!/usr/bin/env python3
"""Sparse displacements that a butterfly sums and makes sparse again, or that everybody fetches and sums: the loss.

    python scripts/bench_gathering.py [--ways butterfly:440,gathered:182,gathered:763] [--trainers 4] [--rounds 8]
        [--inner 50] [--rate 0.004] [--outer 2.8/0.1] [--kept-of-owed 0.6] [--seed 0] [--json]

Trainers learn the small GPT-2 of ``bench_bytes.py`` with ``diloco`` in one process, without links (they draw other
samples of the same text than there): what differs is how the mean of a round comes about. A way is NAME:KEPT, so many
elements of 4,096 neighbours, as ``topk_sign`` sends them.

    butterfly    each trainer reduces a span; the mean is sent with KEPT elements of 4,096, and what that leaves out its
                 reducer owes. As in the round engine, what a trainer has in its own span counts as it is.
    gathered     each contribution is uploaded once, and fetched by all others, who sum what they decode
    dense        nothing is left out: what both come near to

``sent_mb`` is what all send in all rounds: 2 (n - 1) encodings a round, or n (n - 1) where everybody fetches from who
computed it. ``relayed_mb`` is the same where a backbone takes each contribution and hands it on: n n. ``uplink_mb`` is
what one trainer uploads then: one encoding, or 2 (n - 1) / n in a butterfly.
"""

import argparse
import json
import math
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from bench_bytes import outer_step
from compression_loss_swarm import MICROBATCH_SIZE, Setup, trainers_on_links

from collab.averaging.encodings import Encodings
from collab.compression import error_feedback
from collab.compression.base import Buffer, Codec
from collab.compression.bfloat16 import BFloat16
from collab.compression.none import NoCompression
from collab.compression.topk import BLOCK_ELEMENTS
from collab.compression.topk_sign import LEVEL_EIGHTH, TopKSign
from collab.data.sampling import SampleSampler
from collab.tasks.registry import build_task
from collab.training.genesis import build_replica, make_genesis
from collab.training.replica import Replica
from collab.types import Lineage, Vector
from peers.places import cache_dir

NAMES = ("butterfly", "gathered", "dense")


@dataclass(frozen=True, slots=True)
class Signs:
    """``TopKSign`` with any number of elements a block; its bytes here are those of what they decode to."""

    kept: int
    name = TopKSign.name
    is_exact = False

    @property
    def block_bits(self) -> int:
        """That a block takes on the wire: a level, a sign each, and indices as Elias and Fano write them."""
        low_bits = int(math.log2(BLOCK_ELEMENTS / self.kept))
        return 16 + self.kept + low_bits * self.kept + (BLOCK_ELEMENTS >> low_bits) + self.kept

    def encoded_bytes(self, num_elements: int) -> int:
        """On the wire."""
        return math.ceil(self.block_bits / 8) * math.ceil(num_elements / BLOCK_ELEMENTS)

    def encode(self, values: Vector) -> Buffer:
        halves = BFloat16().decode(BFloat16().encode(values), len(values))
        decoded = np.zeros_like(values)
        for start in range(0, len(values), BLOCK_ELEMENTS):
            block = halves[start : start + BLOCK_ELEMENTS]
            order = np.argsort(-np.abs(block), kind="stable")[: self.kept]
            order = order[block[order] != 0]
            level = np.abs(block[order[len(order) * LEVEL_EIGHTH // 8]]) if len(order) else np.float32(0)
            decoded[start + order] = np.copysign(level, block[order])
        return decoded.tobytes()

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        return np.frombuffer(data, np.float32, num_elements)


@dataclass(frozen=True, slots=True)
class Way:
    """How a mean comes about."""

    name: str
    codec: Signs

    def __str__(self) -> str:
        return self.name if self.name == "dense" else f"{self.name}:{self.codec.kept}"

    @classmethod
    def parse(cls, text: str) -> "Way":
        """Raises ``ValueError`` for what is none."""
        name, _, kept = text.partition(":")
        if name not in NAMES or (name == "dense") == bool(kept) or not 1 <= int(kept or 1) <= BLOCK_ELEMENTS:
            raise ValueError(f"{text!r} is no way: butterfly:KEPT, gathered:KEPT (1 to {BLOCK_ELEMENTS}) or dense")
        return cls(name, Signs(int(kept or BLOCK_ELEMENTS)))

    def vector_bytes(self, num_elements: int, trainers: int) -> int:
        """Of a whole vector, as it is cut into encodings."""
        if self.name == "dense":
            return 4 * num_elements
        if self.name == "gathered":
            return self.codec.encoded_bytes(num_elements)
        return sum(self.codec.encoded_bytes(stop - start) for start, stop in spans_of(num_elements, trainers))

    def vectors(self, trainers: int) -> dict[str, float]:
        """So many whole vectors a round, by figure."""
        if self.name == "gathered":
            return {"sent_mb": trainers * (trainers - 1), "relayed_mb": trainers * trainers, "uplink_mb": 1}
        sent = 2 * (trainers - 1)
        return {"sent_mb": sent, "relayed_mb": sent, "uplink_mb": sent / trainers}


def spans_of(num_elements: int, trainers: int) -> list[tuple[int, int]]:
    """Who reduces what: a span for each."""
    edges = [num_elements * index // trainers for index in range(trainers + 1)]
    return list(pairwise(edges))


class Mean:
    """Averages the trainers' vectors, with what each owes and what the mean owes."""

    def __init__(self, way: Way, trainers: int) -> None:
        self._way = way
        self._sent, self._reduced = [Encodings() for _ in range(trainers)], Encodings()

    def of(self, vectors: list[Vector], weight: float) -> Vector:
        """All have the same weight."""
        if self._way.name == "dense":
            mean: Vector = np.mean(vectors, axis=0, dtype=np.float32)
            return mean
        length, trainers = len(vectors[0]), len(vectors)
        spans = [(0, length)] if self._way.name == "gathered" else spans_of(length, trainers)
        arrived = [self._arrived(index, vector, weight, spans) for index, vector in enumerate(vectors)]
        mean = np.mean(arrived, axis=0, dtype=np.float32)
        if self._way.name == "gathered":
            return mean
        codec = self._way.codec
        self._reduced.begin(length, mean)
        told = [codec.decode(self._reduced.result(codec, a, mean[a:b]), b - a) for a, b in spans]
        self._reduced.commit()
        return np.concatenate(told)

    def _arrived(self, index: int, vector: Vector, weight: float, spans: list[tuple[int, int]]) -> Vector:
        """``vector`` of one trainer, as it counts."""
        encodings, arrived = self._sent[index], []
        encodings.begin(len(vector), vector)
        for place, (start, stop) in enumerate(spans):
            codec: Codec = NoCompression() if len(spans) > 1 and place == index else self._way.codec
            data = encodings.part(codec, start, vector[start:stop], weight)
            arrived.append(codec.decode(data, stop - start).copy())
        encodings.commit()
        return np.concatenate(arrived)


def train(setup: Setup, way: Way) -> tuple[float, int]:
    """The held-out loss at the end, and how long the vector is."""
    bundle, trainers = setup.bundle("exact"), len(setup.swarm.parts)
    task = build_task(bundle.run, assets=bundle.assets, cache_dir=setup.cache_dir, peer_id="")
    genesis = make_genesis(bundle, task)
    replicas = [build_replica(bundle, task, torch.device("cpu")) for _ in range(trainers)]
    samplers = [SampleSampler(task.num_samples, seed=setup.seed, peer_id=f"trainer-{i}") for i in range(trainers)]
    for replica in replicas:
        replica.load(genesis)
    mean = Mean(way, trainers)
    for index in range(setup.epochs):
        for replica, sampler in zip(replicas, samplers, strict=True):
            for _ in range(setup.microbatches):
                replica.accumulate(task.batch(sampler.next(MICROBATCH_SIZE)), task.loss)
        _step(replicas, mean, f"round {index}")
    return task.evaluate(replicas[0].model).loss, replicas[0].layout.num_elements


def _step(replicas: list[Replica], mean: Mean, name: str) -> None:
    """One outer step of all."""
    ours = [replica.hand_over() for replica in replicas]
    (samples,) = {one.samples for one in ours}  # else a microbatch was not finite, and there is nothing to compare
    # As ``Diloco`` sends them: the displacement itself, of which the mean is by samples.
    update = mean.of([one.mean * np.float32(one.samples) for one in ours], float(samples))
    for replica, one in zip(replicas, ours, strict=True):
        replica.step(update, Lineage(name))
        replica.settle(one.everything, name)
        replica.take_used()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All ways, one after the other."""
    rate, momentum = options.outer.split("/")
    setup = Setup(
        swarm=trainers_on_links(",".join(["20/100@15"] * options.trainers)),
        epochs=options.rounds,
        microbatches=options.inner,
        seed=options.seed,
        cache_dir=cache_dir(),
        strategy=f"name: diloco, outer_learning_rate: {rate}, outer_momentum: {momentum}",
        learning_rate=options.rate,
    )
    found = {}
    for way in options.ways:
        print(f"training {way}", file=sys.stderr, flush=True)
        with patch.dict(error_feedback.KEPT_OF_OWED, {TopKSign.name: options.kept_of_owed}):
            loss, num_elements = train(setup, way)
        rounds_mb = way.vector_bytes(num_elements, options.trainers) * options.rounds / 1e6
        sizes = {name: round(count * rounds_mb, 3) for name, count in way.vectors(options.trainers).items()}
        found[str(way)] = {"held_out_loss": round(loss, 4), **sizes}
    told = ("trainers", "rounds", "inner", "rate", "outer", "kept_of_owed")
    return {
        "benchmark": "gathering",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "setup": {name: getattr(options, name) for name in told},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "ways": found,
    }


def show(content: dict[str, Any]) -> None:
    """The same as a table."""
    print(f"{'way':18}{'MB sent':>10}{'relayed':>10}{'of an uplink':>14}{'held-out':>10}")
    for name, one in content["ways"].items():
        print(f"{name:18}{one['sent_mb']:>10.3f}{one['relayed_mb']:>10.3f}{one['uplink_mb']:>14.3f}{one['held_out_loss']:>10.4f}")


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Options, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ways", default="butterfly:440,gathered:182,gathered:763", help="NAME:KEPT, or dense")
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--inner", type=int, default=50, help="steps between two rounds")
    parser.add_argument("--rate", type=float, default=0.004, help="of the inner optimiser")
    parser.add_argument("--outer", default="2.8/0.1", help="RATE/MOMENTUM of the outer step")
    parser.add_argument("--kept-of-owed", type=float, default=error_feedback.KEPT_OF_OWED[TopKSign.name],
                        help="of what is owed, so much is still a round later")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    try:
        options.ways = [Way.parse(text) for text in options.ways.split(",")]
        options.outer = outer_step(options.outer)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Body of the program; the exit code."""
    options = parsed()
    content = measure(options)
    print(json.dumps(content)) if options.json else show(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
