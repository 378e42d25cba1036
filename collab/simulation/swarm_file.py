"""The swarm file: machines, links, comings and goings, and what they train, for a simulation or a forecast.

Validated here and nowhere else. The run's own sections are those of the run file.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from collab.config import Averaging, Checkpoints, Optimizer, Run, Schedule, Strategy
from collab.errors import ConfigError
from collab.section_text import read_section
from collab.sections import CausalLMTask, ForeignTask, ImageClassificationTask, Real, Section, Whole

BITS, MEGA, MILLI = 8, 1e6, 1e-3
SYNTHETIC_FILE = "0" * 64
"""Stands for the digest of a task that is none: its code is part of this package."""

# -- what is learnt --------------------------------------------------------------------------------------------------


class NoTask(Section):
    """Nothing is learnt: vectors of zeros travel, and only time, bytes and commits count."""

    name: Literal["none"]
    num_elements: Whole = Field(ge=1, le=2**33)
    """Parameters of the model that is meant."""
    thinned: Whole = Field(default=1, ge=1)
    """Every so many elements are computed with as one, and their bytes weigh so much more on the links: for vectors
    that would fill this machine's memory. Parts of a round get coarser by it: keep some ten thousands for each reducer.
    """
    samples: Whole = Field(default=100_000, ge=1)
    """In one pass over the data."""

    @model_validator(mode="after")
    def _check_thinned(self) -> "NoTask":
        if self.thinned > self.num_elements:
            raise ValueError(f"thinned: at most num_elements ({self.num_elements}), else nothing is left")
        return self


SimulatedTask = Annotated[CausalLMTask | ImageClassificationTask | NoTask, Field(discriminator="name")]


class Contender(Section):
    """One way of training that is tried on the swarm; what it leaves out is the file's."""

    label: str = Field(default="", max_length=40)
    """What it is called in tables and by ``--strategies``; the strategy's name unless given."""
    strategy: Strategy
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    averaging: Averaging | None = None
    equal_shares: bool = False
    """Rounds are planned as if all links were alike, to see what adapting to them is worth. For simulations only."""

    @property
    def title(self) -> str:
        """Names it in the file."""
        return self.label or self.strategy.name


# -- who is there ----------------------------------------------------------------------------------------------------


class Staying(Section):
    """Machines that are there from the beginning to the end."""

    kind: Literal["none"]


class PartTime(Section):
    """Machines that come and go by themselves: sessions and absences of random length, exponential."""

    kind: Literal["sessions"]
    mean_session_s: Real = Field(gt=0)
    mean_absence_s: Real = Field(gt=0)
    killed: Real = Field(default=0.5, ge=0, le=1)
    """Share of the sessions that end without a goodbye, as with ``kill -9`` or a closed lid."""


class Happening(Section):
    """One line of a trace."""

    peer: Whole = Field(ge=0)
    """Of the group, from 0."""
    at_s: Real = Field(ge=0)
    what: Literal["join", "leave", "kill"]


class Trace(Section):
    """Machines whose comings and goings are written down; who is in no line is there all the time."""

    kind: Literal["trace"]
    happenings: tuple[Happening, ...] = Field(min_length=1)


Churn = Annotated[Staying | PartTime | Trace, Field(discriminator="kind")]


class Group(Section):
    """Machines that are alike."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}$")
    count: Whole = Field(default=1, ge=1, le=100_000)
    role: Literal["trainer", "auxiliary", "backbone"] = "trainer"
    samples_per_s: Real | None = Field(default=None, gt=0)
    """Of a trainer; or ``seconds_per_microbatch``."""
    seconds_per_microbatch: Real | None = Field(default=None, gt=0)
    spread: Real = Field(default=0.0, ge=0, le=3)
    """How different they are: each one's speed is e to the power of so many times a normal number."""
    up_mbit_per_s: Real = Field(default=20.0, ge=0.01)
    down_mbit_per_s: Real = Field(default=100.0, ge=0.01)
    latency_ms: Real = Field(default=15.0, ge=0)
    """One way, from the machine to the middle of the network: two such machines have four times that there and back."""
    client_mode: bool = False
    """They cannot be dialled: they reduce nothing for others."""
    price_per_hour: Real = Field(default=0.0, ge=0)
    churn: Churn = Staying(kind="none")

    @model_validator(mode="after")
    def _check_speed(self) -> "Group":
        given = [self.samples_per_s is not None, self.seconds_per_microbatch is not None]
        if self.role == "trainer" and sum(given) != 1:
            raise ValueError(f"group {self.name}: a trainer has either samples_per_s or seconds_per_microbatch")
        if self.role != "trainer" and any(given):
            raise ValueError(f"group {self.name}: a peer of role {self.role} computes nothing; take its speed out")
        if self.role != "trainer" and self.client_mode:
            raise ValueError(f"group {self.name}: a peer of role {self.role} must be one that can be dialled")
        if isinstance(self.churn, Trace) and (odd := [h.peer for h in self.churn.happenings if h.peer >= self.count]):
            raise ValueError(f"group {self.name}: the trace names peer {max(odd)}, but there are {self.count}, from 0")
        return self


