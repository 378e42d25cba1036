#!/usr/bin/env python3
"""What it costs each peer to know its swarm, for swarms of different sizes.

    python scripts/bench_membership.py [--peers 10,100,1000] [--minutes 5] [--epoch-s 60] [--seed 0] [--json]
        [--leases [--pass-minutes 10]]

The peers run in virtual time: the code of real ones that speaks of itself and listens to others, without models. Two
backbones of the owner's are there, the others train; one in two hundred leaves every minute and another one comes.
Counted are the records and keys that a peer sends to the directory and gets from it, and, as a keeper of records, takes
from others and gives to them; each record has five keepers, as in hivemind's DHT, and who asks all of them gets five
answers. The messages by which a DHT finds its keepers are not in it. The same is done by peers that read everybody's
records each second (the baseline), for swarms of up to 100.

With ``--leases`` trainers lease blocks of data of which a pass takes all of them so many minutes; no baseline then.
"""

import argparse
import asyncio
import hashlib
import json
import platform
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a swarm in virtual time lives with the tests
sys.path.insert(0, str(Path(__file__).resolve().parent))

from membership_leases import LeasedData, lease_figures

from collab.config import parse_run
from collab.net.base import Directory, Entry
from collab.net.owned_records import SIGNATURE_BYTES
from collab.ports import Ports
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World
from collab.swarm import board as boards
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.types import Lineage, PeerId, Role

KEEPERS = 5
"""Of each key, as in hivemind."""
BASELINE_UP_TO = 100
LEASES = ".data."  # in keys of pages of blocks
WARM_UP_S = 60.0
"""Not counted: everybody comes."""
MEAN_SPEED = 12.2
"""Samples per second of a trainer, on average."""
BACKBONES, BACKBONES_UP_TO_TEN = 2, 1
OWNER = Identity.from_seed(b"o" * 32)
RUN = """\
run_id: many
access: open
seed: 1
microbatch_size: 8
until_epoch: 1000
task: {name: image_classification, hidden_sizes: [16]}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 100000}
checkpoints: {every_epochs: 100}
"""


class Meter:
    """Who has sent and got how many bytes."""

    def __init__(self) -> None:
        self.peers: list[PeerId] = []
        self.num_bytes: dict[PeerId, int] = {}
        self._keepers: dict[str, list[PeerId]] = {}
        self.of_leases: Counter[str] = Counter()  # reads, writes and entries of pages, and bytes

    def add(self, peer: PeerId) -> None:
        """A peer comes; it keeps records from now on."""
        self.peers.append(peer)
        self.num_bytes.setdefault(peer, 0)
        self._keepers.clear()

    def remove(self, peer: PeerId) -> None:
        """A peer is gone."""
        self.peers.remove(peer)
        self._keepers.clear()

    def note(self, peer: PeerId, key: str, num_bytes: int, keepers: int) -> None:
        """So much went between a peer and each of ``keepers`` keepers of a key."""
        if key not in self._keepers:
            self._keepers[key] = sorted(self.peers, key=lambda p: hashlib.sha256(f"{key}:{p}".encode()).digest())
        chosen = self._keepers[key][:KEEPERS]
        if keepers < len(chosen):  # the nearest to whoever asks
            chosen = sorted(chosen, key=lambda p: hashlib.sha256(f"{peer}:{p}".encode()).digest())[:keepers]
        for keeper in chosen:
            if keeper != peer:
                self.of_leases["bytes"] += 2 * num_bytes * (LEASES in key)
                self.num_bytes[peer] += num_bytes
                self.num_bytes[keeper] += num_bytes


class Metered:
    """A directory whose use is counted."""

    def __init__(self, directory: Directory, meter: Meter, me: PeerId) -> None:
        self._directory, self._meter, self._me = directory, meter, me

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        self._meter.note(self._me, key, len(key) + _size(subkey, value), KEEPERS)
        self._meter.of_leases["writes"] += LEASES in key
        return await self._directory.store(key, subkey, value, expires_at=expires_at, timeout_s=timeout_s)

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        found = await self._directory.get(key, timeout_s=timeout_s)
        is_one_enough = fresh_until is not None and any(entry.expires_at >= fresh_until for entry in found.values())
        size = len(key) + sum(_size(subkey, entry.value) for subkey, entry in found.items())
        self._meter.note(self._me, key, size, 1 if is_one_enough else KEEPERS)
        self._meter.of_leases["reads"] += LEASES in key
        self._meter.of_leases["entries"] += (LEASES in key) * len(found)
        return found


