"""One trainer of bench_time_to_loss.py: the same loop around each of its engines.

Its work is the first argument, as JSON. It prints the size of its model as one JSON line when it is in the swarm,
trains from the first line of its input on, prints a JSON line for each judgement of its model and one at the end, and
leaves when its input ends.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from global_step_peer import watch_input
from race_setup import HIVEMIND, Peer, Work

if TYPE_CHECKING:
    import torch

    from collab.tasks.base import Task

JUDGE_EVERY_S = 3.0
"""Between two judgements of trainer 0's model, each of which takes about a tenth of a second."""


class CollabPeer:
    """``collab.join``."""

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


def enter(model: "torch.nn.Module", work: Work) -> Peer:
    """A peer in the swarm of its engine."""
    if work.engine.is_ours:
        return CollabPeer(model, work)
    if work.engine.name in HIVEMIND:
        from race_hivemind import HivemindPeer

        return HivemindPeer(model, work)
    from race_torchft import TorchftPeer

    return TorchftPeer(model, work)


def train(peer: Peer, task: "Task", model: Any, work: Work, over: threading.Event, out: TextIO) -> dict[str, Any]:
    """The user's loop; what it came to. Trainer 0 says when the time is over: the others train on until their end."""
    from collab.data.sampling import SampleSampler

    sampler = SampleSampler(task.num_samples, seed=work.seed, peer_id=f"trainer-{work.index}")
    began_s = judged_s = time.monotonic()
    microbatches, computing_s, judging_s, waited_s, epoch = 0, 0.0, 0.0, 0.0, peer.epoch
    while not over.is_set() and ((now_s := time.monotonic()) - began_s - judging_s < work.seconds or work.index != 0):
        loss = task.loss(model, task.batch(sampler.next(work.batch)).tensors)
        loss.backward()  # type: ignore[no-untyped-call]
        time.sleep(max(0.0, now_s + work.pace_ms / 1e3 - time.monotonic()))
        computed_s = time.monotonic()
        computing_s += computed_s - now_s
        peer.step(float(loss.detach()))
        waited_s += time.monotonic() - computed_s
        microbatches += 1
        has_stepped, epoch = peer.epoch != epoch, peer.epoch
        if work.index == 0 and has_stepped and now_s - judged_s >= JUDGE_EVERY_S:
            judged_s = time.monotonic()
            told = {"seconds": judged_s - began_s - judging_s, "loss": task.evaluate(model).loss, "epoch": epoch}
            model.train()
            print(json.dumps(told), file=out, flush=True)
            judging_s += time.monotonic() - judged_s
    return {
        "is_over": True,
        "microbatches": microbatches,
        "epochs": peer.epoch,
        "computing_s": computing_s,
        "in_steps_s": waited_s,
    }


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
    peer = enter(model, work)
    num_elements = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"num_elements": num_elements}), file=out, flush=True)
    start.wait()
    result = train(peer, task, model, work, over, out)
    print(json.dumps(result), file=out, flush=True)
    over.wait()  # others may still be in a round with us
    peer.leave()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
