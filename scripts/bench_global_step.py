#!/usr/bin/env python3
"""Fixed cost of a global step on loopback, beside hivemind.Optimizer's, measured in one run.

    python scripts/bench_global_step.py [--engines collab,hivemind] [--repeats 2] [--json]

Real peer processes on 127.0.0.1 train a model of 650 parameters. "Computing" a microbatch of one sample is a sleep, so
that the cores stay free for what is measured, and a tiny backward. The target batch is peers x microbatches, so that an
ideal global step takes microbatches x step-ms. Two costs are reported of every step from the third on:

    overhead        = duration - microbatches x step-ms     all that is not ideal: talking, waiting, overshooting
    beyond_compute  = duration - what this very peer spent computing in that step     a microbatch more than the plan
                      is work, since its sample is in the mean; what is left is talking and waiting

Engines take turns; whatever else the machine does, it does to both. See docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from collab.metrics.records import Event

WARM_UP_STEPS = 2
"""Both engines first learn how fast the swarm is; the figures begin with the step after these."""
START_LIMIT_S = 60.0
"""Imports and joining, on a machine that is busy with other things."""
END_LIMIT_S = 6.0
"""A backbone that is asked to leave does so within 5 s."""
RUN_FILE = """\
run_id: bench-global-step
seed: {seed}
task: {{name: image_classification, hidden_sizes: []}}
optimizer: {{name: sgd, learning_rate: 0.01}}
strategy: {{name: dedloc, target_batch_size: {target}, max_gradient_norm: null}}
averaging: {{codec: none}}
checkpoints: {{every_epochs: 1000000}}
"""
"""Nothing but steps: no checkpoint falls into a measurement, and vectors travel as float32 in both engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What both engines are asked to do."""

    peers: int
    microbatches: int
    """Of one sample each, per peer and global step."""
    step_ms: float
    steps: int
    seed: int
    limit_s: float
    """A run that takes longer is stopped; its figures say how many steps it made."""

    @property
    def target_batch(self) -> int:
        """Samples of one global step."""
        return self.peers * self.microbatches

    @property
    def ideal_s(self) -> float:
        """Duration of a global step that costs nothing but computing."""
        return self.microbatches * self.step_ms / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One contestant."""

    name: str
    matchmaking_s: float = 0.0
    """hivemind's only knob for the cost of a step; collab has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one worker process is told."""

    engine: Engine
    setup: Setup
    index: int
    contact: str
    """An invite, or hivemind's multiaddresses separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global step as one peer saw it; all times in seconds."""

    epoch: int
    """Steps taken so far, this one included."""
    duration_s: float
    """Since the end of the peer's previous step."""
    compute_s: float
    microbatches: int
    contributors: int
    """Peers in the round that led to the step; 0: no round succeeded."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Where duration - compute went, in order; they add up to it."""


# -- worker: one peer of either engine -------------------------------------------------------------------------------


class Peer(Protocol):
    """One peer of a swarm around a model."""

    contact: str

    @property
    def epoch(self) -> int: ...

    def step(self, loss: float) -> None: ...

    def seen(self) -> tuple[int, Mapping[str, float]]:
        """Contributors of the last round, and when its phases began by the monotonic clock."""
        ...


class CollabPeer:
    """``collab.join`` with a sink that takes the times."""

    contact = ""

    def __init__(self, model: "torch.nn.Module", work: Assignment) -> None:
        from collab.joining import Local, join

        self._contributors, self._marks = 0, dict[str, float]()
        self._swarm = join(model, None, work.contact, Local(name=f"bench-{work.index}", sinks=(self,)))

    @property
    def epoch(self) -> int:
        return self._swarm.epoch

    def step(self, loss: float) -> None:
        self._contributors, self._marks = 0, {}
        self._swarm.step(samples=1, loss=loss)

    def seen(self) -> tuple[int, Mapping[str, float]]:
        return self._contributors, self._marks

    def observe(self, event: "Event") -> None:
        """Called in the peer's own thread, never while ``seen`` is: ``step`` blocks as long as a round is under way."""
        from collab.metrics.records import EpochFinished, Phase, PhaseReached

        if isinstance(event, EpochFinished):
            self._contributors = event.contributors
        elif isinstance(event, PhaseReached):
            if event.phase is Phase.JOIN_GROUP:
                self._marks.setdefault(event.phase.value, time.monotonic())  # attempts that fail belong to forming
            else:
                self._marks[event.phase.value] = time.monotonic()


