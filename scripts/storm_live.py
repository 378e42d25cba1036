"""A storm over real processes: a backbone and trainers, each in a network namespace behind a link of its own."""

import heapq
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed, Child, Household, await_invite
from netlab import Lab
from netlab_links import Link
from storm_ledger import Ledger, Life, play
from storm_peer import Assignment
from storm_recovery import whole_commits
from storm_schedule import Fault, Kind, schedule
from storm_setup import CALM_LIMIT_S, Setup, Tell

SLOWED = 0.1
BACKBONE_LINK = Link(up_mbit_per_s=100.0, down_mbit_per_s=100.0)
BACKBONE_PORT = 4000
"""Fixed, so that a backbone that is started again is found by the old invite."""
START_LIMIT_S = 240.0
"""For everybody to be in one step: many programs are loaded at once, on few cores."""
LEAVE_LIMIT_S = 60.0
READ_LIMIT_S = 5.0
"""For what was said last; the reader of a backbone, which stays, goes on after it."""
REPLACED_AFTER_CRASH_S = 5.0
PULSE_S = 0.05
TOLD_EVERY_S = 15.0


class LiveStage:
    """Implements ``Stage`` over processes in a lab. Lives in one thread, whose death ends the processes."""

    def __init__(self, setup: Setup, ledger: Ledger, lab: Lab, household: Household) -> None:
        self._setup, self._ledger, self._lab, self._household = setup, ledger, lab, household
        self._invite = household.folder / "invite.txt"
        self._children: dict[int, tuple[Life, Child]] = {}
        """By slot; of those that live."""
        self._readers: list[threading.Thread] = []
        self._told: queue.SimpleQueue[tuple[Life, dict[str, Any]]] = queue.SimpleQueue()
        """Events that the readers have read and nobody has booked."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    # -- peers ---------------------------------------------------------------------------------------------------------

    def start_backbone(self) -> None:
        """Its invite is written when it serves."""
        folder = self._household.folder / "run"
        folder.mkdir(exist_ok=True)
        (folder / "run.yaml").write_text(self._setup.run_file())
        slot = self._setup.backbone
        life = self._ledger.new_life(slot, "backbone", is_backbone=True)
        place = ["--host", self._lab.host(slot), "--port", str(BACKBONE_PORT)]
        words = ["-m", "peers.cli", "backbone", str(folder), *place]
        self._start(life, [*words, "--invite-file", str(self._invite), "--json"])
        self._ledger.note(life, "Up", {"at_s": self.now_s()})

    def start_trainer(self, slot: int, name: str | None = None) -> None:
        """A stranger in a slot, or who had ``name`` before."""
        life = self._ledger.new_life(slot, name or f"trainer-{slot}.{len(self._ledger.lives)}")
        work = Assignment(
            invite=str(self._invite),
            name=life.name,
            data_dir=str(self._household.folder / life.name),
            pace_s=self._setup.pace_s,
            microbatch_size=self._setup.microbatch,
        )
        self._start(life, work.words())

    def _start(self, life: Life, words: list[str]) -> None:
        child = self._household.start(words, place=self._lab.place(life.slot), goodbye=signal.SIGTERM)
        self._children[life.slot] = life, child
        reader = threading.Thread(target=self._read, args=(life, child), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, life: Life, child: Child) -> None:
        while True:
            try:
                event = child.answer(threading.TIMEOUT_MAX)
            except BenchFailed:
                return  # it has ended
            except ValueError:
                continue  # a library printed something
            if "event" in event:
                self._told.put((life, event))

    def _book(self) -> None:
        while not self._told.empty():
            life, event = self._told.get()
            self._ledger.note(life, event["event"], event)

    def wait_for_invite(self) -> None:
        """Raises ``BenchFailed``."""
        _, backbone = self._children[self._setup.backbone]
        await_invite(self._invite, backbone, START_LIMIT_S)

    def leave(self) -> None:
        """All trainers leave, and say what they hold."""
        leaving = [child for life, child in self._children.values() if not life.is_backbone]
        for child in leaving:
            child.leave()
        give_up_s = time.monotonic() + LEAVE_LIMIT_S
        while time.monotonic() < give_up_s and any(child.process.poll() is None for child in leaving):
            time.sleep(PULSE_S)
        for reader in self._readers:
            reader.join(READ_LIMIT_S)
        self._book()

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"-- {life.name}\n{child.log_tail()}" for life, child in self._children.values())

    # -- the stage -----------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return time.time()

    def call_at(self, at_s: float, action: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (at_s, self._planned, action))

    def strike(self, fault: Fault) -> None:
        if fault.kind is Kind.PARTITION:
            self._lab.cut_off(fault.slots)
            return
        for slot in fault.slots:
            if fault.kind is Kind.SLOW:
                self._lab.set_link(slot, self._link(slot).scaled(SLOWED))
            else:
                self._signal(slot, fault.kind, is_over=False)

    def release(self, fault: Fault) -> None:
        if fault.kind is Kind.PARTITION:
            self._lab.rejoin(fault.slots)
            return
        for slot in fault.slots:
            if fault.kind is Kind.SLOW:
                self._lab.set_link(slot, self._link(slot))
            elif fault.kind is not Kind.KILL:
                self._signal(slot, fault.kind, is_over=True)
            elif slot == self._setup.backbone:
                self.start_backbone()
            else:
                name = self._ledger.newest(slot).name
                self.start_trainer(slot, name if self._setup.keeps_identity else None)

    def _link(self, slot: int) -> Link:
        return BACKBONE_LINK if slot == self._setup.backbone else self._setup.link

    def _signal(self, slot: int, kind: Kind, *, is_over: bool) -> None:
        _, child = self._children.pop(slot) if kind is Kind.KILL else self._children[slot]
        pid = child.process.pid
        with suppress(ProcessLookupError):
            if kind is Kind.KILL:
                os.killpg(pid, signal.SIGKILL)  # it leads a group of its own, p2pd is in it
                child.process.wait()
            elif kind is Kind.STOP:
                os.killpg(pid, signal.SIGCONT if is_over else signal.SIGSTOP)
            else:
                os.kill(pid, signal.SIGCONT if is_over else signal.SIGSTOP)

    # -- time ----------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass and do what is due; whether ``is_done`` ended it."""
        until_s = self.now_s() + seconds
        while self.now_s() < until_s:
            while self._agenda and self._agenda[0][0] <= self.now_s():
                heapq.heappop(self._agenda)[2]()
            self._look_after()
            self._book()
            if is_done():
                return True
            time.sleep(PULSE_S)
        return False

    def _look_after(self) -> None:
        """A peer that ended by itself is a defect, which is told; somebody else takes its place."""
        for slot, (life, child) in list(self._children.items()):
            if child.process.poll() is not None:
                del self._children[slot]
                life.killed_s, life.has_crashed = self.now_s(), True
                self._ledger.problems.append(f"{life.name} ended by itself:\n{child.log_tail()}")
                start = self.start_backbone if life.is_backbone else partial(self.start_trainer, slot)
                self.call_at(self.now_s() + REPLACED_AFTER_CRASH_S, start)


