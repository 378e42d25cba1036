"""One training run in virtual time, in lockstep and on fixed data: what a policy of averaging, or a strategy, leaves to
choose.

The model, the strategy, the round engine and its error feedback are those of a real run; links, clocks and the time
that computing takes are simulated. There is no membership: everybody knows everybody, and nobody tells the leader how
fast the swarm computes, so that ``auto`` looks at the time of a round only and leaves nobody out.
"""

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from averaging_setup import Part, Swarm, parse_swarm
from compression_loss_groups import Course, GroupWatch
from netlab_links import Link

from collab.averaging.assembly import Expected
from collab.averaging.calls import Call, Reply
from collab.averaging.contribution_plan import Policy
from collab.averaging.round import RoundEngine
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.config import parse_run
from collab.data.sampling import SampleSampler
from collab.metrics.records import RoundEnded
from collab.ports import Ports
from collab.simulation import links as simulated
from collab.simulation.world import World
from collab.strategies import base as strategies
from collab.strategies.base import Stepped
from collab.strategies.registry import build_strategy
from collab.swarm.bundle import Bundle
from collab.tasks.base import Task
from collab.tasks.registry import build_task, make_assets
from collab.training.genesis import build_replica, make_genesis
from collab.training.replica import Replica
from collab.types import Lineage, PeerId

MICROBATCH_SIZE = 8
BYTES_PER_S = 1e6 / 8
"""Of one Mbit/s."""
RUN_TEXT = """\
run_id: compression-loss
seed: {seed}
microbatch_size: {microbatch}
task:
  name: causal_lm
  model:
    {{model_type: gpt2, n_layer: 2, n_head: 4, n_embd: 96, initializer_range: 0.1,
      attn_pdrop: 0.0, embd_pdrop: 0.0, resid_pdrop: 0.0}}
  sequence_length: 64
  vocab_size: 1024
  data: {{source: builtin, max_megabytes: 2}}
  eval_samples: 128
optimizer: {{name: adamw, learning_rate: {rate}, weight_decay: 0.01, betas: [0.9, 0.95]}}
schedule: {{name: cosine, warmup_epochs: {warmup}, total_epochs: {total}, final_factor: 0.05}}
strategy: {{{strategy}, target_batch_size: {target}, max_gradient_norm: 1.0}}
averaging: {{compression: {policy}, reduction: mean}}
"""
"""The demo's model on blocks of half the length, begun at a larger scale and trained with smaller steps. At the usual
scale of 0.02 the gradient of its first attention layer is now and then many times what it was a step before, with
``exact`` as well, and losses part there. So what is measured here is what encodings cost a training that is stable;
docs/benchmarks.md says what was seen of the other kind."""


class RunFailed(Exception):
    """A round did not go as lockstep needs it, so that the policies would not be comparable."""


