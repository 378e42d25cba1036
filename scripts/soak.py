#!/usr/bin/env python3
"""A backbone as a real process among trainers that come and go: does anything of it grow?

When all have come the time begins. Every ``--churn-s`` seconds on average a trainer drawn at random is killed or asked
to leave, and another one takes its place at once: a stranger, or the same one with its directory. Microbatches are
paced, so that more trainers fit a machine than it has cores: 64 of them two cores with ``--pace-s 20 --step-s 30``. The
backbone's memory, processor time, descriptors, tasks, threads and files are read every ``--every-s`` seconds; what is
read before ``--warm-up-s`` is left out. At the end everybody goes, and what the backbone holds then is read once more.
It has the environment that ``deploy/`` gives it.
Prints one JSON line.

    python scripts/soak.py [--trainers 8] [--minutes 30] [--churn-s 15] [--warm-up-s 120] [--seed 0] \
        [--pace-s 0.25] [--step-s 2]
"""

import argparse
import json
import math
import os
import queue
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
from bench_processes import BenchFailed, Child, Household, await_invite, family
from soak_figures import Reading, descriptors_of, figures, moved_by, rss_of, size_of
from storm_peer import Assignment
from vcasgd_live import Client, Told

RUN = """\
run_id: soak
seed: {seed}
microbatch_size: 8
task: {{name: image_classification, hidden_sizes: [32]}}
optimizer: {{name: sgd, learning_rate: 0.1}}
strategy: {{name: dedloc, target_batch_size: {target}}}
checkpoints: {{every_epochs: 10, keep: 2}}
"""
DEPLOYED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""What ``deploy/`` has in a backbone's environment that counts here."""
MICROBATCH = 8
START_LIMIT_S = 120.0
ARRIVING = 4
"""Trainers that start at a time: 64 libp2p daemons at once take longer to start than anybody waits for one."""
PULSE_S = 0.1
HELD = {"tasks": 3, "descriptors": 0, "daemon_descriptors": 0}
"""What peers that are there have a backbone hold, and peers that are gone must not; and how much more than before
anybody came stays: the directory's refresher, and the stream over which it was in a round that it led itself, which it
keeps for the next one: a handler, and what that waits for.
"""
SETTLE_S = 120.0
"""Twice as long as any record of a peer lives, and as a silent stream is kept: machines stand still at times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is run."""

    trainers: int
    minutes: float
    churn_s: float
    warm_up_s: float
    every_s: float
    seed: int
    pace_s: float
    """That a microbatch takes."""
    step_s: float
    """That a step takes: by itself as short as in a lively run, with as many rounds, checkpoints and records."""

    def run_text(self) -> str:
        """The run file: without an end."""
        target = round(self.trainers * MICROBATCH * self.step_s / self.pace_s)
        return RUN.format(seed=self.seed, target=max(target, MICROBATCH))