def run_live(setup: Setup, folder: Path, tell: Tell) -> Ledger:
    """Play the whole measurement: warm-up, fault-free phase, storm, calm.

    Raises:
        BenchFailed: the swarm did not come up.
        LabFailed: no namespaces can be made here.
    """
    ledger = Ledger()
    with Lab([setup.link] * setup.peers + [BACKBONE_LINK]) as lab, ExitStack() as stack:
        household = Household(folder)
        stack.callback(household.close)
        stage = LiveStage(setup, ledger, lab, household)
        tell("starting the backbone")
        stage.start_backbone()
        stage.wait_for_invite()
        tell(f"starting {setup.peers} trainers")
        for slot in range(setup.peers):
            stage.start_trainer(slot)
        if not stage.wait(START_LIMIT_S, lambda: any(c.contributors == setup.peers for c in ledger.commits.values())):
            raise BenchFailed(f"no step of everybody within {START_LIMIT_S:.0f} s\n{stage.tails()}")
        tell("everybody was in a step; warming up")
        stage.wait(setup.warm_up_s)
        watch(stage, ledger, "baseline", setup.baseline_s, tell)
        play(schedule(setup.forecast), stage.now_s(), stage, ledger, tell)
        watch(stage, ledger, "storm", setup.forecast.seconds, tell)
        stage.wait(CALM_LIMIT_S * 2, lambda: is_calm(ledger))
        tell("everybody leaves")
        stage.leave()
    return ledger


def watch(stage: LiveStage, ledger: Ledger, name: str, seconds: float, tell: Tell) -> None:
    """One phase, with a line now and then."""
    began_s = stage.now_s()
    while (left_s := began_s + seconds - stage.now_s()) > 0:
        stage.wait(min(left_s, TOLD_EVERY_S))
        newest = max(ledger.commits, default=0)
        contributors = ledger.commits[newest].contributors if newest else 0
        tell(f"{name}: {stage.now_s() - began_s:.0f} s, epoch {newest} of {contributors} contributors")
    ledger.ends_s[name] = began_s, stage.now_s()


def is_calm(ledger: Ledger) -> bool:
    """Whether every fault is over, and everybody who lives was in a step after that."""
    over_s = 0.0
    for strike in ledger.strikes:
        if strike.over_s is None:
            return False
        over_s = max(over_s, strike.over_s)
    living = {life.number for life in ledger.trainers if life.killed_s is None}
    whole = [commit for commit in whole_commits(ledger) if commit.at_s > over_s]
    return bool(whole) and whole[-1].contributing == living