def trainers_on_links(text: str) -> Swarm:
    """The swarm that ``text`` describes.

    Raises:
        ValueError: it is none, or not all of it trains over links.
    """
    swarm = parse_swarm(text)
    if not swarm.links or Part.AUXILIARY in swarm.parts:
        raise ValueError("every peer trains here, over a link of its own")
    return swarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all policies have in common."""

    swarm: Swarm
    epochs: int
    microbatches: int
    """Of each peer in each epoch."""
    seed: int
    cache_dir: Path
    strategy: str = "name: dedloc"
    """Its section of the run file, but for the target and the norm."""
    learning_rate: float = 0.002

    @property
    def batch_samples(self) -> int:
        """Of all peers in an epoch."""
        return len(self.swarm.parts) * self.microbatches * MICROBATCH_SIZE

    def bundle(self, policy: Policy) -> Bundle:
        """The run of one policy; the tokenizer is trained on the first call."""
        text = RUN_TEXT.format(
            seed=self.seed,
            microbatch=MICROBATCH_SIZE,
            warmup=min(10, self.epochs // 4),
            total=self.epochs,
            target=self.batch_samples,
            policy=policy,
            strategy=self.strategy,
            rate=self.learning_rate,
        )
        run = parse_run(text, origin="the benchmark")
        return Bundle(run, make_assets(run, base_dir=Path(), cache_dir=self.cache_dir))


class Quota:
    """Implements ``Progress``: everybody has computed its part of the batch as soon as we have, since all keep step."""

    def __init__(self, replica: Replica, samples: int) -> None:
        self._replica, self._samples = replica, samples

    async def has_reached(self, target_samples: float, *, is_patient: bool = True) -> bool:
        return self._replica.samples >= self._samples


class Acquaintances:
    """Membership that never changes."""

    def __init__(self, peers: list[PeerId], leading: list[PeerId]) -> None:
        self._peers, self._leading = frozenset(peers), leading

    def leaders(self, lineage: Lineage, epoch: int) -> list[PeerId]:
        """Whoever can be dialled."""
        return list(self._leading)

    async def roster(self, epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        return Expected(trainers=self._peers, helpers=frozenset())

    def attend(self, call: Call, leader: PeerId) -> Reply:
        """All begin a round at the same moment, so whoever is called is coming."""
        return Reply(is_coming=True)


class LossSwarm:
    """Peers that train one model under one policy."""

    def __init__(self, setup: Setup, policy: Policy) -> None:
        self._setup, self._bundle = setup, setup.bundle(policy)
        run, assets = self._bundle.run, self._bundle.assets
        self._task: Task = build_task(run, assets=assets, cache_dir=setup.cache_dir, peer_id="")
        self._genesis = make_genesis(self._bundle, self._task)
        self._parts = setup.swarm.parts
        self._together = asyncio.Barrier(len(self._parts))
        self._replicas: dict[int, Replica] = {}
        self._watches: dict[int, GroupWatch] = {}
        self._used: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        """Loss and sample ids, by epoch and peer."""
        self._began_s, self._bytes_before = 0.0, 0
        self._world = World(setup.seed)
        for index, link in enumerate(setup.swarm.links):
            is_client = self._parts[index] is Part.CLIENT
            self._world.add_peer(self._main(index), link=_simulated(link), client_mode=is_client)

    def run(self) -> Course:
        """Train, and look at what came of it.

        Raises:
            RunFailed: a round was lost, or went on without somebody.
        """
        with self._world as world:
            world.run()
            ended_s = world.time_s
        first, epochs = world.peers[0], range(self._setup.epochs)
        committed = [event for event in first.events if isinstance(event, RoundEnded) and event.committed]
        everybody = range(len(self._parts))
        return Course(
            num_elements=self._replicas[0].layout.num_elements,
            losses=[sum(self._used[epoch, index][0] for index in everybody) / len(self._parts) for epoch in epochs],
            held_out_loss=self._task.evaluate(self._replicas[0].model).loss,
            groups=[self._watches[0].groups[event.round_id] for event in committed],
            round_s=[event.seconds for event in committed],
            training_s=ended_s - self._began_s,
            sent_bytes=self._sent_bytes() - self._bytes_before,
            peers=[peer.peer_id for peer in world.peers],
            replicas_equal=len({_digest(replica) for replica in self._replicas.values()}) == 1,
            data_digest=self._data_digest(),
        )

    def _sent_bytes(self) -> int:
        return sum(peer.transport.access.sent_bytes for peer in self._world.peers)

    def _data_digest(self) -> str:
        digest = hashlib.sha256()
        for name, values in sorted(self._genesis.tensors.items()):
            digest.update(name.encode() + values.tobytes())
        for key, (_, sample_ids) in sorted(self._used.items()):
            digest.update(repr((key, sample_ids)).encode())
        return digest.hexdigest()[:16]

    # -- one peer ----------------------------------------------------------------------------------------------------

    def _main(self, index: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        async def main(ports: Ports) -> None:
            self._watches[index] = watch = GroupWatch(ports.transport)
            self._replicas[index] = replica = build_replica(self._bundle, self._task, torch.device("cpu"))
            replica.load(self._genesis)
            engine = self._engine(index, replace(ports, transport=watch))
            await engine.serve()
            await self._measure_in_turn(index, engine)
            await self._train(index, ports, engine)
            await self._together.wait()  # whoever ends takes the stream with the others' verdict along

        return main

    def _engine(self, index: int, ports: Ports) -> RoundEngine:
        peers = [peer.peer_id for peer in self._world.peers]
        everybody = Acquaintances(
            peers, [p for p, part in zip(peers, self._parts, strict=True) if part is not Part.CLIENT]
        )
        can_reduce = self._parts[index] is not Part.CLIENT
        run, terms = self._bundle.run, FixedTerms(float(self._bundle.run.strategy.target_batch_size))
        return RoundEngine(
            ports,
            RoundSettings.of(run, self._bundle.fingerprint, terms, can_reduce=can_reduce),
            leaders=everybody.leaders,
            roster=everybody.roster,
            attend=everybody.attend,
        )

    async def _measure_in_turn(self, index: int, engine: RoundEngine) -> None:
        """Every peer's probe at joining, one after another as peers join, while nothing else is on the links."""
        for turn in range(len(self._parts)):
            await self._together.wait()
            if turn == index:
                others = [peer for peer in self._world.peers if peer.index != index]
                await engine.probe.measure([peer.peer_id for peer in others if not peer.transport.client_mode])
        await self._together.wait()
        self._began_s, self._bytes_before = self._world.time_s, self._sent_bytes()

    async def _train(self, index: int, ports: Ports, engine: RoundEngine) -> None:
        replica, run, quota = self._replicas[index], self._bundle.run, self._setup.microbatches * MICROBATCH_SIZE
        sampler = SampleSampler(self._task.num_samples, seed=run.seed, peer_id=ports.transport.peer_id)
        strategy = build_strategy(run.strategy, lambda _: run.strategy.target_batch_size)
        swarm = strategies.Swarm(
            peer_id=ports.transport.peer_id,
            progress=Quota(replica, quota),
            averager=engine,
            worker=ports.compute,
        )
        for epoch in range(self._setup.epochs):
            await self._together.wait()
            decision: strategies.Decision = strategies.Waiting()
            for _ in range(self._setup.microbatches):
                batch = self._task.batch(sampler.next(MICROBATCH_SIZE))
                await ports.compute.run(partial(replica.accumulate, batch, self._task.loss), samples=MICROBATCH_SIZE)
                decision = await strategies.decide(strategy, replica, swarm)
            if not isinstance(decision, Stepped) or decision.contributors < len(self._parts):
                raise RunFailed(f"peer {index}, epoch {epoch}: all peers should have stepped together, got {decision}")
            used = replica.take_used()
            self._used[epoch, index] = used.loss, used.sample_ids


def _simulated(link: Link) -> simulated.Link:
    return simulated.Link(
        up_bytes_per_s=link.up_mbit_per_s * BYTES_PER_S,
        down_bytes_per_s=link.down_mbit_per_s * BYTES_PER_S,
        latency_s=link.delay_ms / 1e3,
    )


def _digest(replica: Replica) -> str:
    """Names the parameters' bytes."""
    digest = hashlib.sha256()
    for parameter in replica.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()
