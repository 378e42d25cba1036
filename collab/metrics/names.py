"""The metrics of a run: their names, and what each event says in figures. The one place that all who keep or show
metrics (the store, the dashboard, Prometheus, wandb, trackio) take both from.
"""

import math
from dataclasses import dataclass

from collab.metrics.backbone_events import RoundPlanned
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    EvaluationDone,
    Event,
    PeerRefused,
    RoundEnded,
    SwarmReport,
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One of them."""

    name: str
    """With its unit; that of a counter ends in ``_total``."""
    text: str
    """For people, in a line."""


LOSS = Metric("loss", "Training loss: mean over the trainers, weighted by their speeds")
EVAL_LOSS = Metric("eval_loss", "Loss on the held-out samples")
EVAL_ACCURACY = Metric("eval_accuracy", "Share of the held-out samples got right, 0 to 1")
LEARNING_RATE = Metric("learning_rate", "Learning rate of the next step")
SAMPLES_PER_S = Metric("samples_per_s", "Samples that all trainers compute in a second")
TRAINERS = Metric("trainers", "Trainers that hold the model's state")
PEERS = Metric("peers", "Peers of every role")
ROUND_S = Metric("round_s", "Seconds that the newest committed round took")
ROUND_LINKS_S = Metric(
    "round_links_s", "Seconds that the links alone allow for the exchange of the newest round led by this backbone"
)
ROUND_SAMPLES = Metric("round_samples", "Samples in the newest committed round")
ROUND_CONTRIBUTORS = Metric("round_contributors", "Peers whose samples are in the newest committed round")
CHECKPOINT_EPOCH = Metric("checkpoint_epoch", "Epoch of the newest checkpoint on this backbone's disk")
HUB_EPOCH = Metric(
    "hub_epoch", "Epoch of the newest checkpoint on the Hugging Face Hub, as far as this backbone has published"
)
BY_EPOCH = (
    *(LOSS, EVAL_LOSS, EVAL_ACCURACY, LEARNING_RATE, SAMPLES_PER_S, TRAINERS, PEERS),
    *(ROUND_S, ROUND_LINKS_S, ROUND_SAMPLES, ROUND_CONTRIBUTORS, CHECKPOINT_EPOCH, HUB_EPOCH),
)
"""Each has at most one value an epoch: the last one counts."""

EPOCH = Metric("epoch", "Global steps that the swarm has taken")
"""What the others are drawn over."""

ROUNDS_COMMITTED = Metric("rounds_committed_total", "Rounds that committed, of those that this backbone was in")
ROUNDS_ABORTED = Metric("rounds_aborted_total", "Rounds that were aborted, of those that this backbone was in")
REFUSALS = Metric("refusals_total", "Refusals of what peers brought to rounds, as often as they were told of")
CHECKPOINTS = Metric("checkpoints_total", "Checkpoints that this backbone has written to its disk")
HUB_COMMITS = Metric(
    "hub_commits_total", "Checkpoints that this backbone has put on the Hub, or found there when it took over"
)
COUNTERS = (ROUNDS_COMMITTED, ROUNDS_ABORTED, REFUSALS, CHECKPOINTS, HUB_COMMITS)
"""They go on counting when the backbone is started again."""


MAX_EPOCH = 1 << 53
"""Beyond it numbers are no longer whole everywhere, and no run gets there: somebody lies."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of one metric."""

    name: str
    epoch: int
    at_s: float
    """Swarm time."""
    value: float
    """Finite."""


def figures_of(event: Event) -> tuple[Figure, ...]:
    """What an event says, but for what it does not know."""
    values: list[tuple[Metric, int, float]] = []
    match event:
        case SwarmReport():
            values = [
                (LOSS, event.epoch, event.loss),
                (LEARNING_RATE, event.epoch, event.learning_rate),
                (SAMPLES_PER_S, event.epoch, event.samples_per_s),
                (TRAINERS, event.epoch, event.trainers),
                (PEERS, event.epoch, event.peers),
                (EVAL_LOSS, event.eval_epoch, event.eval_loss),
                (EVAL_ACCURACY, event.eval_epoch, event.eval_accuracy),
            ]
        case EvaluationDone():
            values = [(EVAL_LOSS, event.epoch, event.loss), (EVAL_ACCURACY, event.epoch, event.accuracy)]
        case RoundEnded() if event.committed:
            values = [
                (ROUND_S, event.epoch + 1, event.seconds),
                (ROUND_SAMPLES, event.epoch + 1, event.samples),
                (ROUND_CONTRIBUTORS, event.epoch + 1, event.contributors),
            ]
        case RoundPlanned() if event.expected_s > 0:
            values = [(ROUND_LINKS_S, event.epoch + 1, event.expected_s)]
        case CheckpointSaved():
            values = [(CHECKPOINT_EPOCH, event.epoch, event.epoch)]
        case CheckpointOnHub():
            values = [(HUB_EPOCH, event.epoch, event.epoch)]
    told = [(m, epoch, value) for m, epoch, value in values if 0 <= epoch <= MAX_EPOCH and math.isfinite(value)]
    return tuple(Figure(metric.name, epoch, event.at_s, float(value)) for metric, epoch, value in told)


def counter_of(event: Event) -> str:
    """The counter that an event counts up; empty: none."""
    match event:
        case RoundEnded():
            return (ROUNDS_COMMITTED if event.committed else ROUNDS_ABORTED).name
        case PeerRefused():
            return REFUSALS.name
        case CheckpointSaved():
            return CHECKPOINTS.name
        case CheckpointOnHub():
            return HUB_COMMITS.name
    return ""


def prometheus_name(metric: Metric) -> str:
    """As Prometheus' naming rules want it: prefixed, and units written out."""
    name = metric.name.removesuffix("_per_s") + "_per_second" if metric.name.endswith("_per_s") else metric.name
    name = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
    return f"collab_{name}"
