"""What became of every block: read from the events of a simulated swarm."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from collab.config import parse_run
from collab.data.blocks import BlockPlan
from collab.data.lease_board import LeaseBoard, Said
from collab.metrics.records import BlockTrained, DataCovered, EpochFinished, SamplesUsed
from collab.ports import Ports
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.access import Papers
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.records import PeerRecord, PeerState
from collab.tasks.registry import build_task, make_assets
from collab.types import PeerId
from tests.simulation.swarm import SimSwarm

SAMPLES = 1500
"""Of the digits, without those held out."""
BLOCKS = -(-SAMPLES // 8)
"""Of a pass over them, a microbatch each."""
REISSUED_S = 120.0
"""Between the last sign of a peer that dies or freezes and the moment when blocks that it held, or whose training it
could not tell, have been trained again: a lease, and the block itself."""
SLOW = 4.0
"""Samples per second of a trainer: a pass of five takes over a minute, a block of eight samples two seconds."""


def slow_swarm(tmp_path: Path, number: int, *, seed: int = 1, until: int = 60, target: int = 64) -> SimSwarm:
    """A backbone and trainers for whom a pass over the digits is long."""
    swarm = SimSwarm(tmp_path, seed=seed, until=until, target=target, every=20)
    swarm.add_backbone()
    for _ in range(number):
        swarm.add_trainer(samples_per_s=SLOW)
    return swarm


def trained_blocks(swarm: SimSwarm) -> dict[tuple[int, int], list[tuple[float, SimPeer]]]:
    """When and by whom each (pass, block) was trained, in order."""
    blocks = defaultdict(list)
    for peer in swarm.world.peers:
        for event in swarm.events(peer, BlockTrained):
            blocks[event.pass_number, event.block].append((event.at_s, peer))
    return {block: sorted(uses, key=lambda use: use[0]) for block, uses in sorted(blocks.items())}


def used_samples(swarm: SimSwarm) -> dict[int, int]:
    """How often each sample went into a step."""
    counts: dict[int, int] = defaultdict(int)
    for peer in swarm.world.peers:
        for event in peer.events:
            if isinstance(event, EpochFinished | SamplesUsed):
                for sample_id in event.sample_ids:
                    counts[sample_id] += 1
    return counts


@dataclass(slots=True)
class History:
    """Peers that come, leave, die, freeze and come back, at random moments of one seed."""

    swarm: SimSwarm
    killed: dict[int, list[float]]
    """When (virtual seconds) each peer was killed or frozen."""
    left: dict[int, float]
    """When each peer was asked to leave."""

    def run(self, until_s: float) -> None:
        """Let it happen."""
        with self.swarm.world as world:
            world.run(until_s=until_s)


def random_history(tmp_path: Path, seed: int, *, peers: int, faults: int, span_s: float) -> History:
    """``peers`` trainers at first; within ``span_s`` so many of them die, freeze or leave, and as many come."""
    rng = random.Random(f"history {seed}")
    swarm = slow_swarm(tmp_path, peers, seed=seed, until=10_000)
    history = History(swarm, defaultdict(list), {})
    world = swarm.world
    victims = rng.sample(range(1, peers + 1), faults)
    for victim in victims:
        at_s = rng.uniform(15.0, span_s)
        match rng.choice(("die", "die and come back", "freeze", "leave")):
            case "die":
                swarm.churn.fail_at(peer=victim, time_s=at_s)
                history.killed[victim].append(at_s)
            case "die and come back":
                swarm.churn.fail_at(peer=victim, time_s=at_s, restart_after_s=rng.uniform(2.0, 20.0))
                history.killed[victim].append(at_s)
            case "freeze":
                swarm.churn.freeze_at(peer=victim, time_s=at_s, for_s=rng.uniform(5.0, 60.0))
                history.killed[victim].append(at_s)
            case "leave":
                world.call_at(at_s, lambda index=victim: swarm.ask_to_leave(world.peers[index]))
                history.left[victim] = at_s
        world.call_at(rng.uniform(10.0, span_s), lambda: swarm.add_trainer(samples_per_s=rng.choice((SLOW, 3 * SLOW))))
    return history


def unexplained(history: History) -> list[tuple[tuple[int, int], list[tuple[float, int]]]]:
    """Blocks that were trained twice though nobody who had trained them died or froze just before or after."""
    found = []
    for block, uses in trained_blocks(history.swarm).items():
        doers = [(at_s - EPOCH_S, peer.index) for at_s, peer in uses]
        is_explained = any(abs(at_s - dead_s) < REISSUED_S for at_s, index in doers for dead_s in history.killed[index])
        if len(doers) > 1 and not is_explained:
            found.append((block, doers))
    return found


def complete_passes(swarm: SimSwarm) -> set[int]:
    """Passes of which anybody reported that all is trained."""
    reports = [event for peer in swarm.world.peers for event in swarm.events(peer, DataCovered)]
    return {event.pass_number for event in reports if event.is_complete}


class Forger:
    """A peer that says it is a fast trainer, leases everything for ever, has trained everything, and trains nothing."""

    def __init__(self, swarm: SimSwarm, papers: Papers | None = None) -> None:
        self._swarm, self._papers = swarm, papers
        self.number_said = 0
        self.peer_id = PeerId("")

    def add(self, *, says_at_s: tuple[float, ...]) -> None:
        """It speaks at these moments, about all pages of the pass that the others are in."""
        index = len(self._swarm.world.peers)

        async def main(ports: Ports) -> None:
            identity, fingerprint = self._swarm.world.peers[index].identity, self._swarm.bundle.fingerprint
            self.peer_id = identity.peer_id
            if self._papers is not None:
                ports.entrance.credential = self._papers.credentials(identity.peer_id, ports.clock.now).current
            board = ProgressBoard(ports, identity, fingerprint)
            began_s, moments = ports.clock.monotonic(), list(says_at_s)
            while True:
                view = await board.refresh()
                known = [record for record in view.records if record.data and record.peer != identity.peer_id]
                if known:
                    theirs = max(known, key=lambda record: record.data_pass)
                    lie = {"peer": identity.peer_id, "state": PeerState.SYNCING, "samples_per_s": 1e9}
                    mine = {"said_at": ports.clock.now(), "credential": ports.entrance.credential()}
                    await board.publish(replace(theirs, **lie, **mine))  # type: ignore[arg-type]
                    if moments and ports.clock.monotonic() - began_s >= moments[0]:
                        moments.pop(0)
                        await self._forge(ports, fingerprint, theirs)
                await asyncio.sleep(3.0)

        self._swarm.world.add_peer(main, name="forger")

    async def _forge(self, ports: Ports, fingerprint: str, theirs: PeerRecord) -> None:
        plan = BlockPlan.read(theirs.data, seed=self._swarm.bundle.run.seed, microbatch_size=8)
        board = LeaseBoard(ports, fingerprint, plan)
        for pass_number in range(max(theirs.data_pass - 1, 0), theirs.data_pass + 2):
            for page in range(plan.num_pages):
                everything = plan.full_page(page)
                await board.say((pass_number, page), Said(held=everything, trained=everything, life_s=1e12))
                self.number_said += 1


SITES = """\
run_id: sites
seed: 5
microbatch_size: 8
until_epoch: 6
task:
  name: causal_lm
  model: {model_type: gpt2, n_layer: 1, n_head: 1, n_embd: 16, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}
  sequence_length: 16
  vocab_size: 300
  eval_samples: 2
  data: {source: files, path: texts.txt, placement: PLACEMENT}
