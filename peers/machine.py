"""A trainer on this machine: device, data, model. Imports torch; only commands that train import this module."""

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import torch

from collab.data.made_once import Waits, patiently
from collab.data.sources import Overseen, unseen
from collab.errors import BrokenOff, CollabError, ConfigError, DeviceFull
from collab.metrics.records import Notice
from collab.net.startup import Started
from collab.swarm.bundle import Bundle
from collab.tasks.base import Task
from collab.tasks.registry import build_task
from collab.training.device_memory import room_for
from collab.training.genesis import build_replica
from collab.training.layout import VectorLayout
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.pausing import release_gpu
from collab.training.replica import Replica
from collab.training.supply import is_streamed
from collab.training.trainer import Trainer
from peers.gpu import choose_device, gpu_of, keep_within
from peers.places import cache_dir

if TYPE_CHECKING:
    from peers.joining import JoinOptions


READING = "encoding the text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of one session of a process."""

    contributed: int = 0
    """Steps that it has contributed to before."""
    tell: Callable[[str, int, int], None] = lambda _what, _done, _whole: None
    """Hears how far what takes long is, in bytes; from any thread."""
    had_gpu: bool = False
    """Before a pause: whoever has the GPU's memory now may give it back, so that it is worth waiting for."""
    is_over: Callable[[], bool] = lambda: False
    """Whether this machine's owner wants it back; asked on the worker."""
    overseen: Overseen = unseen
    """What all text passes that its task reads."""
    waits: Waits = patiently
    """Of train text that another process encodes just now; called on the worker."""
    takes_device: Event = field(default_factory=Event)
    """Set before anything is put on the device, which takes seconds; what is read before may take minutes."""


def count_elements(bundle: Bundle, allowed: Collection[str]) -> int:
    """Of the run's vector; the model is described, and takes no memory.

    Raises:
        ConfigError, DataError: the task cannot be built here.
    """
    task = build_task(bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id="", allowed=allowed)
    with torch.device("meta"):
        return VectorLayout(task.build_model()).num_elements


def find_device(options: "JoinOptions", beginning: Beginning) -> tuple[torch.device, CollabError | None]:
    """Where to compute, and what is wrong with the GPU that would be better; None: nothing is.

    Raises:
        DeviceFull, ConfigError: see ``choose_device``; where the volunteer wants this device, or should get it back.
    """
    try:
        return choose_device(options.device), None
    except (ConfigError, DeviceFull) as error:
        wants_gpu = options.device is not None or options.gpu_memory_gb is not None
        if wants_gpu or (beginning.had_gpu and isinstance(error, DeviceFull)):
            raise
        return torch.device("cpu"), error


def read_data(bundle: Bundle, task: Task, beginning: Beginning) -> None:
    """Read or encode the data now, not in the first microbatch, unless shards are streamed.

    Raises:
        DataError: it cannot be used here.
        BrokenOff: ``beginning.overseen`` has raised it.
    """
    if hasattr(task, "progress"):
        task.progress = lambda text_bytes, whole_bytes: beginning.tell(READING, text_bytes, whole_bytes)
    if hasattr(task, "overseen"):
        task.overseen = beginning.overseen
    if hasattr(task, "waits"):
        task.waits = beginning.waits
    if not is_streamed(bundle.run, task):
        _ = task.num_samples
    beginning.tell(READING, 1, 1)


async def build_trainer(
    started: Started, bundle: Bundle, options: "JoinOptions", beginning: Beginning
) -> Trainer | None:
    """Prepare data and model on the worker thread, and wire them to the network; None: the owner wants the machine.

    Raises:
        ConfigError, DataError: the device, the model or the data cannot be used here.
        DeviceFull: the device's memory does not hold the model, or other programs have it.
    """
    peer_id = started.ports.transport.peer_id

    def prepare() -> tuple[Task, Replica, CollabError | None] | None:
        task = build_task(
            bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id=peer_id, allowed=options.allowed_modules
        )
        try:
            read_data(bundle, task, beginning)
        except BrokenOff:
            return None
        beginning.takes_device.set()
        if beginning.is_over():
            return None
        device, trouble = find_device(options, beginning)
        if options.gpu_memory_gb is not None:
            keep_within(gpu_of(device), options.gpu_memory_gb)
        with room_for("the model does not fit"):
            replica = build_replica(bundle, task, device)
        if beginning.is_over():
            del replica
            gc.collect()
            release_gpu()
            return None
        return task, replica, trouble

    if (built := await started.ports.compute.run(prepare)) is None:
        return None
    task, replica, trouble = built
    if trouble is not None:
        text = f"this machine computes on its processor: {trouble.message}"
        now = started.ports.clock.now()
        started.ports.observer.observe(Notice(at_s=now, text=text, hint=trouble.hint, is_problem=True))
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
        may_grow=options.microbatch_size is None and replica.device.type == "cuda",
    )
