"""What happens in a peer, as values: for the terminal, the metrics files, and the fault scripts of the simulation."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from collab.types import Lineage, PeerId, Reachability

OTHER = "other"
_REASON = re.compile(r"[A-Za-z_]{1,32}")


def safe_reason(text: str) -> str:
    """A reason as it can be counted and shown: one word."""
    return text if _REASON.fullmatch(text) else OTHER


class Phase(StrEnum):
    """Moments of a round and of a peer's life that faults and tests can name."""

    ACCUMULATE = "accumulate"
    JOIN_GROUP = "join_group"
    SEND_PARTS = "send_parts"
    REDUCE = "reduce"
    RETURN_PARTS = "return_parts"
    BEFORE_COMMIT = "before_commit"
    COMMIT = "commit"
    FETCH_STATE = "fetch_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events."""

    at_s: float
    """Swarm time, seconds since the Unix epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReached(Event):
    """The peer is about to do ``phase`` of ``epoch``."""

    phase: Phase
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchDone(Event):
    """One forward and backward went into the accumulated gradient."""

    epoch: int
    samples: int
    loss: float
    """Mean over the microbatch's samples."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchSkipped(Event):
    """A microbatch was thrown away before it touched the accumulated gradient, because of ``reason``."""

    epoch: int
    samples: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(Event):
    """One attempt to average is over."""

    epoch: int
    round_id: str
    committed: bool
    contributors: int
    """Peers whose data is in the mean; 0 when aborted."""
    samples: float
    """Total weight behind the mean; 0 when aborted."""
    seconds: float
    reason: str
    """Why it was aborted, in words; empty when committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRefused(Event):
    """Something that another peer brought to a round was refused, or the round went on without it or its reducing."""

    epoch: int
    """-1: it named no round that is known."""
    peer: PeerId
    reason: str
    """One word of a fixed set, to be counted."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(Event):
    """The replica took an optimiser step; ``epoch`` is the number of steps taken so far."""

    epoch: int
    lineage: Lineage
    loss: float
    """Mean over this peer's own samples of the epoch; NaN when it had none."""
    own_samples: int
    own_weight: float
    """The same, and what of other samples is in the step, by the share of the elements; the rest of these is held."""
    sample_ids: tuple[int, ...]
    """This peer's samples in the step, so that a run can be replayed in one process."""
    sample_epochs: tuple[int, ...]
    """For each of them, the epoch at whose parameters its gradient was computed; earlier when it was carried over."""
    used_in: tuple[str, ...]
    """Ids of the rounds that used something of this peer: this step's, and any before it of which we learn only now."""
    swarm_samples: float
    contributors: int
    learning_rate: float
    seconds: float
    """Since the previous step; 0: others took that one, and when is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsAveraged(Event):
    """Windows of own steps, whose means are here; of several in a round they came one by one while it went on."""

    epoch: int
    """Global steps that we have taken by now."""
    paces: tuple[tuple[int, int], ...]
    """Of each window the own steps in it, and those from its end until its mean was here."""
    period: float
    """The former, median."""
    delay: float
    """The latter, median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesUsed(Event):
    """Samples of ours are in a step that the swarm took without us; we have learned of it, and taken the step over."""

    epoch: int
    """Global steps that we have taken by now."""
    samples: int
    weight: float
    """As ``EpochFinished.own_weight``."""
    sample_ids: tuple[int, ...]
    sample_epochs: tuple[int, ...]
    used_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone(Event):
    """The model was evaluated on the held-out split right after ``epoch`` steps."""

    epoch: int
    loss: float
    seconds: float
    """NaN: another peer did, and has told so."""
    accuracy: float = math.nan
    """Share of the held-out samples got right; NaN: the task has no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFetched(Event):
    """A snapshot was taken over."""

    donors: Mapping[PeerId, int]
    """How many of its bytes came from whom."""
    epoch: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is on disk, whole."""

    epoch: int
    path: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOnHub(Event):
    """A checkpoint is on the Hugging Face Hub, whole."""

    epoch: int
    place: str
    """The repository."""
    commit: str
    num_bytes: int
    """Of its files; those that were there already were not sent again."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanged(Event):
    """A backbone publishes the run's snapshots from now on, or does so no more."""

    term: int
    """0: no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Something a person should read. ``is_problem`` asks for action, and ``hint`` says which."""

    text: str
    hint: str = ""
    is_problem: bool = False
    settles: str = ""
    """Text of the problem that is over with this; empty: of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachDecided(Event):
    """How others can reach this machine: at join, and when a way through its router was found later."""

    reach: Reachability
    text: str
    hint: str
    """What its owner can do about it; empty: nothing needs to be done."""
    host: str
    """Where they see it; empty: nobody said."""
    port: int
    """TCP port that it listens on; 0: none."""
    num_asked: int
    """Peers that were asked to dial it."""
    num_answered: int
    num_reached: int
    """Of these, whose dial arrived."""
    seconds: float
    """What the verdict at join took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBegun(Event):
    """A unit of work that a server has handed out to this peer, which trains it now."""

    pass_number: int
    """From 1."""
    shard: int
    samples: int
    version: int
    """Of the parameters that it begins with."""
    lease_s: float
    """For which it is this peer's from when it was handed out, unless the peer asks for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrained(Event):
    """All samples of a block are in steps, brought by this peer."""

    data: str
    """Its name: how much it is, and its digest."""
    pass_number: int
    """From 0."""
    block: int
    samples: int
    """0 for a shard of a streamed dataset."""
    was_leased: bool
    """False: none was to be had in time, so others may have trained it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCovered(Event):
    """How far the swarm is with a pass over the data, as far as this peer knows."""

    data: str
    """Its name: how much it is, and its digest."""
    pass_number: int
    """From 0."""
    share: float
    """Of its blocks that are trained, 0 .. 1."""
    samples: int | None
    """Of the blocks trained; None for a streamed dataset: nobody knows what others have found in their shards."""
    samples_again: int | None
    """Of the blocks that were trained more than once."""
    is_complete: bool
    unleased_blocks: int
    """That this peer has trained without a lease since it began, because none was to be had in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmReport(Event):
    """The swarm as a backbone or an auxiliary peer sees it; told of each step."""

    epoch: int
    lineage: Lineage
    loss: float
    """Mean over the trainers' last finished epochs, weighted by their speeds; NaN before the first."""
    eval_loss: float
    """Of the newest evaluation; NaN before the first."""
    eval_epoch: int
    eval_accuracy: float
    """As ``eval_loss``, and NaN where there is no right and wrong."""
    samples_per_s: float
    trainers: int
    peers: int
    learning_rate: float = math.nan
    """Of the step after ``epoch``; NaN: nobody has said."""
