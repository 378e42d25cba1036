"""The rounds of a long-lived swarm, with and without a fault in them, and what they came to."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import averaging_vectors as vectors
from bench_processes import BenchFailed
from faults_crew import Crew, Strike
from faults_setup import Fault, Setup

LEARNING_ROUNDS = 2
"""Everybody knows its own link from then on."""
REFERENCE_ROUNDS = 3
"""Before the first fault."""
NEAR = 1e-3
"""Shares of elements that differ by less are the same: an element too close to two means to tell."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """An undisturbed round."""

    number: int
    step_s: float
    """From the first peer's wish to the last result."""
    contributors: int
    equal: bool
    """All hold the same bytes at the same place in the history."""
    is_first: bool
    """The one after a fault: strangers are new to it, and it is no reference."""
    attempts: int
    """Most of any peer."""
    reasons: tuple[str, ...]
    """Of attempts that came to nothing."""

    @property
    def is_reference(self) -> bool:
        """Others are compared with it."""
        return self.number >= LEARNING_ROUNDS and not self.is_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the survivors of a disturbed round hold."""

    step_s: float | None
    """From the first survivor's wish to the last survivor's result; None: somebody hangs."""
    first_result_s: float | None
    attempts: int
    """Most of any survivor."""
    late: tuple[int, ...]
    """Survivors that were left out, and fetched the result."""
    hung: tuple[int, ...]
    """Survivors without a result."""
    survivors_equal: bool
    """All hold the same bytes, at the same place in the history."""
    explained: float
    """Part of the mean that is the weighted mean of some of the peers' vectors, by its numbers."""
    fraction_averaged: float
    """Of the survivors' vectors, by weight and elements."""
    victim_share: float
    """Of the victim's vector."""
    record_agrees: bool
    """The record says the same of everybody."""
    reasons: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Case:
    """One fault that counts, or was too late."""

    fault: Fault
    victim: int
    leader: int | None
    """Of the round, as the survivors say."""
    round_s: float
    """What an undisturbed round took, when the moment was chosen."""
    strike: Strike
    began_s: float
    ending: Ending
    miss: str
    """Why it does not count; empty: it does."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What the peers told of it."""
    logs: dict[int, str] = field(default_factory=dict)
    """Each peer's log, by name."""
    back_s: float | None = None
    """Until everybody was at one place again: since the victim was thawed, or a stranger was started in its place."""
    victim_equal: bool | None = None
    """A frozen one has what the others have; None: it is dead."""
    next_step_s: float | None = None
    """Duration of the round after it."""
    rounds_until_whole: int | None = None
    """Undisturbed rounds until one had everybody in it."""

    @property
    def struck_s(self) -> float:
        """Since the round began."""
        return self.strike.at_s - self.began_s

    @property
    def led(self) -> bool:
        """Whether the victim led the round."""
        return self.victim == self.leader


