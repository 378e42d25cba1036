#!/usr/bin/env python3
"""What it costs a backbone to hear many peers and to show them: processor time of a real one, as a share of one core.

The backbone is a process as an organiser starts it: directory, membership, signatures, metrics, dashboard. The peers
are real, too, as far as words go: each has a key, a libp2p daemon and a place in the directory of its own, keeps its
membership as a trainer does, and besides signs and stores a record each ``--every-s`` seconds; 0: only when a trainer
of a crowd does, each 8 s. They train in name only, so there are no rounds. ``--direct`` of them can be dialled and keep
a part of the directory; all others only dial, so what they say is kept by these and the backbone.

Measured for ``--seconds`` each: the backbone alone, with the peers, and with ``--pages`` pages open as well, which ask
as those of ``bench_dashboard.py``. The processor time of peers and pages does not count, but they push the backbone out
of a core's caches: ``--apart`` leaves the first core to it and its daemon, which is as near to a machine of its own as
one machine comes, and peers and pages have the others. Prints one JSON line.

    python scripts/bench_backbone.py [--peers 64] [--every-s 1.0] [--direct 0] [--pages 1] [--seconds 30]
        [--settle-s 20] [--apart]
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import uvloop
from bench_processes import BenchFailed, Child, Household, await_invite
from soak import Watched

from collab.concurrency import Background
from collab.net.base import Directory, Entry
from collab.net.startup import Started
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.membership import Membership
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.types import Lineage, Reachability, Role
from peers.join_options import Relay
from peers.places import DataDir
from peers.wiring import Reach, invite_from, start_from_invite

RUN = """\
run_id: heard
access: open
microbatch_size: 8
task: {name: image_classification, hidden_sizes: [32]}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 1000000000}
checkpoints: {every_epochs: 100, keep: 1}
"""
PAGES = Path(__file__).resolve().parent / "bench_dashboard.py"
PROCESSES = 4
"""In which the peers live."""
START_LIMIT_S = 300.0
"""For all peers: each costs a second or two of a core until it is there."""
SPEED = 12.0
"""Samples a second that each says to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured."""

    peers: int
    every_s: float
    direct: int
    pages: int
    seconds: float
    settle_s: float
    """Before each measurement: two heartbeats of a crowd, and what it costs to let peers in is over."""
    apart: bool
    """Whether the backbone has a core for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Peers that one process is."""

    invite: str
    folder: str
    names: list[str]
    direct: list[str]
    every_s: float


# -- the peers' processes ----------------------------------------------------------------------------------------------


class Counted:
    """A directory that knows how many records were taken, and how many were not."""

    def __init__(self, directory: Directory, counts: dict[str, int]) -> None:
        self._directory, self._counts = directory, counts

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        is_taken = False
        try:
            is_taken = await self._directory.store(key, subkey, value, expires_at=expires_at, timeout_s=timeout_s)
        finally:
            self._counts["stored" if is_taken else "not_stored"] += 1
        return is_taken

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        return await self._directory.get(key, timeout_s=timeout_s, fresh_until=fresh_until)


class Talker:
    """One peer, which says that it trains."""

    def __init__(self, name: str, started: Started, bundle: Bundle, counts: dict[str, int]) -> None:
        self._name, self._me = name, started.identity.peer_id
        self._can_be_dialled = started.verdict.reach is Reachability.DIRECT
        self._reach, self._fingerprint = started.verdict.reach, bundle.fingerprint
        ports = replace(started.ports, directory=Counted(started.ports.directory, counts))
        self._clock, self._since_s = ports.clock, ports.clock.now()
        self._at = (0, Lineage(""))
        self._board = ProgressBoard(ports, started.identity, bundle.fingerprint, Statutes(ports, bundle))
        self.membership = Membership(self._board, ports.clock, self.record)

    def record(self) -> PeerRecord:
        """Its word as of now."""
        epoch, lineage = self._at
        return PeerRecord(
            peer=self._me, fingerprint=self._fingerprint, name=self._name, role=Role.TRAINER,
            state=PeerState.TRAINING, said_at=self._clock.now(), can_be_dialled=self._can_be_dialled, epoch=epoch,
            lineage=lineage, samples=int(SPEED * (self._clock.now() - self._since_s)), samples_per_s=SPEED,
            microbatch_s=8 / SPEED, loss=2.5, reach=self._reach,
        )  # fmt: skip

    async def begin(self) -> None:
        """Stand where the backbone stands, so that nobody has anything to fetch."""
        while not self.membership.backbones():
            await self.membership.look()
        backbone = self.membership.backbones()[0]
        self._at = backbone.epoch, backbone.lineage
        await self.membership.report()

    async def speak(self, every_s: float) -> None:
        """Until cancelled; who falls behind leaves words out."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + random.uniform(0.0, every_s)
        while True:
            await asyncio.sleep(due_s - loop.time())
            await self._board.publish(self.record())
            due_s = max(due_s + every_s, loop.time())


