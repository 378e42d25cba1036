"""The run file: everything that peers of one run must agree on, validated here and nowhere else.

What is local to a machine (device, data directory, name, microbatch) is a flag and never appears here.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from collab.errors import ConfigError
from collab.section_text import read_section
from collab.sections import (
    About as About,
    Averaging as Averaging,
    BuiltinData as BuiltinData,
    CausalLMTask as CausalLMTask,
    Checkpoints as Checkpoints,
    Data as Data,
    FilesData as FilesData,
    Foreign as Foreign,
    ForeignTask as ForeignTask,
    HubData as HubData,
    ImageClassificationTask as ImageClassificationTask,
    Real as Real,
    Section as Section,
    Task as Task,
    Whole as Whole,
    placement_of as placement_of,
)
from collab.types import RUN_ID

# -- optimisation ----------------------------------------------------------------------------------------------------


Decay = Annotated[Real, Field(ge=0, lt=1)]


class Optimizer(Section):
    """Optimiser of the global step, by name."""

    name: Literal["sgd", "adamw", "lamb", "adamw8bit"] = "adamw"
    learning_rate: Real = Field(default=1e-3, gt=0)
    weight_decay: Real = Field(default=0.0, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    epsilon: Real = Field(default=1e-8, gt=0)
    momentum: Real = Field(default=0.0, ge=0, lt=1)
    """Of sgd only."""


class Schedule(Section):
    """Learning rate by epoch, as a factor on the optimiser's learning rate."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_epochs: Whole = Field(default=0, ge=0)
    """Linear rise from ``1 / warmup_epochs`` to 1."""
    total_epochs: Whole | None = Field(default=None, gt=0)
    """Where linear and cosine reach ``final_factor``."""
    final_factor: Real = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _check_length(self) -> "Schedule":
        if self.name != "constant" and self.total_epochs is None:
            raise ValueError(f"schedule {self.name} needs total_epochs")
        if self.total_epochs is not None and self.total_epochs <= self.warmup_epochs:
            raise ValueError("schedule.total_epochs must be larger than warmup_epochs")
        return self


class Dedloc(Section):
    """Synchronous training with a global target batch (Diskin et al., NeurIPS 2021)."""

    name: Literal["dedloc"]
    target_batch_size: Whole = Field(default=256, ge=1)
    """Samples that the swarm accumulates for one optimiser step."""
    max_gradient_norm: Real | None = Field(default=1.0, gt=0)
    """Clip the averaged gradient to this norm; null: do not clip."""
    delay: Literal[0, 1] = 0
    """0: everybody waits for the round; 1: it goes on beside the next batch, whose gradients are one step stale."""


class Dts(Section):
    """Delayed and temporally sparse updates, for high latency (Zhu et al., "Distributed Training Across the World")."""

    name: Literal["dts"]
    target_batch_size: Whole = Field(default=256, ge=1)
    """Samples that all trainers compute, in steps of their own, until they average what these steps have come to."""
    period: Whole | None = Field(default=None, ge=1)
    """Steps of a trainer in a window, at least, as a mean over the trainers; null: as many as the target asks for."""
    delay: Whole | None = Field(default=None, ge=0)
    """Steps that a trainer takes while that is under way, at most; null: as many as it takes, nobody ever waits."""
    windows: Whole = Field(default=1, ge=1, le=256)
    """That one round averages, each as it is over: then the mean of a window is here after a way there and one back."""
    max_gradient_norm: Real | None = Field(default=1.0, gt=0)
    """Clip the gradient of each step to this norm; null: do not clip."""


class Diloco(Section):
    """Many inner steps of each peer's own, then one outer step of all (Douillard et al., 2023): for thin links."""

    name: Literal["diloco"]
    target_batch_size: Whole = Field(default=4096, ge=1)
    """Samples that all trainers compute, in inner steps of their own, until the next outer step."""
    outer_learning_rate: Real = Field(default=0.7, gt=0)
    """Of the mean displacement; 1 without momentum is plain averaging of parameters."""
    outer_momentum: Real = Field(default=0.9, ge=0, lt=1)
    """Of Nesterov's kind; 0: none."""
    delay: Literal[0, 1] = 0
    """0: everybody waits for the round; 1: it goes on beside the next inner steps, and its step comes one late."""
    max_gradient_norm: Real | None = Field(default=1.0, gt=0)
    """Clip the gradient of each inner step to this norm; null: do not clip."""


class VcAsgd(Section):
    """Asynchronous work units with deadlines, for preemptible machines (Atre et al., "Distributed Deep Learning Using
    Volunteer Computing-Like Paradigm"). Epochs are pushes: a pass has ``shards`` of them.
    """

    name: Literal["vc_asgd"]
    shards: Whole = Field(default=50, ge=1)
    """Work units that a pass over the data is cut into."""
    alpha: Real | Literal["pass"] = Field(default="pass")
    """What a push keeps of what is stored, 0 to 1; ``pass``: e/(e+1) in pass e."""
    max_staleness: Whole | None = Field(default=None, ge=0)
    """A push that is based on parameters so many pushes old does not count; null: every one does."""
    first_lease_s: Real = Field(default=300.0, gt=0)
    """How long a unit is somebody's before anybody knows how long one takes."""
    consistency: Literal["strong", "eventual"] = "strong"
    """``strong``: no push is ever lost; ``eventual``: servers mix side by side, and one may overwrite another's."""
    units_at_once: Whole = Field(default=1, ge=1, le=16)
    """That a client has leases on: one is computed, one on its way to a server, and the others wait."""
    max_gradient_norm: Real | None = Field(default=1.0, gt=0)
    """Clip the gradient of each step to this norm; null: do not clip."""

    @property
    def target_batch_size(self) -> int:
        """Nobody waits for a batch: each push is a step of the swarm."""
        return 1

    @field_validator("alpha")
    @classmethod
    def _check_alpha(cls, alpha: float | str) -> float | str:
        if isinstance(alpha, float) and not 0.0 <= alpha < 1.0:
            raise ValueError("0 or more, and below 1: with 1 nothing is ever learnt")
        return alpha


