"""One trainer of bench_time_to_loss.py: the same loop around ``collab.join`` or ``hivemind.Optimizer``.

Its work is the first argument, as JSON. It prints how to reach it as one JSON line when it is in the swarm, trains from
the first line of its input on, prints a JSON line for each judgement of its model and one at the end, and leaves when
its input ends.
"""

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from global_step_peer import watch_input
from race_setup import Work

if TYPE_CHECKING:
    import torch

    from collab.tasks.base import Task

JUDGE_EVERY_S = 3.0
"""Between two judgements of trainer 0's model, each of which takes about a tenth of a second."""
MATCHMAKING_S = 1.0
"""hivemind's best for the fixed cost of a step; see docs/benchmarks.md."""


class Peer(Protocol):
    """Whatever takes steps with the gradients that stand in a model."""

    contact: str

    @property
    def epoch(self) -> int: ...

    def step(self, loss: float) -> None: ...

    def leave(self) -> None: ...


class CollabPeer:
    """``collab.join``."""

    contact = ""

    def __init__(self, model: "torch.nn.Module", work: Work) -> None:
        from collab.joining import Local, join

        name, self._batch = f"trainer-{work.index}", work.batch
        self._swarm = join(model, None, work.contact, Local(name=name, data_dir=Path.cwd() / name))

    @property
    def epoch(self) -> int:
        return self._swarm.epoch

    def step(self, loss: float) -> None:
        self._swarm.step(samples=self._batch, loss=loss)

    def leave(self) -> None:
        self._swarm.leave()


class HivemindPeer:
    """``hivemind.Optimizer``: float16, the true bandwidth, or with local updates and averages of parameters."""

    def __init__(self, model: "torch.nn.Module", work: Work) -> None:
        import hivemind
        import torch

        self._dht = hivemind.DHT(
            start=True,
            initial_peers=work.contact.split() or None,
            host_maddrs=[f"/ip4/{work.host}/tcp/0"],
            use_relay=False,
            use_auto_relay=False,
            auto_nat=False,
            nat_port_map=False,
        )
        addresses = [str(address) for address in self._dht.get_visible_maddrs()]
        self.contact = " ".join(address for address in addresses if f"/{work.host}/" in address)
        section = work.run.optimizer
        self._optimizer = hivemind.Optimizer(
            dht=self._dht,
            run_id="race",
            batch_size_per_step=work.batch,
            target_batch_size=work.engine.target,
            params=model.parameters(),
            optimizer=partial(
                torch.optim.AdamW, lr=section.learning_rate, betas=section.betas, weight_decay=section.weight_decay
            ),
            use_local_updates=work.engine.name == "hivemind-local",
            matchmaking_time=MATCHMAKING_S,
            averaging_timeout=30.0,
            grad_compression=hivemind.Float16Compression(),
            state_averaging_compression=hivemind.Float16Compression(),
            averager_opts={
                "bandwidth": work.up_mbit_per_s,
                "request_timeout": MATCHMAKING_S / 2,
                "target_group_size": 16,
                "client_mode": False,
            },
        )
        self._clip, self._parameters = torch.nn.utils.clip_grad_norm_, list(model.parameters())
        self._is_local = work.engine.name == "hivemind-local"

    @property
    def epoch(self) -> int:
        return int(self._optimizer.local_epoch)

    def step(self, loss: float) -> None:
        self._clip(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def leave(self) -> None:
        self._optimizer.shutdown()
        self._dht.shutdown()


def train(peer: Peer, task: "Task", model: Any, work: Work, over: threading.Event, out: TextIO) -> dict[str, Any]:
    """The user's loop; what it came to."""
    from collab.data.sampling import SampleSampler

    sampler = SampleSampler(task.num_samples, seed=work.seed, peer_id=f"trainer-{work.index}")
    began_s = judged_s = time.monotonic()
    microbatches, judging_s, epoch = 0, 0.0, peer.epoch
    while not over.is_set() and (now_s := time.monotonic()) - began_s - judging_s < work.seconds:
        loss = task.loss(model, task.batch(sampler.next(work.batch)).tensors)
        loss.backward()  # type: ignore[no-untyped-call]
        peer.step(float(loss.detach()))
        microbatches += 1
        has_stepped, epoch = peer.epoch != epoch, peer.epoch
        if work.index == 0 and has_stepped and now_s - judged_s >= JUDGE_EVERY_S:
            judged_s = time.monotonic()
            told = {"seconds": judged_s - began_s - judging_s, "loss": task.evaluate(model).loss, "epoch": epoch}
            model.train()
            print(json.dumps(told), file=out, flush=True)
            judging_s += time.monotonic() - judged_s
    return {"is_over": True, "microbatches": microbatches, "epochs": peer.epoch, "seconds": time.monotonic() - began_s}


def main() -> None:
    """Body of the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    import torch

    work = Work.from_json(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    start, over = threading.Event(), threading.Event()
    threading.Thread(target=watch_input, args=(start, over), daemon=True).start()
    task = work.task()
    model = task.build_model()
    model.train()
    peer: Peer = CollabPeer(model, work) if work.engine.is_ours else HivemindPeer(model, work)
    num_elements = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"contact": peer.contact, "num_elements": num_elements}), file=out, flush=True)
    start.wait()
    result = train(peer, task, model, work, over, out)
    print(json.dumps(result), file=out, flush=True)
    over.wait()  # others may still be in a round with us
    peer.leave()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