class Company:
    """The trainers, of which now and then one goes and another one comes."""

    def __init__(self, setup: Setup, folder: Path, invite: Path) -> None:
        self._setup, self._folder, self._invite = setup, folder, invite
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._dice = random.Random(setup.seed)
        self._names = [f"trainer-{slot}" for slot in range(setup.trainers)]
        self._here: list[Client] = []
        self._gone: list[Client] = []
        self._due = list(range(setup.trainers))
        """Places that nobody has taken yet."""
        self._arriving: set[int] = set()
        self._next_s = math.inf
        self.counts: Counter[str] = Counter()
        """What became of trainers."""

    @property
    def all_have_come(self) -> bool:
        """Whether nobody of the first ones is still on the way; later it does not matter."""
        return not self._due and not self._arriving

    def turn(self) -> None:
        """Do what is due: everybody comes, some at a time, then now and then one goes."""
        while self._due and len(self._arriving) < ARRIVING:
            slot = self._due.pop(0)
            self._arriving.add(slot)
            self._here.append(self._started(slot))
        while not self._told.empty():
            told = self._told.get()
            if told.event["event"] == "EpochFinished":
                self.counts["steps_of_trainers"] += 1
            if told.event["event"] == "StateFetched":
                self._arriving.discard(told.client.place)
                self.counts["arrived"] += 1
            if told.event["event"] == "Gone" and told.client in self._here:
                tail = Path(told.client.log).read_text(errors="replace")[-2000:]
                raise BenchFailed(f"a trainer ended by itself; the end of its log:\n{tail}")
        if math.isinf(self._next_s) and self.all_have_come:
            self._next_s = time.monotonic() + self._dice.expovariate(1 / self._setup.churn_s)
        if time.monotonic() >= self._next_s:
            self._next_s += self._dice.expovariate(1 / self._setup.churn_s)
            self._replace(self._dice.randrange(self._setup.trainers))

    def _replace(self, slot: int) -> None:
        client, is_killed = self._here[slot], self._dice.random() < 0.5
        self._gone.append(client)
        if is_killed:
            client.kill()
        else:
            client.process.send_signal(signal.SIGTERM)
        self.counts["killed" if is_killed else "left"] += 1
        if self._dice.random() < 0.5 and is_killed:
            client.process.wait()  # its directory is free then
            self.counts["came_back"] += 1
        else:
            self.counts["strangers"] += 1
            self._names[slot] = f"trainer-{slot}.{self.counts.total()}"
        self._here[slot] = self._started(slot)

    def _started(self, slot: int) -> Client:
        name = self._names[slot]
        work = Assignment(
            invite=str(self._invite),
            name=name,
            data_dir=str(self._folder / name),
            pace_s=self._setup.pace_s,
            microbatch_size=MICROBATCH,
        )
        return Client(slot, work, 0.0, self._told)

    def close(self) -> None:
        """Nobody is there any more."""
        for client in (*self._here, *self._gone):
            client.close()


class Watched:
    """A backbone that is looked at from outside."""

    def __init__(self, child: Child, directory: Path) -> None:
        self._child, self._directory = child, directory
        self.epoch = -1
        self.rounds = dict.fromkeys(("committed", "aborted"), 0)
        self.reasons: Counter[str] = Counter()
        """Of aborted rounds."""
        self.contributors: list[int] = []
        """To committed rounds."""
        self.url = self._find_url()

    def _find_url(self) -> str:
        give_up_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < give_up_s:
            for event in self._heard():
                if event["event"] == "DashboardServed":
                    return str(event["url"])
            time.sleep(PULSE_S)
        raise BenchFailed(f"the backbone shows nothing; the end of its log:\n{self._child.log_tail()}")

    def _heard(self) -> list[dict[str, Any]]:
        if self._child.process.poll() is not None:
            raise BenchFailed(f"the backbone has ended; the end of its log:\n{self._child.log_tail()}")
        events = self._child.heard()
        self.epoch = max([self.epoch, *(event["epoch"] for event in events if event["event"] == "SwarmReport")])
        for ended in (event for event in events if event["event"] == "RoundEnded"):
            self.rounds["committed" if ended["committed"] else "aborted"] += 1
            if ended["committed"]:
                self.contributors.append(ended["contributors"])
            else:
                self.reasons[ended["reason"]] += 1
        return events

    def _daemons(self) -> list[int]:
        pid = self._child.process.pid
        return [one.pid for one in family([pid]) if one.pid != pid]

    def daemon_bytes(self) -> int:
        """That went over its line so far, both ways together."""
        return sum(map(moved_by, self._daemons()))

    def read(self) -> Reading:
        """One look."""
        self._heard()
        answer = httpx.get(f"{self.url}metrics", timeout=START_LIMIT_S, trust_env=False)
        lines = [line.split() for line in answer.text.splitlines() if not line.startswith("#")]
        told = {words[0]: float(words[1]) for words in lines if len(words) == 2}
        pid, daemons = self._child.process.pid, self._daemons()
        cpu_s = {seen.pid: seconds for seen, seconds in family([pid]).items()}
        place = self._directory / "backbone"
        return Reading(
            at_s=time.monotonic(),
            cpu_s=cpu_s.get(pid, 0.0),
            daemon_cpu_s=sum(cpu_s[one] for one in daemons),
            rss_bytes=rss_of(pid),
            daemon_rss_bytes=sum(map(rss_of, daemons)),
            descriptors=told["process_open_fds"],
            daemon_descriptors=sum(map(descriptors_of, daemons)),
            tasks=told["collab_tasks"],
            threads=told["collab_threads"],
            collections=told['python_gc_collections_total{generation="2"}'],
            database_bytes=size_of(*(place / f"metrics.sqlite{end}" for end in ("", "-wal", "-shm"))),
            log_bytes=size_of(place / "metrics.jsonl"),
        )


