"""A trainer on this machine: device, data, model. Imports torch; only commands that train import this module."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from collab.errors import ConfigError
from collab.net.startup import Started
from collab.swarm.bundle import Bundle
from collab.tasks.base import Task
from collab.tasks.registry import build_task
from collab.training.genesis import build_replica
from collab.training.layout import VectorLayout
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.replica import Replica
from collab.training.supply import is_streamed
from collab.training.trainer import Trainer
from peers.gpu import gpu_of, keep_within
from peers.places import cache_dir

if TYPE_CHECKING:
    from peers.joining import JoinOptions


READING = "encoding the text"


def choose_device(wanted: str | None) -> torch.device:
    """The device a volunteer named, else the first GPU, else the CPU.

    Raises:
        ConfigError: the named device is not there.
    """
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {wanted!r} cannot be used: {error}", hint="try --device cpu") from error
    return device


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of one session of a process."""

    contributed: int = 0
    """Steps that it has contributed to before."""
    tell: Callable[[str, int, int], None] = lambda _what, _done, _whole: None
    """Hears how far what takes long is, in bytes; from any thread."""


def count_elements(bundle: Bundle, allowed: Collection[str]) -> int:
    """Of the run's vector; the model is described, and takes no memory.

    Raises:
        ConfigError, DataError: the task cannot be built here.
    """
    task = build_task(bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id="", allowed=allowed)
    with torch.device("meta"):
        return VectorLayout(task.build_model()).num_elements


async def build_trainer(
    started: Started, bundle: Bundle, options: "JoinOptions", beginning: Beginning
) -> Trainer:
    """Prepare data and model on the worker thread, and wire them to the network.

    Raises:
        ConfigError, DataError: the device, the model or the data cannot be used here.
    """
    peer_id = started.ports.transport.peer_id

    def prepare() -> tuple[Task, Replica]:
        task = build_task(
            bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id=peer_id, allowed=options.allowed_modules
        )
        if hasattr(task, "progress"):
            task.progress = lambda text_bytes, whole_bytes: beginning.tell(READING, text_bytes, whole_bytes)
        if not is_streamed(bundle.run, task):
            _ = task.num_samples  # reads or encodes the data now, not in the first microbatch
        beginning.tell(READING, 1, 1)
        device = choose_device(options.device)
        if options.gpu_memory_gb is not None:
            keep_within(gpu_of(device), options.gpu_memory_gb)
        return task, build_replica(bundle, task, device)

    task, replica = await started.ports.compute.run(prepare)
    settings = ParticipantSettings(
        name=options.name,
        reach=started.verdict.reach,
        max_epochs=None if options.epochs is None else options.epochs - beginning.contributed,
        state_dir=options.data_dir.state,
        allowed_modules=options.allowed_modules,
        wants_credit=options.wants_credit,
        tell_download=lambda here, whole: beginning.tell("fetching the swarm's state", here, whole),
    )
    participant = Participant(started.ports, started.identity, bundle, replica, settings)
    participant.teller.follow(started.reaching)
    return Trainer(
        participant,
        task,
        microbatch_size=options.microbatch_size or bundle.run.microbatch_size,
        may_grow=options.microbatch_size is None and choose_device(options.device).type == "cuda",
    )
