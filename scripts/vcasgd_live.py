"""Preemptions with real kills: a backbone and clients as processes on loopback, some of them killed in their units.

Units are paced, so that more clients fit a machine than it has cores. Clients are forked from a process that has loaded
everything: loading takes longer than a unit.
"""

import heapq
import json
import math
import queue
import random
import signal
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed, Household, await_invite
from forked_process import ForkedProcess
from storm_peer import Assignment, live, own_output

from collab.fleet_cost import Fleet, compare
from peers.process import run_peer

RUN = """\
run_id: preempted
seed: {seed}
microbatch_size: {microbatch}
until_epoch: {units}
task: {{name: image_classification, hidden_sizes: [32]}}
optimizer: {{name: sgd, learning_rate: 0.5}}
strategy: {{name: vc_asgd, shards: {shards}, first_lease_s: {lease_s}}}
checkpoints: {{every_epochs: {shards}, keep: 1}}
"""
MICROBATCHES = 3
"""Of a unit."""
PASSES = 2
NUM_SAMPLES = 1500
SLOWEST = 3.0
"""A lease lasts so many times what the slowest unit of late has taken."""
EARLIEST, LATEST = 0.1, 0.8
"""Share of a unit after which its client is killed, at random between these."""
START_LIMIT_S, END_LIMIT_S = 120.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One fleet that works through its units."""

    places: int
    """Clients at a time."""
    turns: int
    """Units for each, n."""
    unit_s: float
    preemption: float
    """Probability that a unit's client is killed in it, p."""
    waits: bool
    """Whether a killed client is replaced when its unit's lease is over, as the formula has it; else at once."""
    seed: int

    @property
    def units(self) -> int:
        """Of the whole run, each counted once."""
        return self.shards * PASSES

    @property
    def shards(self) -> int:
        """Of a pass."""
        return self.places * self.turns // PASSES

    @property
    def microbatch(self) -> int:
        """Samples, so that a unit has ``MICROBATCHES``."""
        return math.ceil(math.ceil(NUM_SAMPLES / self.shards) / MICROBATCHES)

    def run_text(self) -> str:
        """The run file."""
        return RUN.format(
            seed=self.seed,
            microbatch=self.microbatch,
            units=self.units,
            shards=self.shards,
            lease_s=SLOWEST * self.unit_s,
        )


class Client:
    """One client process; it joins at a moment, and tells what happens."""

    def __init__(self, place: int, work: Assignment, begins_at_s: float, told: "queue.SimpleQueue[Told]") -> None:
        self.place, self.log, self._told = place, f"{work.data_dir}.log", told
        self.process = ForkedProcess(_be, (work, begins_at_s), Path(self.log), goodbye=signal.SIGKILL)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                self._told.put(Told(self, json.loads(line)))
        self._told.put(Told(self, {"event": "Gone"}))

    def kill(self) -> None:
        """As a preemption without a warning does."""
        self.process.kill()

    def close(self) -> None:
        """It is gone, and all that it said is read."""
        self.process.kill()
        self.process.wait(END_LIMIT_S)
        self._reader.join(END_LIMIT_S)
        self.process.stdout.close()


@dataclass(frozen=True, slots=True)
class Told:
    """What a client has said."""

    client: Client
    event: dict[str, Any]


def _be(work: Assignment, begins_at_s: float) -> None:
    """The whole life of a client's process."""
    out = own_output()
    time.sleep(max(begins_at_s - time.time(), 0.0))
    run_peer(lambda stop: live(work, out, stop))


@dataclass(slots=True)
class Place:
    """What became of one client after the other at one place of the fleet."""

    dice: random.Random
    client: Client
    began_s: float = math.nan
    """When it began its unit."""
    lease_s: float = math.nan
    preempted_s: float | None = None
    """When the unit began in which its last client was killed; None: another one has begun."""
    losses_s: list[float] = field(default_factory=list)
    """From the beginning of each unit with a kill to that of the place's next unit."""
    joins_at_s: float = math.nan
    """When the present client was allowed to join."""
    joining_s: list[float] = field(default_factory=list)
    """Of these losses: from when a new client was allowed to join to its first unit."""
    pushed_s: float = math.nan
    """When it last heard that a push counts."""