def soak(setup: Setup) -> dict[str, Any]:
    """Run it, and say what was seen."""
    os.environ |= DEPLOYED
    with tempfile.TemporaryDirectory(prefix="collab-soak-") as directory:
        folder = Path(directory)
        with closing(Household(folder)) as household:
            options = ("--json", "--track", "none", "--dashboard", "127.0.0.1:0")
            invite, child = household.start_backbone(setup.run_text(), *options, is_fresh=True)
            await_invite(invite, child, START_LIMIT_S)
            watched = Watched(child, folder / "run")
            alone = watched.read()
            with closing(Company(setup, folder, invite)) as company:
                readings = _observed(setup, watched, company)
            left = _settled(watched, alone)
            warm = [one for one in readings if one.at_s >= readings[0].at_s + setup.warm_up_s]
            return {
                "setup": asdict(setup),
                "seconds": round(readings[-1].at_s - readings[0].at_s, 1),
                "readings": len(warm),
                "epochs": watched.epoch,
                "rounds": watched.rounds,
                "reasons": watched.reasons,
                "contributors": statistics.fmean(watched.contributors or [0]),
                **company.counts,
                "alone_before": _held(alone),
                "alone_after": _held(left),
                "is_settled": all(_held(left)[name] <= _held(alone)[name] + more for name, more in HELD.items()),
                "settled_s": round(left.at_s - readings[-1].at_s, 1),
                **figures(warm),
            }


def _held(reading: Reading) -> dict[str, float]:
    return {name: getattr(reading, name) for name in HELD}


def _settled(watched: Watched, before: Reading) -> Reading:
    """When nobody is there any more, and the backbone holds nothing of theirs; at most after ``SETTLE_S``."""
    give_up_s = time.monotonic() + SETTLE_S
    while True:
        reading = watched.read()
        most = {name: getattr(before, name) + more for name, more in HELD.items()}
        if all(getattr(reading, name) <= most[name] for name in HELD) or reading.at_s > give_up_s:
            return reading
        time.sleep(1.0)


def _observed(setup: Setup, watched: Watched, company: Company) -> list[Reading]:
    give_up_s = time.monotonic() + START_LIMIT_S * (1 + setup.trainers / ARRIVING)
    while not company.all_have_come:
        if time.monotonic() > give_up_s:
            raise BenchFailed(f"not everybody came: {company.counts['arrived']} of {setup.trainers} trainers")
        company.turn()
        time.sleep(PULSE_S)
    readings = [watched.read()]
    until_s = readings[0].at_s + 60.0 * setup.minutes
    while time.monotonic() < until_s:
        company.turn()
        if time.monotonic() >= readings[-1].at_s + setup.every_s:
            readings.append(watched.read())
        time.sleep(PULSE_S)
    return readings


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--churn-s", type=float, default=15.0)
    parser.add_argument("--warm-up-s", type=float, default=120.0)
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace-s", type=float, default=0.25)
    parser.add_argument("--step-s", type=float, default=2.0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print(json.dumps(soak(Setup(**vars(parser.parse_args())))))
    except BenchFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
