"""One peer of bench_global_step.py: a process with the user's loop around either engine.

Its assignment is the first argument, as JSON. It prints one JSON line when it is in the swarm, starts at the first line
of its input, prints its steps as one JSON line, and goes when its input ends, however that comes about.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from collab.metrics.records import Event

LEAVE_LIMIT_S = 4.0
"""For an engine to say goodbye; then whatever is left of it is killed."""


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
    """Training that takes longer is stopped; the figures say how many steps were made."""

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
    """hivemind's knob for the cost of a step; collab has none."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.name} {self.matchmaking_s:g} s" if self.matchmaking_s else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one peer is told."""

    engine: Engine
    setup: Setup
    index: int
    contact: str
    """An invite, or hivemind's multiaddresses separated by spaces."""

    @classmethod
    def from_json(cls, text: str) -> "Assignment":
        """The reverse of ``json.dumps(asdict(assignment))``."""
        fields = json.loads(text)
        engine, setup = Engine(**fields.pop("engine")), Setup(**fields.pop("setup"))
        return cls(engine=engine, setup=setup, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global step as one peer saw it."""

    epoch: int
    """Steps taken so far, this one included."""
    duration_s: float
    """Since the end of the peer's previous step."""
    compute_s: float
    """Of it, in the peer's own microbatches."""
    microbatches: int
    contributors: int
    """Peers in the round that led to the step; 0: no round succeeded."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Where the rest went, in order; they add up to it."""


class Peer(Protocol):
    """One peer of a swarm around a model."""

    contact: str
    """For others to find it."""

    @property
    def epoch(self) -> int: ...

    def step(self, loss: float) -> None: ...

    def seen(self) -> tuple[int, Mapping[str, float]]:
        """Contributors of the last round, and when its phases began by the monotonic clock."""
        ...

    def leave(self) -> None: ...


class CollabPeer:
    """``collab.join``, with a sink that takes the times."""

    contact = ""

    def __init__(self, model: "torch.nn.Module", work: Assignment) -> None:
        from collab.joining import Local, join

        self._contributors, self._marks = 0, dict[str, float]()
        name = f"bench-{work.index}"
        self._swarm = join(model, None, work.contact, Local(name=name, data_dir=Path.cwd() / name, sinks=(self,)))

    @property
    def epoch(self) -> int:
        return self._swarm.epoch

    def step(self, loss: float) -> None:
        self._contributors, self._marks = 0, {}
        self._swarm.step(samples=1, loss=loss)

    def seen(self) -> tuple[int, Mapping[str, float]]:
        return self._contributors, self._marks

    def observe(self, event: "Event") -> None:
        """Runs in the peer's own thread; ``step`` blocks while a round is under way, so ``seen`` never races it."""
        from collab.metrics.records import EpochFinished, Phase, PhaseReached

        if isinstance(event, EpochFinished):
            self._contributors = event.contributors
        elif isinstance(event, PhaseReached) and event.phase is Phase.JOIN_GROUP:
            self._marks.setdefault(event.phase.value, time.monotonic())  # lost attempts count as forming the group
        elif isinstance(event, PhaseReached):
            self._marks[event.phase.value] = time.monotonic()

    def leave(self) -> None:
        self._swarm.leave()


class HivemindPeer:
    """``hivemind.Optimizer``; what is not named here is as its defaults are."""

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
            "target_group_size": work.setup.peers,  # a full group does not wait for the end of matchmaking
            "request_timeout": min(3.0, work.engine.matchmaking_s / 2),  # hivemind wants less than matchmaking
        }
        self._dht = hivemind.DHT(
            start=True,
            initial_peers=work.contact.split() or None,
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            use_relay=False,
            use_auto_relay=False,
        )
        self.contact = " ".join(str(address) for address in self._dht.get_visible_maddrs())
        self._optimizer = hivemind.Optimizer(
            dht=self._dht,
            run_id="bench",
            batch_size_per_step=1,
            target_batch_size=work.setup.target_batch,
            params=model.parameters(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            matchmaking_time=work.engine.matchmaking_s,
            averaging_timeout=15.0,  # with the default of a minute one lost round would be the whole measurement
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
        has_group = newest is not None and newest.done() and not newest.cancelled() and newest.exception() is None
        return (len(newest.result()) if has_group else 0), {}

    def leave(self) -> None:
        self._optimizer.shutdown()
        self._dht.shutdown()


ENDINGS = (
    ("board_s", "join_group"),  # publish our progress, read the others'
    ("group_s", "send_parts"),  # until the leader's BEGIN: calls, and waiting for peers that are in a microbatch
    ("exchange_s", "before_commit"),
    ("verdict_s", "commit"),
)
"""Name of a time, and the phase of the round whose beginning ends it."""


def cut_at(marks: Mapping[str, float], began_s: float, ended_s: float) -> dict[str, float]:
    """The time from ``began_s`` to ``ended_s`` by phases; what follows the last mark is ``apply_s``."""
    pieces, since_s = dict[str, float](), began_s
    for name, phase in ENDINGS:
        if phase in marks:
            pieces[name], since_s = marks[phase] - since_s, marks[phase]
    return {**pieces, "apply_s": ended_s - since_s}


def train(peer: Peer, model: "torch.nn.Module", work: Assignment, over: threading.Event) -> list[Step]:
    """The user's loop: compute, step, take the time."""
    import torch

    setup, steps = work.setup, list[Step]()
    inputs = torch.randn(1, 64, generator=torch.Generator().manual_seed(setup.seed * 1000 + work.index))
    began_s = last_s = time.monotonic()
    epoch, compute_s, early_s, microbatches = peer.epoch, 0.0, 0.0, 0
    while epoch < setup.steps and time.monotonic() - began_s < setup.limit_s and not over.is_set():
        started_s = time.monotonic()
        time.sleep(setup.step_ms / 1e3)
        loss = model(inputs).pow(2).mean()
        loss.backward()
        computed_s = time.monotonic()
        peer.step(float(loss))
        ended_s = time.monotonic()
        compute_s, microbatches = compute_s + computed_s - started_s, microbatches + 1
        if peer.epoch == epoch:
            early_s += ended_s - computed_s  # telling others of a microbatch that does not end the step
            continue
        contributors, marks = peer.seen()
        step = Step(
            epoch=peer.epoch,
            duration_s=ended_s - last_s,
            compute_s=compute_s,
            microbatches=microbatches,
            contributors=contributors,
            phases_s={"early_s": early_s, **cut_at(marks, computed_s, ended_s)} if marks else {},
        )
        steps.append(step)
        epoch, last_s, compute_s, early_s, microbatches = step.epoch, ended_s, 0.0, 0.0, 0
    return steps


def watch_input(start: threading.Event, over: threading.Event) -> None:
    """The first line is the start; the end of the input ends us and, at the latest then, all that an engine forked."""
    # not sys.stdin: processes that hivemind forks close theirs, and would wait for ever for the lock that we hold here
    if os.read(0, 64):
        start.set()
        os.read(0, 64)
    over.set()
    start.set()
    time.sleep(LEAVE_LIMIT_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    import torch

    work = Assignment.from_json(sys.argv[1])
    torch.set_num_threads(1)  # two threads on busy cores are slower than one
    torch.manual_seed(work.setup.seed)
    start, over = threading.Event(), threading.Event()
    threading.Thread(target=watch_input, args=(start, over), daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(64, 10))
    peer: Peer = CollabPeer(model, work) if work.engine.name == "collab" else HivemindPeer(model, work)
    print(json.dumps({"contact": peer.contact}), file=out, flush=True)
    start.wait()
    steps = train(peer, model, work, over)
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    result = {"epoch": peer.epoch, "steps": [asdict(step) for step in steps], "parameters": parameters}
    print(json.dumps(result), file=out, flush=True)
    over.wait()  # others may still need us: a peer that is late takes over our state
    peer.leave()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
