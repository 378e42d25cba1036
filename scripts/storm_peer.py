"""A trainer of storm.py: a volunteer's own roles and network, with microbatches that take a given time.

Its assignment is the first argument, as JSON. It prints its events as JSON lines: ``Up`` when its program is loaded and
it begins to join, everything that ``collab-peer join --json`` prints, and ``Ending`` with what it still holds.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from peers.process import run_peer, settle_heap

if TYPE_CHECKING:
    import torch

    from collab.net.startup import Started
    from collab.swarm.bundle import Bundle
    from collab.tasks.base import Batch, Evaluation, Task
    from collab.training.replica import Replica
    from collab.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one trainer is told."""

    invite: str
    name: str
    data_dir: str
    pace_s: float
    """What a microbatch takes, mostly asleep."""
    microbatch_size: int

    def words(self) -> list[str]:
        """That start this trainer, after ``python``."""
        return [str(Path(__file__).resolve()), json.dumps(asdict(self))]


class Paced:
    """Implements ``Task`` around another one: its microbatches take ``pace_s``, and next to no processor time.

    So that more trainers fit a machine than it has cores, and compute at the same speed with and without faults.
    """

    def __init__(self, task: "Task", pace_s: float) -> None:
        self._task, self._pace_s = task, pace_s

    @property
    def num_samples(self) -> int:
        return self._task.num_samples

    def build_model(self) -> "torch.nn.Module":
        return self._task.build_model()

    def batch(self, sample_ids: tuple[int, ...]) -> "Batch":
        time.sleep(self._pace_s)  # on the worker's thread
        return self._task.batch(sample_ids)

    def loss(self, model: "torch.nn.Module", tensors: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        return self._task.loss(model, tensors)

    def evaluate(self, model: "torch.nn.Module") -> "Evaluation":
        return self._task.evaluate(model)

    def checkpoint_files(self) -> Mapping[str, bytes]:
        return self._task.checkpoint_files()


def ending_of(replica: "Replica") -> dict[str, Any]:
    """What a peer leaves with."""
    digest = hashlib.sha256()
    for name, tensor in sorted(replica.snapshot().tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    return {
        "epoch": replica.epoch,
        "lineage": str(replica.lineage),
        "digest": digest.hexdigest()[:16],
        "held": replica.samples,
    }


async def live(work: Assignment, out: TextIO, stop: asyncio.Event) -> None:
    """One trainer's life, as ``collab-peer join`` lives it."""
    from collab.metrics.sinks import Fanout, JsonLines
    from peers.joining import Relay
    from peers.places import claim_data_dir
    from peers.screen import JsonScreen
    from peers.wiring import Reach, invite_from, start_from_invite

    invite, relay = invite_from(work.invite), Relay()
    with claim_data_dir(Path(work.data_dir), invite.run_id) as data_dir:
        say(out, "Up", {})
        async with start_from_invite(invite, data_dir, Reach(), relay) as (started, bundle):
            trainer = await build(started, bundle, work)
            relay.sink = Fanout(JsonScreen(out), JsonLines(data_dir.metrics))
            settle_heap()
            await trainer.run(stop)
        say(out, "Ending", ending_of(trainer.participant.replica))


async def build(started: "Started", bundle: "Bundle", work: Assignment) -> "Trainer":
    """The trainer around a paced task."""
    import torch

    from collab.tasks.registry import build_task
    from collab.training.genesis import build_replica
    from collab.training.participant import Participant
    from collab.training.participant_settings import ParticipantSettings
    from collab.training.trainer import Trainer
    from peers.places import cache_dir

    def prepare() -> "tuple[Task, Replica]":
        peer_id = started.ports.transport.peer_id
        task = build_task(bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id=peer_id)
        _ = task.num_samples
        return task, build_replica(bundle, task, torch.device("cpu"))

    task, replica = await started.ports.compute.run(prepare)
    settings = ParticipantSettings(name=work.name)
    participant = Participant(started.ports, started.identity, bundle, replica, settings)
    return Trainer(participant, Paced(task, work.pace_s), microbatch_size=work.microbatch_size)


def say(out: TextIO, event: str, fields: dict[str, Any]) -> None:
    print(json.dumps({"event": event, "at_s": time.time(), **fields}), file=out, flush=True)


def own_output() -> TextIO:
    """What standard output was; whatever libraries print there goes to the log from now on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def main() -> int:
    """Body of the process; the exit code."""
    out = own_output()
    import torch

    import peers.joining
    import peers.machine  # noqa: F401 - all of it is loaded before the peer is up

    torch.set_num_threads(1)
    from peers.process import configure_logging

    configure_logging(os.environ.get("COLLAB_STORM_LOG", "warning"))
    work = Assignment(**json.loads(sys.argv[1]))
    return run_peer(lambda stop: live(work, out, stop))


if __name__ == "__main__":
    sys.exit(main())