def _size(subkey: str, value: bytes) -> int:
    """With when it ends, and the owner's signature over that."""
    return len(subkey) + len(value) + 8 + SIGNATURE_BYTES


class Swarm:
    """Peers that know of each other, and train in name only: a step every ``epoch_s``, together."""

    def __init__(self, number: int, *, seed: int, epoch_s: float, pass_s: float | None = None) -> None:
        """With ``pass_s`` trainers lease data of which a pass takes all of them so long."""
        self.world, self.meter = World(seed), Meter()
        self.bundle = Bundle(parse_run(RUN, origin="the benchmark"), {}, OWNER.peer_id)
        self._epoch_s, self._rng = epoch_s, random.Random(seed)
        self._backbones = BACKBONES if number > 10 else BACKBONES_UP_TO_TEN
        self.members: dict[PeerId, Membership] = {}
        self._stops: dict[PeerId, asyncio.Event] = {}
        self.data: LeasedData | None = None
        if pass_s is not None:
            together = number * MEAN_SPEED
            self.data = LeasedData(self.bundle, samples=int(together * pass_s), target=int(together * epoch_s))
        for index in range(number):
            self._add(index < self._backbones)

    def _add(self, is_backbone: bool) -> None:
        index, role = len(self.world.peers), Role.BACKBONE if is_backbone else Role.TRAINER
        speed, said_s = self._rng.lognormvariate(2, 1), self._rng.uniform(0.5, 4.0)

        async def main(ports: Ports) -> None:
            me = ports.transport.peer_id
            ports = replace(ports, directory=Metered(ports.directory, self.meter, me))
            if is_backbone:
                key = Identity.from_seed(hashlib.sha256(me.encode()).digest())
                grant = Grant(
                    fingerprint=self.bundle.fingerprint, key=key.peer_id, person="backbone", devices=1,
                    expires_at=EPOCH_S + 1e9, role=Role.BACKBONE,
                )  # fmt: skip
                papers = Papers(grant=pack_grant(grant, OWNER), key=key)
                ports.entrance.credential = papers.credentials(me, ports.clock.now).current
            self.meter.add(me)
            try:
                await self._live(ports, self.world.peers[index].identity, role, speed, said_s)
            finally:
                self.meter.remove(me)

        self.world.add_peer(main)

    async def _live(self, ports: Ports, identity: Identity, role: Role, speed: float, said_s: float) -> None:
        me, clock = ports.transport.peer_id, ports.clock
        stop, is_leaving = self._stops.setdefault(me, asyncio.Event()), False

        def record() -> PeerRecord:
            epoch, since_s = divmod(clock.now() - EPOCH_S, self._epoch_s)
            trains = role is Role.TRAINER
            state = PeerState.LEFT if is_leaving else PeerState.TRAINING if trains else PeerState.SERVING
            return PeerRecord(
                peer=me, fingerprint=self.bundle.fingerprint, name=f"peer {me[-6:]}", role=role, state=state,
                said_at=clock.now(), can_be_dialled=True, epoch=int(epoch), lineage=Lineage(f"{int(epoch):064}"),
                samples=int(since_s * speed) if trains else 0, samples_per_s=speed if trains else 0.0,
                microbatch_s=1.0, loss=2.5, total_samples=int(epoch * speed * self._epoch_s),
                checkpoint_epoch=-1 if trains else int(epoch),
                data=(self.data.plan.data if self.data else "samples.100000." + "d" * 32) if trains else "",
                data_pass=self.data.newest(me) if self.data else 0,
            )  # fmt: skip

        statutes = Statutes(ports, self.bundle)
        board = ProgressBoard(ports, identity, self.bundle.fingerprint, statutes)
        self.members[me] = membership = Membership(board, clock, record)
        await membership.report()
        work = [membership.keep_alive(), self._train(membership, role, said_s)]
        if self.data is not None:
            trains = role is Role.TRAINER
            work.append(self.data.train(ports, membership, speed) if trains else self.data.keep(ports, membership))
        tasks = [asyncio.create_task(each) for each in work]
        stopped = asyncio.create_task(stop.wait())
        ended, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # of work that ended by itself: why
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_leaving = True
        await board.publish(record())
        del self.members[me]

    async def _train(self, membership: Membership, role: Role, said_s: float) -> None:
        """A trainer has something to tell after each microbatch; a backbone leads a round at the end of each epoch."""
        while True:
            if role is Role.BACKBONE:
                await asyncio.sleep(self._epoch_s)
                record = membership.our_record()
                await membership.roster(record.epoch, record.lineage)
            else:
                await asyncio.sleep(said_s)
                membership.speak()

    def run(self, minutes: float) -> dict[str, float]:
        """Bytes per second of each peer, and how well they know each other, over so many minutes after warming up."""
        if self.data is not None:
            for step in range(1, int((WARM_UP_S + 60.0 * minutes) / self._epoch_s) + 1):
                self.world.call_at(step * self._epoch_s, self.data.commit)
        with self.world as world:
            world.run(until_s=WARM_UP_S)
            self.meter.of_leases.clear()
            before = dict(self.meter.num_bytes)
            for minute in range(int(minutes)):
                self._change_members()
                world.run(until_s=WARM_UP_S + 60.0 * (minute + 1))
            now = {peer: sent - before.get(peer, 0) for peer, sent in self.meter.num_bytes.items()}
            stayed = [now[peer] / (60.0 * minutes) for peer in before if peer in self.members]
            figures = self._figures(stayed)
            if self.data is not None:
                figures |= lease_figures(self.meter.of_leases, len(self.members), 60.0 * minutes)
                figures |= self.data.figures(WARM_UP_S + 60.0 * minutes)
            return figures

    def _change_members(self) -> None:
        trainers = [peer for peer in self.members if self.members[peer].our_record().role is Role.TRAINER]
        for peer in self._rng.sample(trainers, max(len(trainers) // 200, 1)):
            self._stops[peer].set()
            self._add(False)

    def _figures(self, rates: list[float]) -> dict[str, float]:
        lag, wrong = [], 0
        for membership in self.members.values():
            record, seen = membership.our_record(), membership.view
            consensus = seen.consensus()
            lag.append(record.epoch - consensus[0] if consensus else record.epoch)
            wrong += abs(seen.num_trainers - (len(self.members) - self._backbones)) > 0.05 * len(self.members)
        backbones = [self.meter.num_bytes[p] for p, m in self.members.items() if m.our_record().role is Role.BACKBONE]
        return {
            "bytes_per_s_mean": round(statistics.mean(rates)),
            "bytes_per_s_median": round(statistics.median(rates)),
            "bytes_per_s_most": round(max(rates)),
            "bytes_of_a_backbone": max(backbones),
            "epochs_behind_most": max(lag),
            "peers_whose_count_is_off_by_a_twentieth": wrong,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="10,100,1000")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--epoch-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--leases", action="store_true", help="trainers lease blocks of one dataset")
    parser.add_argument("--pass-minutes", type=float, default=10.0, help="that a pass takes, with --leases")
    options = parser.parse_args()
    swarms: list[dict[str, Any]] = []
    for number in (int(text) for text in options.peers.split(",")):
        pass_s = 60.0 * options.pass_minutes if options.leases else None
        made = Swarm(number, seed=options.seed, epoch_s=options.epoch_s, pass_s=pass_s)
        figures = {"collab": made.run(options.minutes)}
        if number <= BASELINE_UP_TO and not options.leases:
            with patch.object(boards, "CROWD_FROM", 10**9), patch.object(boards, "ALONE_BYTES_PER_S", 1e12):
                figures["all_records_each_second"] = Swarm(
                    number, seed=options.seed, epoch_s=options.epoch_s
                ).run(options.minutes)  # fmt: skip
        swarms.append({"peers": number, **figures})
        if not options.json:
            print(json.dumps(swarms[-1]), flush=True)
    setup = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "machine": platform.machine(), "seed": options.seed,
        "virtual_minutes": options.minutes, "epoch_s": options.epoch_s, "keepers": KEEPERS, "backbones": BACKBONES,
        "pass_minutes": options.pass_minutes if options.leases else None,
    }  # fmt: skip
    print(json.dumps({"setup": setup, "swarms": swarms}))


if __name__ == "__main__":
    main()
