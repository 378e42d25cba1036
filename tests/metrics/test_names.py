"""The names of metrics, and what events say in figures: one place for all who keep or show them."""

import math
from dataclasses import replace

from collab.metrics.backbone_events import RoundPlanned
from collab.metrics.names import BY_EPOCH, COUNTERS, EPOCH, counter_of, figures_of, prometheus_name
from collab.metrics.records import EvaluationDone, RoundEnded, SwarmReport
from collab.types import Lineage

REPORT = SwarmReport(
    at_s=5.0, epoch=12, lineage=Lineage("l"), loss=2.5, eval_loss=2.75, eval_epoch=10, eval_accuracy=math.nan,
    samples_per_s=64.0, trainers=3, peers=5, learning_rate=0.01,
)  # fmt: skip
ROUND = RoundEnded(
    at_s=5.0, epoch=11, round_id="r", committed=True, contributors=3, samples=96.0, seconds=1.5, reason=""
)


def values(event: SwarmReport | RoundEnded | EvaluationDone) -> dict[str, tuple[int, float]]:
    return {figure.name: (figure.epoch, figure.value) for figure in figures_of(event)}


def test_what_nobody_knows_is_no_figure_and_an_evaluation_counts_at_its_own_epoch() -> None:
    assert values(REPORT) == {
        "loss": (12, 2.5), "learning_rate": (12, 0.01), "samples_per_s": (12, 64.0), "trainers": (12, 3.0),
        "peers": (12, 5.0), "eval_loss": (10, 2.75),
    }  # fmt: skip
    assert "eval_loss" not in values(replace(REPORT, eval_epoch=-1, eval_loss=1.0))
    assert values(EvaluationDone(at_s=0.0, epoch=4, loss=1.0, seconds=0.1, accuracy=0.5)) == {
        "eval_loss": (4, 1.0), "eval_accuracy": (4, 0.5),
    }  # fmt: skip


def test_a_committed_round_counts_at_the_step_that_it_made_and_an_aborted_one_is_only_counted() -> None:
    assert values(ROUND) == {"round_s": (12, 1.5), "round_samples": (12, 96.0), "round_contributors": (12, 3.0)}
    aborted = replace(ROUND, committed=False)
    assert figures_of(aborted) == ()
    assert counter_of(ROUND) == "rounds_committed_total"
    assert counter_of(aborted) == "rounds_aborted_total"
    assert counter_of(REPORT) == ""


def test_a_planned_round_says_what_the_links_allow_if_anything_is_known_of_them() -> None:
    planned = RoundPlanned(at_s=5.0, epoch=11, round_id="r", expected_s=0.75, links=())
    assert [(one.name, one.epoch, one.value) for one in figures_of(planned)] == [("round_links_s", 12, 0.75)]
    assert figures_of(replace(planned, expected_s=0.0)) == ()


def test_all_names_differ_and_follow_the_rules() -> None:
    metrics = (EPOCH, *BY_EPOCH, *COUNTERS)
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert all(metric.name.endswith("_total") for metric in COUNTERS)
    assert not any(metric.name.endswith("_total") for metric in BY_EPOCH)
    prometheus = {metric.name: prometheus_name(metric) for metric in metrics}
    assert prometheus["samples_per_s"] == "collab_samples_per_second"
    assert prometheus["round_s"] == "collab_round_seconds"
    assert prometheus["rounds_committed_total"] == "collab_rounds_committed_total"
    assert prometheus["loss"] == "collab_loss"