class FleetAtWork:
    """One course in processes."""

    def __init__(self, course: Course, household: Household, invite: Path) -> None:
        self._course, self._folder, self._invite = course, household.folder, invite
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._clients: list[Client] = []
        self._kills: list[tuple[float, int, float]] = []
        """When, at which place, in the unit that began when."""
        self.leases_s: list[float] = []
        """Of the units in which a client was killed."""
        self.unit_s: list[float] = []
        """From the beginning of a unit to the word that its push counts."""
        self.began_s = math.inf
        self._places = [
            Place(random.Random(f"{course.seed} {number}"), self._start(number, 0.0)) for number in range(course.places)
        ]

    @property
    def lost_s(self) -> list[float]:
        """What each place lost; one that waited when the run was over lost what was left of it."""
        tails = [self.ended_s - p.preempted_s if p.preempted_s is not None else 0.0 for p in self._places]
        return [sum(place.losses_s) + max(tail, 0.0) for place, tail in zip(self._places, tails, strict=True)]

    @property
    def joining_s(self) -> list[float]:
        """What of this each place lost to new clients that joined."""
        return [sum(place.joining_s) for place in self._places]

    @property
    def ended_s(self) -> float:
        """When the last push was heard to count."""
        return max(place.pushed_s for place in self._places if not math.isnan(place.pushed_s))

    def run(self) -> None:
        """Until every unit is done.

        Raises:
            BenchFailed: a client ended that nobody has killed, or it takes much too long.
        """
        give_up_s = time.time() + START_LIMIT_S + 20 * self._course.turns * self._course.unit_s
        over: set[int] = set()
        while len(over) < self._course.places:
            if time.time() > give_up_s:
                raise BenchFailed(f"the fleet is not done: {len(self.unit_s)} of {self._course.units} units")
            try:
                told = self._told.get(timeout=max(min(self._next_kill_s() - time.time(), 1.0), 0.0))
            except queue.Empty:
                pass
            else:
                self._note(told, over)
            self._kill_who_is_due()

    def close(self) -> None:
        """Nobody is left."""
        for client in self._clients:
            client.close()

    def _start(self, number: int, begins_at_s: float) -> Client:
        name = f"client-{number}-{len(self._clients)}"
        data_dir, pace_s = str(self._folder / name), self._course.unit_s / MICROBATCHES
        microbatch, invite = self._course.microbatch, str(self._invite)
        work = Assignment(invite=invite, name=name, data_dir=data_dir, pace_s=pace_s, microbatch_size=microbatch)
        client = Client(number, work, begins_at_s, self._told)
        self._clients.append(client)
        return client

    def _note(self, told: Told, over: set[int]) -> None:
        place, event = self._places[told.client.place], told.event
        if told.client is not place.client:
            return  # it is dead
        if event["event"] == "UnitBegun":
            self._begin(told.client.place, event)
        elif event["event"] == "EpochFinished":
            place.pushed_s = event["at_s"]
            self.unit_s.append(event["at_s"] - place.began_s)
        elif event["event"] == "Ending":
            over.add(told.client.place)
        elif event["event"] == "Gone" and told.client.place not in over:
            said = "\n".join(Path(told.client.log).read_text(errors="replace").splitlines()[-20:])
            raise BenchFailed(f"a client ended that nobody has killed; the end of its log:\n{said}")

    def _begin(self, number: int, event: dict[str, Any]) -> None:
        """A place begins a unit: is its client killed in it?"""
        place, now_s = self._places[number], event["at_s"]
        self.began_s = min(self.began_s, now_s)
        if place.preempted_s is not None:
            place.losses_s.append(now_s - place.preempted_s)
            place.joining_s.append(now_s - place.joins_at_s)
            place.preempted_s = None
        place.began_s, place.lease_s = now_s, event["lease_s"]
        is_hit, share = place.dice.random() < self._course.preemption, place.dice.uniform(EARLIEST, LATEST)
        if is_hit:
            heapq.heappush(self._kills, (now_s + share * self._course.unit_s, number, now_s))

    def _next_kill_s(self) -> float:
        return self._kills[0][0] if self._kills else math.inf

    def _kill_who_is_due(self) -> None:
        while self._next_kill_s() <= time.time():
            _, number, began_s = heapq.heappop(self._kills)
            place = self._places[number]
            place.client.kill()
            place.preempted_s = began_s
            self.leases_s.append(place.lease_s)
            place.joins_at_s = began_s + place.lease_s if self._course.waits else time.time()
            place.client = self._start(number, place.joins_at_s)


def work_through(course: Course) -> dict[str, Any]:
    """One course, from start to end; every unit is in the parameters once, or it raises.

    Raises:
        BenchFailed: it did not come to its end, or a unit is missing.
    """
    with tempfile.TemporaryDirectory(prefix="collab-preempted-") as folder:
        household = Household(Path(folder))
        fleet = None
        try:
            invite, backbone = household.start_backbone(course.run_text(), "--json")
            await_invite(invite, backbone, START_LIMIT_S)
            fleet = FleetAtWork(course, household, invite)
            fleet.run()
            done = _num_done(Path(folder) / "run" / "backbone" / "parameters.sqlite")
        finally:
            if fleet is not None:
                fleet.close()
            household.close()
    if done != course.units:
        raise BenchFailed(f"{done} of {course.units} units are in the parameters")
    return {
        "p": course.preemption,
        "replaced": "after the time-out" if course.waits else "at once",
        "units": course.units,
        "kills": len(fleet.leases_s),
        "time_out_s": round(statistics.fmean(fleet.leases_s), 2) if fleet.leases_s else None,
        "unit_s": round(statistics.median(fleet.unit_s), 3),
        "lost_s": round(statistics.fmean(fleet.lost_s), 1),
        "joining_s": round(statistics.fmean(fleet.joining_s), 1),
        "seconds": round(fleet.ended_s - fleet.began_s, 1),
    }


def _num_done(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT version FROM parameters").fetchone()[0])  # each unit counts once


def preempted_live(calm: Course, rows: list[tuple[float, bool]]) -> list[dict[str, Any]]:
    """A fleet that nobody disturbs, and then the same with kills, each beside what is expected, in seconds of a place.

    Args:
        calm: without any kill.
        rows: probability of a kill in each unit, and whether a killed client is replaced after its time-out only.

    Raises:
        BenchFailed: see ``work_through``.
    """
    found = [work_through(calm)]
    print(found[0], file=sys.stderr, flush=True)
    for preemption, waits in rows:
        row = work_through(replace(calm, preemption=preemption, waits=waits))
        fleet = Fleet(
            units=calm.units, clients=calm.places, unit_s=row["unit_s"], preemption=preemption,
            lost_s=row["time_out_s"] or SLOWEST * row["unit_s"], price=1.0, preemptible_price=1.0,
        )  # fmt: skip
        expected = compare(fleet)
        row |= {
            "extra_s": round(row["seconds"] - found[0]["seconds"], 1),
            "expected_s": round(expected.extra_s, 1),
            "published_s": round(expected.extra_once_s, 1),
            "standard_error_s": round(expected.spread_s / math.sqrt(calm.places), 1),
        }
        found.append(row)
        print(row, file=sys.stderr, flush=True)
    return found