# -- the file --------------------------------------------------------------------------------------------------------


class SwarmFile(Section):
    """One swarm file."""

    seed: Whole = Field(default=1, ge=0, lt=2**32)
    minutes: Real | None = Field(default=None, gt=0)
    """Of virtual time."""
    epochs: Whole | None = Field(default=None, ge=1)
    """Each strategy ends after so many steps of its own kind, or when the minutes are over."""
    target_loss: Real | None = Field(default=None, gt=0)
    """On held-out data: when each strategy reaches it is told."""
    microbatch_size: Whole = Field(default=8, ge=1)
    task: SimulatedTask
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    checkpoints: Checkpoints = Checkpoints()
    strategies: tuple[Contender, ...] = Field(min_length=1)
    groups: tuple[Group, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> "SwarmFile":
        if self.minutes is None and self.epochs is None:
            raise ValueError("minutes or epochs: how long should it be simulated?")
        roles = {group.role for group in self.groups}
        if missing := {"trainer", "backbone"} - roles:
            raise ValueError(f"groups: there must be one of role {min(missing)}")
        titles = [contender.title for contender in self.strategies]
        names = [group.name for group in self.groups]
        for what, given in (("strategies", titles), ("groups", names)):
            if twice := {name for name in given if given.count(name) > 1}:
                raise ValueError(f"{what}: {min(twice)!r} is there twice; give each its own name (label)")
        if isinstance(self.task, NoTask) and self.target_loss is not None:
            raise ValueError("target_loss: with task none nothing is learnt")
        for contender in self.strategies:
            self.run_of(contender)  # whatever cannot be together is said now
        return self

    def run_of(self, contender: Contender) -> Run:
        """The run file of one contender."""
        task = self.task
        return Run(
            run_id="simulated",
            seed=self.seed,
            microbatch_size=self.microbatch_size,
            until_epoch=self.epochs,
            task=_stand_in(task) if isinstance(task, NoTask) else task,
            optimizer=contender.optimizer or self.optimizer,
            schedule=contender.schedule or self.schedule,
            strategy=contender.strategy,
            averaging=contender.averaging or self.averaging,
            checkpoints=self.checkpoints,
        )

    def contenders(self, titles: tuple[str, ...] = ()) -> tuple[Contender, ...]:
        """Those of these names, in the order of the file; all, if none is named.

        Raises:
            ConfigError: there is none of that name.
        """
        known = [contender.title for contender in self.strategies]
        if unknown := [title for title in titles if title not in known]:
            raise ConfigError(f"the swarm file has no strategy {unknown[0]!r}", hint=f"it has {', '.join(known)}")
        return tuple(contender for contender in self.strategies if not titles or contender.title in titles)


def _stand_in(task: NoTask) -> ForeignTask:
    """Tells peers, who compare fingerprints, that they mean the same."""
    return ForeignTask(
        name="module", module="collab.simulation.synthetic", sha256=SYNTHETIC_FILE, class_name="SyntheticTask",
        options=task.model_dump(),
    )  # fmt: skip


def parse_swarm(text: str, *, origin: str) -> SwarmFile:
    """Validate the text of a swarm file.

    Raises:
        ConfigError: not YAML, or a field is unknown, missing, of a wrong type or impossible; every problem is listed.
    """
    return read_section(
        SwarmFile,
        text,
        origin=origin,
        where_from="start from docs/swarms/homes.yaml",
        where_explained="docs/simulator.md explains every one",
    )


def load_swarm(path: Path) -> SwarmFile:
    """Read and validate a swarm file.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the swarm file {path}: {error}", hint="docs/simulator.md shows how to write one"
        ) from error
    return parse_swarm(text, origin=str(path))