async def be(company: Company) -> None:
    """So many peers, until the input ends; each line of it is answered with what was stored so far."""
    stop, loop, counts = asyncio.Event(), asyncio.get_running_loop(), {"stored": 0, "not_stored": 0}

    def listen() -> None:
        for _ in sys.stdin:
            print(json.dumps(counts), flush=True)
        loop.call_soon_threadsafe(stop.set)

    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Background())
        for name in company.names:
            reach = Reachability.DIRECT if name in company.direct else Reachability.CLIENT
            place = DataDir(Path(company.folder) / name)
            life = start_from_invite(invite_from(company.invite), place, Reach(asked_for=reach), Relay())
            started, bundle = await stack.enter_async_context(life)
            talker = Talker(name, started, bundle, counts)
            await talker.begin()
            tasks.create_task(talker.membership.keep_alive())
            if company.every_s:
                tasks.create_task(talker.speak(company.every_s))
        threading.Thread(target=listen, daemon=True).start()
        print(json.dumps({"is_there": len(company.names)}), flush=True)
        await stop.wait()
        os._exit(0)  # their daemons see that; nobody waits for goodbyes


# -- the measurement ---------------------------------------------------------------------------------------------------


class Bench:
    """A backbone that is looked at, and those who talk to it."""

    def __init__(self, setup: Setup, household: Household, folder: Path) -> None:
        self._setup, self._household, self._folder = setup, household, folder
        options = ("--json", "--track", "none", "--dashboard", "127.0.0.1:0")
        cores = sorted(os.sched_getaffinity(0))
        if setup.apart:
            os.sched_setaffinity(0, cores[:1])  # whoever is started inherits it
        self._invite, backbone = household.start_backbone(RUN, *options, is_fresh=True)
        if setup.apart:
            os.sched_setaffinity(0, cores[1:])
        await_invite(self._invite, backbone, START_LIMIT_S)
        self._watched = Watched(backbone, folder / "run")
        self._companies: list[Child] = []

    def measure(self) -> dict[str, Any]:
        """All of it."""
        figures: dict[str, Any] = {"alone": self._share()}
        self._gather()
        time.sleep(self._setup.settle_s)
        before, began_s = self._counts(), time.monotonic()
        figures["with_peers"] = self._share()
        words = ["--visit", self._watched.url, "--pages", str(self._setup.pages)]
        self._household.start([str(PAGES), *words], goodbye=signal.SIGTERM, is_fresh=True)
        time.sleep(self._setup.settle_s)
        figures["with_pages"] = self._share()
        after, seconds = self._counts(), time.monotonic() - began_s
        rates = {f"{name}_per_s": round((after[name] - before[name]) / seconds, 2) for name in after}
        return figures | rates | {"peers_seen": self._seen(), "load": os.getloadavg()[0]}

    def _gather(self) -> None:
        names = [f"peer-{number}" for number in range(self._setup.peers)]
        direct = names[: self._setup.direct]
        for part in range(PROCESSES):
            company = Company(
                invite=str(self._invite), folder=str(self._folder), names=names[part::PROCESSES], direct=direct,
                every_s=self._setup.every_s,
            )  # fmt: skip
            words = [str(Path(__file__).resolve()), "--be", json.dumps(asdict(company))]
            self._companies.append(self._household.start(words, is_fresh=True))
        for child in self._companies:
            child.answer(START_LIMIT_S)

    def _counts(self) -> dict[str, int]:
        """What all peers have said so far."""
        for child in self._companies:
            child.say("how many")
        told = [child.answer(START_LIMIT_S) for child in self._companies]
        return {name: sum(one[name] for one in told) for name in told[0]}

    def _seen(self) -> int:
        """Peers that the dashboard counts, the backbone itself among them."""
        answer = httpx.get(f"{self._watched.url}api/v1/state", timeout=START_LIMIT_S, trust_env=False)
        return int(answer.json()["now"]["peers"])

    def _share(self) -> dict[str, float]:
        """Of one core, that the backbone and its daemon take; and what goes over its line, both ways together."""
        first, moved_before = self._watched.read(), self._watched.daemon_bytes()
        time.sleep(self._setup.seconds)
        last, moved_after = self._watched.read(), self._watched.daemon_bytes()
        seconds = last.at_s - first.at_s
        return {
            "backbone": round((last.cpu_s - first.cpu_s) / seconds, 4),
            "daemon": round((last.daemon_cpu_s - first.daemon_cpu_s) / seconds, 4),
            "mbit_per_s": round((moved_after - moved_before) * 8 / 1e6 / seconds, 3),
        }


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--direct", type=int, default=0)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle-s", type=float, default=20.0)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--be", default="", help=argparse.SUPPRESS)
    chosen = vars(parser.parse_args())
    if company := chosen.pop("be"):
        uvloop.run(be(Company(**json.loads(company))))
        return 0
    setup = Setup(**chosen)
    if setup.apart and len(os.sched_getaffinity(0)) == 1:
        parser.error("--apart needs a second core, for the peers")
    try:
        with tempfile.TemporaryDirectory(prefix="collab-backbone-") as directory:
            folder = Path(directory)
            with closing(Household(folder)) as household:
                figures = Bench(setup, household, folder).measure()
    except BenchFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"bench": "backbone", **asdict(setup), **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