class Course:
    """Plays rounds with one crew, and keeps what they came to."""

    MOST_ROUNDS_UNTIL_WHOLE = 4

    def __init__(self, setup: Setup, crew: Crew, tell: Tell) -> None:
        self._setup, self._crew, self._tell = setup, crew, tell
        self._number = 0
        self.calm: list[Calm] = []
        self.cases: list[Case] = []
        self.missed: list[Case] = []
        self.problem = ""
        """Why it ended early."""

    def warm_up(self) -> None:
        """Rounds that nobody disturbs. Raises ``BenchFailed``."""
        for _ in range(LEARNING_ROUNDS + REFERENCE_ROUNDS):
            self.rest(is_first=False)

    def rest(self, *, is_first: bool) -> Calm:
        """One undisturbed round. Raises ``BenchFailed`` when somebody does not come back from it."""
        self._crew.await_whole()
        number = self._next()
        self._crew.begin()
        told = self._crew.returned(self._crew.slots, self._setup.limit_s)
        if told.keys() != self._crew.slots:
            raise BenchFailed(f"undisturbed, and nothing from peers {sorted(self._crew.slots - told.keys())}")
        checks = self._crew.ask_all("check", "checked")
        calm = Calm(
            number=number,
            step_s=max(each["at_s"] for each in told.values()) - min(each["called_s"] for each in told.values()),
            contributors=min(each["contributors"] for each in told.values()),
            equal=_are_equal(checks),
            is_first=is_first,
            attempts=max(each["attempts"] for each in told.values()),
            reasons=_reasons(told),
        )
        self.calm.append(calm)
        self._tell(f"round {number}: {calm.step_s:.2f} s, {calm.contributors} contributors {'; '.join(calm.reasons)}")
        return calm

    def _next(self) -> int:
        number, self._number = self._number, self._number + 1
        self._crew.prepare(number)
        return number

    # -- faults ------------------------------------------------------------------------------------------------------

    def suffer(self, fault: Fault) -> Case:
        """A round with a fault in it, and what follows until the swarm is whole again. Raises ``BenchFailed``."""
        case = self._disturbed(fault)
        (self.missed if case.miss else self.cases).append(case)
        self._mend(case)
        return case

    def _disturbed(self, fault: Fault) -> Case:
        crew = self._crew
        leader = crew.await_whole()
        victim = leader if fault.kind.strikes_leader and leader is not None else fault.victim
        survivors, round_s = crew.slots - {victim}, reference_s(self.calm) or self.calm[-1].step_s
        self._next()
        began_s = crew.begin()
        time.sleep(max(0.0, began_s + fault.moment * round_s - time.monotonic()))
        strike = crew.strike(victim, fault.kind)
        told = crew.returned(survivors, self._setup.limit_s)
        results_s = [each["at_s"] for each in told.values()]
        led = [mark["leader"] for slot in survivors for mark in crew.marks(slot, "group") if mark["at_s"] < strike.at_s]
        leader = Counter(led).most_common(1)[0][0] if led else leader
        return Case(
            fault=fault,
            victim=victim,
            leader=leader,
            round_s=round_s,
            strike=strike,
            began_s=began_s,
            ending=self._ending(victim, told, began_s),
            miss=miss(fault, strike, leader, results_s),
            events=[{"of": slot, **mark} for slot in sorted(survivors) for mark in crew.marks(slot, "event")],
            logs={slot: crew.log_of(slot).name for slot in sorted(crew.slots)},
        )

    def _ending(self, victim: int, told: dict[int, dict[str, Any]], began_s: float) -> Ending:
        crew = self._crew
        survivors = crew.slots - {victim}
        hung = tuple(sorted(survivors - told.keys()))
        checks = crew.ask_all("check", "checked", told)
        witnesses = {check["digest"]: slot for slot, check in checks.items()}  # one for each result that there is
        weighed = [crew.ask(slot, "weigh", "weighed") for slot in witnesses.values()]
        weights = {slot: vectors.weight(slot) for slot in survivors}
        total = sum(weights.values())
        return Ending(
            step_s=None if hung else max(t["at_s"] for t in told.values()) - min(t["called_s"] for t in told.values()),
            first_result_s=min((t["at_s"] for t in told.values()), default=began_s) - began_s if told else None,
            attempts=max((t["attempts"] for t in told.values()), default=0),
            late=tuple(sorted(slot for slot, t in told.items() if t["was_late"])),
            hung=hung,
            survivors_equal=not hung and _are_equal(checks),
            explained=min((found["explained"] for found in weighed), default=0.0),
            fraction_averaged=min(
                (sum(found["shares"][str(s)] * w for s, w in weights.items()) / total for found in weighed), default=0.0
            ),
            victim_share=max((found["shares"][str(victim)] for found in weighed), default=0.0),
            record_agrees=all(
                abs(found["shares"][slot] - share) <= NEAR
                for found in weighed
                for slot, share in found["record"].items()
            ),
            reasons=_reasons(told),
        )

    def _mend(self, case: Case) -> None:
        """Make the swarm whole, and see that it is."""
        crew, broken = self._crew, set(case.ending.hung)
        since_s = time.monotonic()
        if case.fault.kind.freezes:
            since_s = crew.thaw(case.victim)
            back = crew.returned([case.victim], self._setup.limit_s)
            if back:
                case.victim_equal = _are_equal(crew.ask_all("check", "checked", crew.slots - broken))
            else:
                broken.add(case.victim)
                self._tell(f"peer {case.victim} does not come back by itself")
        else:
            broken.add(case.victim)
        if broken:
            self._replace(broken)
        crew.await_whole()
        if not case.fault.kind.freezes or case.victim not in broken:
            case.back_s = time.monotonic() - since_s
        for count in range(1, self.MOST_ROUNDS_UNTIL_WHOLE + 1):
            calm = self.rest(is_first=count == 1)
            if count == 1:
                case.next_step_s = calm.step_s
            if calm.contributors == len(crew.slots):
                case.rounds_until_whole = count
                return

    def _replace(self, slots: set[int]) -> None:
        began_s = time.monotonic()
        self._crew.replace(slots)
        up_s = time.monotonic()
        for slot in sorted(slots):
            self._crew.ask(slot, "enter newcomer", "entered")
        self._tell(
            f"peers {sorted(slots)} are replaced: up in {up_s - began_s:.1f} s, and in the swarm after another "
            f"{time.monotonic() - up_s:.1f} s"
        )


def miss(fault: Fault, strike: Strike, leader: int | None, results_s: list[float]) -> str:
    """Why a fault does not count; empty: it does."""
    if not strike.is_verified:
        return "the victim was not struck"
    if any(at_s <= strike.done_s for at_s in results_s):
        return "the round was over"
    if fault.kind.strikes_leader and strike.slot != leader:
        return f"peer {leader} led"
    return ""


def _reasons(told: dict[int, dict[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({reason for each in told.values() for reason in each["reasons"]}))


def reference_s(calm: Sequence[Calm]) -> float | None:
    """Median of the undisturbed rounds in which everybody knows its link."""
    known = [each.step_s for each in calm if each.is_reference]
    return statistics.median(known) if known else None


def _are_equal(checks: dict[int, dict[str, Any]]) -> bool:
    """Bytes and history."""
    return len({(check["digest"], check["epoch"], check["lineage"]) for check in checks.values()}) == 1
