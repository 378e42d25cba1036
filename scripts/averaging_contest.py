"""One engine's peers in a benchmark of averaging: started, sent through rounds, disturbed, counted."""

import json
import os
import signal
import socket
import statistics
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from averaging_gauges import Periods
from averaging_meters import Memory, MemoryUse, Meter, peak_memory, reset_peak
from averaging_setup import CODEC_BYTES, Assignment, Sizes, Task
from bench_processes import BenchFailed, Child, Household, family
from netlab_links import Network

START_LIMIT_S = 180.0
"""Imports of two dozen peers on two cores, and getting to know each other."""
CHECK_LIMIT_S = 60.0
GENESIS = "0" * 64
"""Lineage before the first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round as its peers told of it. What could not be said, since a peer failed, is None."""

    number: int
    began_s: float
    """When the first peer had its group, by the monotonic clock."""
    all_reduce_s: float | None
    """Until the last trainer held its result."""
    whole_step_s: float
    """From the first call to the last return."""
    committed: bool
    contributors: int
    digests_equal: bool
    fraction_averaged: float
    """On the trainer that has the least of it."""
    wire_bytes: int
    payload_bytes: int
    cpu_s: dict[str, float]
    peak_bytes: int
    """Memory of the largest peer with all its processes, what it took before included."""
    memory: tuple[MemoryUse, ...]
    """Of every peer that came back."""
    sizes: Sizes
    """As the senders say."""
    silent: tuple[int, ...] = ()
    """Peers that should have come back, and did not."""
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Peer:
    """One process and what it has told so far."""

    child: Child
    marks: list[dict[str, Any]] = field(default_factory=list)

    def expect(self, kind: str, limit_s: float) -> dict[str, Any]:
        """Its next line of a kind; those before it are kept in ``marks``. Raises ``BenchFailed`` as ``answer`` does."""
        give_up_s = time.monotonic() + limit_s
        while True:
            told = self.child.answer(max(0.01, give_up_s - time.monotonic()))
            if told["kind"] == kind:
                return told
            self.marks.append(told)

    def times(self, kind: str) -> list[float]:
        """When it told of ``kind`` since the marks were cleared."""
        return [mark["at_s"] for mark in self.marks if mark["kind"] == kind]


