"""Where a trainer's samples come from: blocks that it leases from the swarm, or an order of its own."""

import asyncio
import hashlib
from typing import Protocol

import torch

from collab import config
from collab.data.blocks import BlockPlan
from collab.data.sampling import SampleSampler
from collab.tasks.base import Task
from collab.training.leasing import LeasedSupply
from collab.training.participant import Participant
from collab.training.shard_stream import Shards, ShardStream
from collab.training.unit_supply import UnitSupply

COMPARED_SAMPLES = 256
"""Of the whole data, evenly: peers that have these in common are taken to have all in common. A document more or less
moves all text behind it, so that most of them would differ."""


class Supply(Protocol):
    """Sample ids for one trainer."""

    async def run(self) -> None:
        """Do what must be done beside training, until cancelled."""
        ...

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        """The next ids, ``microbatch_size`` of them; fewer only where a piece of work ends."""
        ...

    def skipped(self, sample_ids: tuple[int, ...]) -> None:
        """These were computed, and their gradient was not finite."""
        ...

    async def close(self) -> None:
        """This peer trains no more."""
        ...


class OwnSupply:
    """Draws from all samples that this machine has, in an order of its own, and tells nobody."""

    def __init__(self, sampler: SampleSampler) -> None:
        self._sampler = sampler

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        return self._sampler.next(microbatch_size)

    def skipped(self, sample_ids: tuple[int, ...]) -> None:
        """Others do the same samples, and so may we in the next pass."""

    async def close(self) -> None:
        """Nobody knows anything of it."""


LEAST_STEPS = 8
"""In a pass. Where a few steps use all data, everybody trains each sample in any case, again and again, and most of a
pass would be its end, when what is left is dealt out in small pieces: steps took a tenth longer."""


def build_supply(participant: Participant, task: Task) -> Supply:
    """The supply that the run asks for. Leases need peers that train one model on the same data."""
    run, me = participant.bundle.run, participant.ports.transport.peer_id
    if isinstance(run.strategy, config.VcAsgd):
        return UnitSupply(participant, task, run.strategy)
    if isinstance(run.strategy, config.Solo) or config.placement_of(run.task) == "local":
        return OwnSupply(SampleSampler(task.num_samples, seed=run.seed, peer_id=me))

    shards: Shards | None = getattr(task, "shards", None)
    if shards is not None:
        found = shards

        def plan_of_shards() -> BlockPlan:
            return BlockPlan.of_shards(found.number, digest=found.digest, seed=run.seed)

        return LeasedSupply(participant, plan_of_shards, ShardStream(participant.ports, found))

    if is_small(run, task.num_samples):
        return OwnSupply(SampleSampler(task.num_samples, seed=run.seed, peer_id=me))

    def plan() -> BlockPlan:
        return BlockPlan.of(
            task.num_samples, digest=data_digest(task), seed=run.seed, microbatch_size=run.microbatch_size
        )

    return LeasedSupply(participant, plan)


def is_small(run: config.Run, num_samples: int) -> bool:
    """Whether a few steps use all data, so that each peer takes it in an order of its own."""
    return num_samples < LEAST_STEPS * run.strategy.target_batch_size


def is_streamed(run: config.Run, task: Task) -> bool:
    """Whether this peer reads shards when it has leases on them, and nothing before."""
    shares = not isinstance(run.strategy, config.Solo) and config.placement_of(run.task) == "shared"
    return shares and getattr(task, "shards", None) is not None


def data_digest(task: Task) -> str:
    """What two peers compare to know that sample ids mean the same on both: 32 hex digits.

    Call it on the worker: it reads samples.
    """
    number = task.num_samples
    chosen = tuple(sorted({index * number // COMPARED_SAMPLES for index in range(COMPARED_SAMPLES)}))
    digest = hashlib.sha256(f"collab/data/1:{number}".encode())
    for name, tensor in sorted(task.batch(chosen).tensors.items()):
        digest.update(f":{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