strategy: {name: dedloc, target_batch_size: 64}
averaging: {compression: exact}
"""


def swarm_of_sites(tmp_path: Path, number: int, *, placement: str) -> SimSwarm:
    """Trainers that have texts of their own under the same path."""
    swarm = SimSwarm(tmp_path)
    run = parse_run(SITES.replace("PLACEMENT", placement), origin="the test")
    cache = tmp_path / "cache"
    for site in range(number):
        folder = tmp_path / f"site-{site}"
        folder.mkdir()
        lines = [f"site {site} has its own sentence number {line}, and many more.\n" for line in range(12000)]
        (folder / "texts.txt").write_text("".join(lines))
    assets = make_assets(run, base_dir=tmp_path / "site-0", cache_dir=cache)
    swarm.bundle = Bundle(run, assets)
    tasks = [
        build_task(run, assets=assets, cache_dir=cache, peer_id="", base_dir=tmp_path / f"site-{site}")
        for site in range(number)
    ]
    swarm.task = tasks[0]
    swarm.add_backbone()
    for task in tasks:
        swarm.add_trainer(task=task)
    return swarm


STREAMED_SHARDS = 20


def swarm_of_streams(folder: Path, number: int, *, until: int) -> SimSwarm:
    """Trainers that stream one dataset of ``STREAMED_SHARDS`` shards, about 120 samples each.

    Args:
        folder: made for the dataset, in the working directory: what it is called decides who prefers which shards.
    """
    tmp_path = Path.cwd()
    folder.mkdir()
    texts = [f"sentence {index} of a dataset that nobody has at home" for index in range(150 * STREAMED_SHARDS)]
    pq.write_table(pa.table({"text": texts}), folder / "train.parquet", row_group_size=150)
    run_text = SITES.replace("source: files, path: texts.txt", f"source: hub, dataset: './{folder}'")
    run_text = run_text.replace("PLACEMENT", "shared").replace("until_epoch: 6", f"until_epoch: {until}")
    run = parse_run(run_text, origin="the test")
    swarm = SimSwarm(tmp_path)
    assets = make_assets(run, base_dir=tmp_path, cache_dir=tmp_path / "cache")
    swarm.bundle = Bundle(run, assets)
    tasks = [
        build_task(run, assets=assets, cache_dir=tmp_path / f"cache-{index}", peer_id="", base_dir=tmp_path)
        for index in range(number)
    ]
    swarm.task = tasks[0]
    swarm.add_backbone()
    for task in tasks:
        swarm.add_trainer(task=task, samples_per_s=2 * SLOW)
    return swarm