class Solo(Section):
    """No communication: every peer trains alone; the baseline of comparisons."""

    name: Literal["solo"]
    target_batch_size: Whole = Field(default=256, ge=1)
    max_gradient_norm: Real | None = Field(default=1.0, gt=0)


class ForeignStrategy(Foreign):
    """A strategy of somebody's own; see ``collab.strategies.base.Strategy``."""

    target_batch_size: Whole = Field(default=256, ge=1)


Strategy = Annotated[Dedloc | Dts | Diloco | VcAsgd | Solo | ForeignStrategy, Field(discriminator="name")]


def waits_for_rounds(strategy: Strategy) -> bool:
    """Whether trainers wait for the rounds of a strategy; else these go on beside their microbatches."""
    if isinstance(strategy, Dedloc | Diloco):
        return strategy.delay == 0
    return not isinstance(strategy, Dts)


# -- the run ---------------------------------------------------------------------------------------------------------


class Run(Section):
    """One run file."""

    run_id: str = Field(pattern=RUN_ID)
    about: About = About()
    """What volunteers read before they take part."""
    access: Literal["open", "invite_only"] = "open"
    """``open``: whoever has the run's address may join; ``invite_only``: whom 'collab-peer invite' has named."""
    orphan_after_h: Real = Field(default=24.0, gt=0)
    """Hours without any backbone, after which trainers keep their state and stop."""
    when_alone: Literal["train", "wait"] = "train"
    """What a trainer does while no other one is here."""
    seed: Whole = Field(default=0, ge=0, lt=2**32)
    microbatch_size: Whole = Field(default=8, ge=1)
    """Samples of one forward and backward, unless a volunteer says otherwise."""
    until_epoch: Whole | None = Field(default=None, ge=1)
    """Peers stop after this many global steps; null: never."""
    until_loss: Real | None = Field(default=None, gt=0)
    """The run ends when a checkpoint has this loss on the held-out split, or less; null: however low."""
    until_accuracy: Real | None = Field(default=None, gt=0, le=1)
    """And when it gets this share of the held-out samples right; null: however many."""
    hub_repo: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}$")
    """Repository of the Hugging Face Hub where the backbone publishes checkpoints. Peers need not agree on it, so it is
    no part of the fingerprint, and only the backbone that has the run file in its directory goes by it."""
    task: Task
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    strategy: Strategy = Dedloc(name="dedloc")
    averaging: Averaging = Averaging()
    checkpoints: Checkpoints = Checkpoints()

    @model_validator(mode="after")
    def _check_accuracy(self) -> "Run":
        if self.until_accuracy is not None and isinstance(self.task, CausalLMTask):
            raise ValueError("until_accuracy: a language model is not right or wrong; set until_loss instead")
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> "Run":
        if not isinstance(self.strategy, Dts) or self.strategy.windows == 1:
            return self
        if self.averaging.reduction != "mean":
            raise ValueError("strategy.windows above 1 may be empty: set averaging.reduction: mean, or windows: 1")
        if self.averaging.compression in ("sparse", "sparse_both"):
            raise ValueError(
                f"averaging.compression: {self.averaging.compression} leaves most of a window to later rounds, and "
                "with strategy.windows above 1 a round takes seconds: set another compression, or windows: 1"
            )
        return self

    @model_validator(mode="after")
    def _check_units(self) -> "Run":
        streams = isinstance(self.task, CausalLMTask) and isinstance(self.task.data, HubData)
        if isinstance(self.strategy, VcAsgd) and (streams or placement_of(self.task) == "local"):
            raise ValueError(
                "strategy vc_asgd: a unit of work has to mean the same samples on every machine, and data that are "
                "streamed, or of placement: local, differ: put task.data in files on all of them, or take dts or diloco"
            )
        return self

    @model_validator(mode="after")
    def _check_momentum(self) -> "Run":
        if isinstance(self.strategy, Dts | Diloco | VcAsgd) and self.averaging.worker_momentum:
            name = self.strategy.name
            raise ValueError(f"averaging.worker_momentum is of gradients; with {name} set optimizer.momentum instead")
        return self


def parse_run(text: str, *, origin: str) -> Run:
    """Validate the text of a run file.

    Args:
        text: YAML.
        origin: where it came from, for messages.

    Raises:
        ConfigError: not YAML, or a field is unknown, missing, of a wrong type or impossible; every problem is listed.
    """
    return read_section(
        Run,
        text,
        origin=origin,
        where_from="start from the file that 'collab-peer init DIR' writes",
        where_explained="'collab-peer init DIR' documents every one",
    )


def load_run(path: Path) -> Run:
    """Read and validate a run file.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the run file {path}: {error}", hint="make one with 'collab-peer init DIR'"
        ) from error
    return parse_run(text, origin=str(path))


def fingerprint(run: Run, assets: dict[str, str], owner: str = "") -> str:
    """What two peers compare to know that they mean the same run.

    Args:
        run: the validated run file; comments and the order of fields do not matter, nor does ``hub_repo``.
        assets: SHA-256 in hex of each file that travels with it, by name (``tokenizer.json``).
        owner: peer id of the key whose orders count; empty: nobody's do.

    Returns:
        64 hex digits.
    """
    agreed = run.model_dump(mode="json", exclude={"hub_repo"} if run.about != About() else {"hub_repo", "about"})
    content = {"run": agreed, "assets": assets} | ({"owner": owner} if owner else {})
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
