"""One trainer of bench_world.py: a user's loop around ``collab.join``, or the same loop alone.

Its work is the first argument, as JSON. It prints one JSON line when it is in the swarm, trains from the first line of
its input on, prints what it has seen as one JSON line, and leaves when its input ends.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from global_step_peer import watch_input
from world_setup import Work

if TYPE_CHECKING:
    import torch

    from collab.metrics.records import Event

WARM_UP_EPOCHS = 2
"""Rounds that nothing is measured in: the swarm learns how fast its links are."""
HELD_OUT = 360
"""Of 1,797 pictures."""


class Peer(Protocol):
    """Whatever takes steps with the gradients that stand in a model."""

    @property
    def epoch(self) -> int: ...

    def step(self, loss: float) -> None: ...

    def leave(self) -> None: ...


class Alone:
    """No swarm: the same step on one machine, as fast as nothing can make it wait."""

    def __init__(self, model: "torch.nn.Module", rate: float) -> None:
        import torch

        self._steps = 0
        self._optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def step(self, loss: float) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._steps += 1

    @property
    def epoch(self) -> int:
        return self._steps

    def leave(self) -> None:
        pass


class Joined:
    """``collab.join``, with a sink that counts steps between events."""

    def __init__(self, model: "torch.nn.Module", work: Work) -> None:
        from collab.joining import Local, join

        self.steps, self._work = 0, work
        self.windows: list[tuple[float, int, int]] = []
        """When each window was averaged, own steps in it, and own steps while it was on its way."""
        self._began_at = -1
        name = f"trainer-{work.index}"
        self._swarm = join(model, None, work.invite, Local(name=name, data_dir=Path.cwd() / name, sinks=(self,)))

    @property
    def epoch(self) -> int:
        return self._swarm.epoch

    def step(self, loss: float) -> None:
        self.steps += 1
        self._swarm.step(samples=self._work.batch, loss=loss)

    def observe(self, event: "Event") -> None:
        """Runs in the peer's own thread."""
        from collab.metrics.records import EpochFinished, Phase, PhaseReached, WindowsAveraged

        if isinstance(event, WindowsAveraged):
            self.windows += [(time.monotonic(), steps, late) for steps, late in event.paces]
        elif self._work.strategy == "dts":
            return
        elif isinstance(event, PhaseReached) and event.phase is Phase.JOIN_GROUP:
            self._began_at = self.steps
        elif isinstance(event, EpochFinished):
            late = self.steps - self._began_at if self._began_at >= 0 else 0
            self.windows.append((time.monotonic(), event.own_samples // self._work.batch, late))
            self._began_at = -1

    def leave(self) -> None:
        self._swarm.leave()


class Digits:
    """scikit-learn's, of which every trainer has all or those of some labels."""

    def __init__(self, work: Work) -> None:
        import numpy as np
        import torch
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(work.seed).permutation(len(digits.target))
        self._inputs = torch.from_numpy((digits.data[order] / 16.0).astype(np.float32))
        self._labels = torch.from_numpy(digits.target[order].astype(np.int64))
        mine = np.arange(HELD_OUT, len(order))
        if work.is_skewed:
            owners = self._labels[HELD_OUT:].numpy() * work.trainers // 10
            mine = mine[owners == work.index]
        self._mine = torch.from_numpy(mine)
        self._generator = torch.Generator().manual_seed(work.seed * 1000 + work.index)
        self._batch = work.batch

    def batch(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """One of our own."""
        import torch

        chosen = self._mine[torch.randint(len(self._mine), (self._batch,), generator=self._generator)]
        return self._inputs[chosen], self._labels[chosen]

    def judged(self, model: "torch.nn.Module") -> dict[str, float]:
        """Mean loss and accuracy on what nobody trains on."""
        import torch

        with torch.no_grad():
            outputs, labels = model(self._inputs[:HELD_OUT]), self._labels[:HELD_OUT]
            loss = float(torch.nn.functional.cross_entropy(outputs, labels))
            return {"loss": loss, "accuracy": float((outputs.argmax(1) == labels).float().mean())}


def train(peer: Peer, model: "torch.nn.Module", work: Work, over: threading.Event) -> dict[str, Any]:
    """The user's loop, paced; what it has seen."""
    import torch

    digits = Digits(work)
    began_s = due_s = measured_s = time.monotonic()
    steps = epochs = first_steps = first_epoch = 0
    busy_s = 0.0
    is_warm = work.strategy == "alone"
    while not over.is_set():
        now = time.monotonic()
        if not is_warm and peer.epoch >= WARM_UP_EPOCHS and not work.steps:
            is_warm, measured_s, first_steps, first_epoch, busy_s = True, now, steps, peer.epoch, 0.0
        epochs = peer.epoch
        taken = epochs if work.strategy == "dedloc" else steps
        if taken >= work.steps > 0 or (not work.steps and is_warm and now - measured_s >= work.seconds):
            break
        due_s = max(now, due_s) + work.step_ms / 1e3
        inputs, labels = digits.batch()
        loss: Any = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        computed_s = time.monotonic()
        time.sleep(max(0.0, due_s - computed_s))
        stepped_s = time.monotonic()
        peer.step(float(loss.detach()))
        busy_s += time.monotonic() - stepped_s + computed_s - now
        due_s = max(due_s, time.monotonic() - 0.2 * work.step_ms / 1e3)
        steps += 1
    ended_s = time.monotonic()
    windows = [row for row in getattr(peer, "windows", []) if row[0] > measured_s]
    return {
        "seconds": ended_s - measured_s,
        "all_seconds": ended_s - began_s,
        "steps": steps - first_steps,
        "epochs": epochs - first_epoch,
        "busy_ms": 1e3 * busy_s / max(1, steps - first_steps),
        "windows": [row[1:] for row in windows],
        **digits.judged(model),
    }


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    import torch

    work, rate = Work.from_json(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    start, over = threading.Event(), threading.Event()
    threading.Thread(target=watch_input, args=(start, over), daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(64, work.hidden), torch.nn.ReLU(), torch.nn.Linear(work.hidden, 10))
    peer: Peer = Joined(model, work) if work.invite else Alone(model, rate)
    print(json.dumps({"is_in": True}), file=out, flush=True)
    start.wait()
    print(json.dumps(train(peer, model, work, over)), file=out, flush=True)
    over.wait()  # others may still be in a round with us
    peer.leave()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
