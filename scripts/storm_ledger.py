"""What happened in a storm, as its peers told it: lives, rounds, commits and strikes, booked from their events."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from storm_schedule import Fault, Kind

BACKBONE = "backbone"


@dataclass(slots=True, eq=False, kw_only=True)
class Life:
    """One process in one slot, from its start to its death or to the end of the measurement."""

    number: int
    slot: int
    name: str
    began_s: float | None = None
    """When its program was loaded and it began to join; None: not yet."""
    killed_s: float | None = None
    first_microbatch_s: float | None = None
    computed: int = 0
    """Samples that went into its accumulated gradient."""
    committed: int = 0
    """Of them, those that it saw go into a step."""
    late: int = 0
    """Of these, those in steps that others took and that it learned of later."""
    used_in: set[str] = field(default_factory=set)
    """Ids of the rounds that used something of it, as far as it knows."""
    held: int | None = None
    """Of them, those still accumulated when it left; None: it did not say."""
    ending: tuple[int, str, str] | None = None
    """Epoch, lineage and digest of the parameters when it left."""
    is_backbone: bool = False
    has_crashed: bool = False
    """It ended by itself, and ``killed_s`` says when."""

    def is_alive(self, at_s: float) -> bool:
        return self.began_s is not None and self.began_s <= at_s and (self.killed_s is None or at_s < self.killed_s)


@dataclass(slots=True, eq=False, kw_only=True)
class Round:
    """One attempt to average, as told by the trainers in it."""

    epoch: int
    last_s: float
    is_committed: bool = False
    seconds: float = 0.0
    """The longest that anybody took, who was in it to its end."""
    tellers: set[int] = field(default_factory=set)
    """Lives that told how it ended."""
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Commit:
    """One epoch's step on one lineage."""

    epoch: int
    lineage: str
    at_s: float
    """When the first peer had taken it."""
    samples: float
    """Weight behind the mean."""
    contributors: int
    used: dict[int, int] = field(default_factory=dict)
    """Samples of each life that took the step."""
    contributing: set[int] = field(default_factory=set)
    """Lives of which something is in it, by their own word: samples, or some elements of them."""


@dataclass(slots=True, eq=False, kw_only=True)
class Strike:
    """A fault that happened."""

    fault: Fault
    at_s: float
    lives: tuple[int, ...]
    over_s: float | None = None
    """When the victims were released, or the replacement was started; None: not in this storm."""