class Contestant:
    """All peers of one engine."""

    def __init__(self, engine: str, task: Task, network: Network, household: Household) -> None:
        self.engine, self._task = engine, task
        self._network, self._household = network, household
        self._peers: dict[int, Peer] = {}
        self._epoch, self._lineage = 0, GENESIS
        self._frozen: list[int] = []
        self._memory_idle: dict[int, Memory] = {}
        self._memory_before: dict[int, Memory] = {}

    @property
    def peers_left(self) -> frozenset[int]:
        """Nobody has killed or frozen them."""
        return frozenset(self._peers)

    @property
    def idle_bytes(self) -> int:
        """Memory of the largest peer before the first vector was made."""
        return max(memory.total_bytes for memory in self._memory_idle.values())

    def start(self) -> None:
        """Bring everybody up and let them meet.

        Raises:
            BenchFailed: a process did not come up.
        """
        everybody = range(len(self._task.swarm.parts))
        port, contacts = free_port(), list[str]()
        first = [0] if self.engine == "hivemind" else []  # the others join its DHT through the first
        for batch in (first, [index for index in everybody if index not in first]):
            joins_through = self._network.host(0) if self.engine == "gloo" else " ".join(contacts)
            for index in batch:
                self._peers[index] = self._start(index, joins_through, port)
            contacts += [self._peers[index].expect("ready", START_LIMIT_S)["contact"] for index in batch]
        self._tell(f"connect {json.dumps(contacts)}")
        self._hear("connected", START_LIMIT_S)
        self._tell("accompany")
        self._hear("accompanied", START_LIMIT_S)
        self._memory_idle = self._reset_peaks()

    def _start(self, index: int, contact: str, port: int) -> Peer:
        task, swarm = self._task, self._task.swarm
        link = swarm.links[index] if swarm.links else None
        work = Assignment(
            engine=self.engine,
            index=index,
            parts=swarm.parts,
            num_elements=task.num_elements,
            codec=task.codec,
            seed=task.seed,
            host=self._network.host(index),
            interface=self._network.interface,
            true_mbit_per_s=min(link.up_mbit_per_s, link.down_mbit_per_s) if link else 100.0,
            contact=contact,
            port=port,
            limit_s=task.limit_s,
            dtype=task.dtype,
            heartbeats_to=task.company.heartbeats_to(index),
            computes=index in task.company.computing,
            core=task.company.cores.get(index),
        )
        program = Path(__file__).with_name("averaging_peer.py")
        words = [str(program), work.to_json()]
        return Peer(self._household.start(words, place=self._network.place(index), niceness=task.niceness))

    def prepare(self, number: int) -> None:
        """Make the vectors of a round."""
        self._tell(f"prepare {number}")
        self._hear("prepared", CHECK_LIMIT_S)
        for peer in self._peers.values():
            peer.marks.clear()

    def begin(self) -> None:
        """Everybody begins at once."""
        self._memory_before = self._reset_peaks()
        self._tell(f"average {self._epoch} {self._lineage}")

    def await_group(self, witness: int) -> None:
        """Until a trainer says that it has a group; the beginning of the round, but for milliseconds."""
        told = self._peers[witness].expect("group", self._task.limit_s)
        self._peers[witness].marks.append(told)

    def disturb(self, index: int, signum: signal.Signals) -> None:
        """Send a signal to a peer and all its processes, and wait for it no more."""
        peer = self._peers.pop(index)
        for seen in family([peer.child.process.pid]):
            with suppress(ProcessLookupError):
                os.kill(seen.pid, signum)
            self._frozen.append(seen.pid)

    def finish(self, number: int, before: Meter) -> Round:
        """Wait for everybody's return, then look at what they hold.

        Raises:
            BenchFailed: nobody came back.
        """
        returned, failures = self._collect("returned", self._task.limit_s + 5.0)
        after, peaks = self.meter(), self._memory_peaks()
        if not returned:
            raise BenchFailed(f"{self.engine}: no peer came back from round {number}: {failures[0]}")
        silent = tuple(sorted(set(self._peers) - set(returned)))
        for index in silent:
            self.disturb(index, signal.SIGKILL)
        checked, _ = self._collect("checked", CHECK_LIMIT_S, say="check")
        trainers = [index for index in returned if index in self._task.swarm.trainers]
        self._follow([returned[index] for index in trainers])
        committed = not silent and all(returned[index]["committed"] for index in trainers)
        digests = {checked[index]["digest"] for index in trainers}
        return Round(
            number=number,
            **self._times(returned, trainers if committed else []),
            committed=committed,
            contributors=min(returned[index]["contributors"] for index in trainers),
            digests_equal=len(digests) == 1 and digests != {""},
            fraction_averaged=min(checked[index]["fraction"] for index in trainers),
            wire_bytes=after.wire_bytes - before.wire_bytes,
            payload_bytes=sum(answer["payload_bytes"] for answer in checked.values()),
            cpu_s=after.cpu_since(before),
            peak_bytes=max(peaks[index].total_bytes for index in returned),
            memory=tuple(self._memory_use(index, peaks[index]) for index in sorted(returned)),
            sizes=self._sizes(returned, trainers),
            silent=silent,
            reasons=tuple(sorted({answer["reason"] for answer in returned.values() if answer["reason"]})),
        )

    def _times(self, returned: dict[int, dict[str, Any]], holders: list[int]) -> dict[str, Any]:
        """When the round began and how long it took; ``holders`` are the trainers with a result."""
        called_s = min(answer["called_s"] for answer in returned.values())
        groups_s = [at_s for peer in self._peers.values() for at_s in peer.times("group")]
        wholes_s = [max(self._peers[index].times("whole")) for index in holders]
        began_s = min(groups_s, default=called_s)
        return {
            "began_s": began_s,
            "all_reduce_s": max(wholes_s) - began_s if wholes_s else None,
            "whole_step_s": max(answer["at_s"] for answer in returned.values()) - called_s,
        }

    def _sizes(self, returned: dict[int, dict[str, Any]], trainers: list[int]) -> Sizes:
        vectors = {index: returned[index]["vector_bytes"] for index in trainers if returned[index]["committed"]}
        if not vectors:
            return Sizes.of(self._task.swarm, self._task.num_elements, CODEC_BYTES.get(self._task.codec, 4.0))
        return Sizes(vectors=vectors, result=statistics.median(returned[index]["result_bytes"] for index in vectors))

    def _follow(self, answers: list[dict[str, Any]]) -> None:
        """Go on from the history that most have; whoever missed it would take over their state."""
        histories = Counter((answer["epoch"], answer["lineage"]) for answer in answers)
        self._epoch, self._lineage = max(histories, key=lambda history: (history[0], histories[history]))

    def meter(self) -> Meter:
        """Read the counters."""
        cpu_s = family(peer.child.process.pid for peer in self._peers.values())
        return Meter(cpu_s=cpu_s, wire_bytes=self._network.wire_bytes())

    def _reset_peaks(self) -> dict[int, Memory]:
        return {index: reset_peak(peer.child.process.pid) for index, peer in self._peers.items()}

    def _memory_peaks(self) -> dict[int, Memory]:
        return {index: peak_memory(peer.child.process.pid) for index, peer in self._peers.items()}

    def _memory_use(self, index: int, peak: Memory) -> MemoryUse:
        return MemoryUse(
            peer=index,
            idle_bytes=self._memory_idle[index].python_bytes,
            before_bytes=self._memory_before[index].python_bytes,
            peak_bytes=peak.python_bytes,
            vector_bytes=self._task.vector_bytes if index in self._task.swarm.trainers else 0,
        )

    def read(self, periods: Periods) -> dict[int, dict[str, Any]]:
        """What gauges have measured beside the rounds, by peer and gauge."""
        answers, _ = self._collect("read", CHECK_LIMIT_S, say=f"read {periods.to_json()}")
        return {index: answer["gauges"] for index, answer in answers.items()}

    def end_frozen(self) -> None:
        """Those cannot leave when they are asked."""
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _tell(self, line: str) -> None:
        for peer in self._peers.values():
            with suppress(BrokenPipeError):
                peer.child.say(line)

    def _hear(self, kind: str, limit_s: float) -> None:
        for peer in self._peers.values():
            peer.expect(kind, limit_s)

    def _collect(
        self, kind: str, limit_s: float, *, say: str = ""
    ) -> tuple[dict[int, dict[str, Any]], list[BenchFailed]]:
        """Everybody's answer, of those who give one in time."""
        if say:
            self._tell(say)
        give_up_s = time.monotonic() + limit_s
        answers, failures = dict[int, dict[str, Any]](), list[BenchFailed]()
        for index, peer in self._peers.items():
            try:
                answers[index] = peer.expect(kind, give_up_s - time.monotonic())
            except BenchFailed as failure:
                failures.append(failure)
        return answers, failures


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