class HivemindPeer:
    """``hivemind.Optimizer``, with its delays and its background averaging of the state as they are by default."""

    def __init__(self, model: "torch.nn.Module", work: Assignment) -> None:
        import hivemind
        import torch

        class Watched(hivemind.optim.grad_averager.GradientAverager):  # type: ignore[misc]  # hivemind is untyped
            """Remembers the handle of the newest round, whose result names the group."""

            newest: Any = None

            def step(self, *args: Any, **options: Any) -> Any:  # hivemind's own signature
                self.newest = super().step(*args, **options)
                return self.newest

        group = {
            "target_group_size": work.setup.peers,  # a full group need not wait for the end of matchmaking
            "request_timeout": min(3.0, work.engine.matchmaking_s / 2),  # hivemind: less than matchmaking
        }
        dht = hivemind.DHT(
            start=True,
            initial_peers=work.contact.split() or None,
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            use_relay=False,
            use_auto_relay=False,
        )
        self.contact = " ".join(str(address) for address in dht.get_visible_maddrs())
        self._optimizer = hivemind.Optimizer(
            dht=dht,
            run_id="bench",
            batch_size_per_step=1,
            target_batch_size=work.setup.target_batch,
            params=model.parameters(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            matchmaking_time=work.engine.matchmaking_s,
            averaging_timeout=15.0,  # its default of a minute would make one lost round the whole measurement
            averager_opts=group,
            grad_averager_factory=lambda **options: Watched(**group, **options),
        )

    @property
    def epoch(self) -> int:
        return int(self._optimizer.local_epoch)

    def step(self, loss: float) -> None:
        self._optimizer.grad_averager.newest = None
        self._optimizer.step()
        self._optimizer.zero_grad()

    def seen(self) -> tuple[int, Mapping[str, float]]:
        newest = self._optimizer.grad_averager.newest
        has_result = newest is not None and newest.done() and not newest.cancelled() and newest.exception() is None
        return (len(newest.result()) if has_result else 0), {}


PHASES = (
    ("board_s", "join_group"),  # publish our progress, read the others'
    ("group_s", "send_parts"),  # until the leader's BEGIN: calls, and waiting for peers in a microbatch
    ("exchange_s", "before_commit"),
    ("verdict_s", "commit"),
)
"""Name of the time that ends when a phase begins; what follows the last one is ``apply_s``."""


def phases(marks: Mapping[str, float], computed_s: float, ended_s: float) -> dict[str, float]:
    """Cut the time from ``computed_s`` to ``ended_s`` at the marks."""
    cut, since_s = {}, computed_s
    for name, mark in PHASES:
        if mark in marks:
            cut[name] = marks[mark] - since_s
            since_s = marks[mark]
    return {**cut, "apply_s": ended_s - since_s}


def train(peer: Peer, model: "torch.nn.Module", work: Assignment) -> list[Step]:
    """The user's loop: compute, step, take the time."""
    import torch

    setup, steps = work.setup, list[Step]()
    inputs = torch.randn(1, 64, generator=torch.Generator().manual_seed(setup.seed * 1000 + work.index))
    began_s = last_s = time.monotonic()
    epoch, compute_s, early_s, microbatches = peer.epoch, 0.0, 0.0, 0
    while epoch < setup.steps and time.monotonic() - began_s < setup.limit_s:
        started_s = time.monotonic()
        time.sleep(setup.step_ms / 1e3)
        loss = model(inputs).pow(2).mean()
        loss.backward()
        computed_s = time.monotonic()
        peer.step(float(loss))
        ended_s = time.monotonic()
        compute_s, microbatches = compute_s + computed_s - started_s, microbatches + 1
        if peer.epoch == epoch:
            early_s += ended_s - computed_s
            continue
        contributors, marks = peer.seen()
        cut = {"early_s": early_s, **phases(marks, computed_s, ended_s)} if marks else {}
        epoch = peer.epoch
        steps.append(
            Step(
                epoch=epoch,
                duration_s=ended_s - last_s,
                compute_s=compute_s,
                microbatches=microbatches,
                contributors=contributors,
                phases_s=cut,
            )
        )
        last_s, compute_s, early_s, microbatches = ended_s, 0.0, 0.0, 0
    return steps


def work_as_told(text: str) -> None:
    """Body of a worker process: say that we are there, wait for the start, train, stay until told to end."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    import torch

    fields = json.loads(text)
    work = Assignment(
        engine=Engine(**fields["engine"]),
        setup=Setup(**fields["setup"]),
        index=fields["index"],
        contact=fields["contact"],
    )
    torch.set_num_threads(1)  # two threads on busy cores are slower than one
    torch.manual_seed(work.setup.seed)
    start = threading.Event()
    threading.Thread(target=_end_with_parent, args=(start,), daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(64, 10))
    peer: Peer = CollabPeer(model, work) if work.engine.name == "collab" else HivemindPeer(model, work)
    print(json.dumps({"contact": peer.contact}), file=out, flush=True)
    start.wait()
    steps = train(peer, model, work)
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    result = {"epoch": peer.epoch, "steps": [asdict(step) for step in steps], "parameters": parameters}
    print(json.dumps(result), file=out, flush=True)
    threading.Event().wait()  # others may still need us: a peer that is late takes over our state


def _end_with_parent(start: threading.Event) -> None:
    """The first line is the start; the end of the input ends us and every process that an engine forked."""
    if sys.stdin.readline():
        start.set()
        sys.stdin.readline()
    os.killpg(os.getpgrp(), signal.SIGKILL)