class Ledger:
    """Books the events of all peers."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.rounds: dict[str, Round] = {}
        self.branches: dict[tuple[int, str], Commit] = {}
        """All commits, by epoch and lineage: more than one of an epoch is a split."""
        self.strikes: list[Strike] = []
        self.computed_in: Counter[int] = Counter()
        """Samples of all peers, by the second of swarm time in which their microbatches ended."""
        self.problems: list[str] = []
        self.states_fetched = 0
        self.ends_s: dict[str, tuple[float, float]] = {}
        """Phases of the measurement: their beginnings and ends."""

    # -- lives ---------------------------------------------------------------------------------------------------------

    def new_life(self, slot: int, name: str, *, is_backbone: bool = False) -> Life:
        """Someone starts in a slot; it lives from its ``Up`` on."""
        life = Life(number=len(self.lives), slot=slot, name=name, is_backbone=is_backbone)
        self.lives.append(life)
        return life

    def newest(self, slot: int) -> Life:
        """Who is in a slot, or was last."""
        return next(life for life in reversed(self.lives) if life.slot == slot)

    @property
    def trainers(self) -> list[Life]:
        """All lives of trainers."""
        return [life for life in self.lives if not life.is_backbone]

    @property
    def commits(self) -> dict[int, Commit]:
        """By epoch; of a split, the branch that most peers took."""
        found: dict[int, Commit] = {}
        for (epoch, _), commit in self.branches.items():
            if epoch not in found or len(commit.used) > len(found[epoch].used):
                found[epoch] = commit
        return found

    def in_order(self) -> list[Commit]:
        """The same as a list, by epoch."""
        return [commit for _, commit in sorted(self.commits.items())]

    # -- events --------------------------------------------------------------------------------------------------------

    def note(self, life: Life, kind: str, fields: Mapping[str, Any]) -> None:
        """Book one event by the name of its class; kinds that say nothing about a storm are passed over."""
        book = self._BOOKS.get(kind)
        if book is not None:
            book(self, life, fields)

    def _up(self, life: Life, fields: Mapping[str, Any]) -> None:
        life.began_s = fields["at_s"]

    def _microbatch(self, life: Life, fields: Mapping[str, Any]) -> None:
        if life.first_microbatch_s is None:
            life.first_microbatch_s = fields["at_s"]
        life.computed += fields["samples"]
        self.computed_in[int(fields["at_s"])] += fields["samples"]

    def _round(self, life: Life, fields: Mapping[str, Any]) -> None:
        round_ = self.rounds.setdefault(fields["round_id"], Round(epoch=fields["epoch"], last_s=fields["at_s"]))
        round_.last_s = max(round_.last_s, fields["at_s"])
        round_.tellers.add(life.number)
        if fields["committed"]:
            round_.is_committed = True
            round_.seconds = max(round_.seconds, fields["seconds"])
        elif fields["reason"] not in round_.reasons:
            round_.reasons.append(fields["reason"])

    def _epoch(self, life: Life, fields: Mapping[str, Any]) -> None:
        fresh = Commit(
            epoch=fields["epoch"],
            lineage=str(fields["lineage"]),
            at_s=fields["at_s"],
            samples=fields["swarm_samples"],
            contributors=fields["contributors"],
        )
        commit = self.branches.setdefault((fresh.epoch, fresh.lineage), fresh)
        commit.at_s = min(commit.at_s, fields["at_s"])
        commit.used[life.number] = fields["own_samples"]
        if fields["own_weight"] > 0:
            commit.contributing.add(life.number)
        life.committed += fields["own_samples"]
        life.used_in.update(fields["used_in"])

    def _late_use(self, life: Life, fields: Mapping[str, Any]) -> None:
        life.committed += fields["samples"]
        life.late += fields["samples"]
        life.used_in.update(fields["used_in"])

    def _fetched(self, life: Life, fields: Mapping[str, Any]) -> None:
        self.states_fetched += 0 if life.is_backbone else 1

    def _notice(self, life: Life, fields: Mapping[str, Any]) -> None:
        if fields["is_problem"]:
            self.problems.append(f"{life.name}: {fields['text']}")

    def _ending(self, life: Life, fields: Mapping[str, Any]) -> None:
        life.held = fields["held"]
        life.ending = (fields["epoch"], str(fields["lineage"]), fields["digest"])

    _BOOKS: Mapping[str, Callable[["Ledger", Life, Mapping[str, Any]], None]] = {
        "Up": _up,
        "MicrobatchDone": _microbatch,
        "RoundEnded": _round,
        "EpochFinished": _epoch,
        "SamplesUsed": _late_use,
        "StateFetched": _fetched,
        "Notice": _notice,
        "Ending": _ending,
    }


# -- playing a storm -------------------------------------------------------------------------------------------------


class Stage(Protocol):
    """Where a storm is played: real processes, or a simulated world."""

    def now_s(self) -> float:
        """Swarm time."""
        ...

    def call_at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do it at a swarm time."""
        ...

    def strike(self, fault: Fault) -> None: ...

    def release(self, fault: Fault) -> None:
        """End the harm; of a kill: let somebody else join in that slot."""
        ...


def play(faults: tuple[Fault, ...], began_s: float, stage: Stage, ledger: Ledger, tell: Callable[[str], None]) -> None:
    """Arrange that every fault happens on ``stage``, and is booked when it does."""
    for fault in faults:
        stage.call_at(began_s + fault.at_s, lambda fault=fault: _begin(fault, stage, ledger, tell))  # type: ignore[misc]


def _begin(fault: Fault, stage: Stage, ledger: Ledger, tell: Callable[[str], None]) -> None:
    victims = [ledger.newest(slot) for slot in fault.slots]
    strike = Strike(fault=fault, at_s=stage.now_s(), lives=tuple(life.number for life in victims))
    ledger.strikes.append(strike)
    names = ", ".join(life.name for life in victims)
    tell(f"{fault.kind} {names} for {fault.duration_s:.0f} s")
    stage.strike(fault)
    if fault.kind is Kind.KILL:
        for life in victims:
            life.killed_s = stage.now_s()

    def end() -> None:
        stage.release(fault)
        strike.over_s = stage.now_s()

    stage.call_at(strike.at_s + fault.duration_s, end)
