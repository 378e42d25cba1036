"""What a peer that trains nothing tells of the swarm, and when."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from collab.averaging.agreement import CommitRecord
from collab.config import parse_run
from collab.metrics.records import EvaluationDone, Event, SwarmReport
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.parameter_store.base import lineage_of
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId
from peers.credible import Credible
from peers.reporting import Reporter
from scripts.dashboard_swarm import RUN
from tests.averaging.records import make_record
from tests.fakes import NOW
from tests.swarm.people import PEOPLE, backbone, record


class Told:
    """A backbone, person 7, with its reporter."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.membership: Any = SimpleNamespace(era="", our_record=lambda: backbone(7))
        bundle = Bundle(parse_run(RUN, origin="the test"), {}, PeerId(""))
        observer: Any = SimpleNamespace(observe=self.events.append)
        self.rounds: list[CommitRecord] = []
        self.version: int | None = None
        credible = Credible(
            bundle.run,
            lambda: self.membership.era,
            lambda: self.rounds,
            trusts=lambda peer: peer == PEOPLE[7].peer_id,
            version=lambda: self.version,
        )
        self._reporter = Reporter(observer, Mandate(bundle), self.membership, credible)

    def of(self, *records: PeerRecord) -> list[Event]:
        """Of these what is told."""
        self.events.clear()
        self._reporter.report(SwarmView(records, NOW))
        return list(self.events)


def test_an_evaluation_that_comes_after_the_report_of_its_step_is_told_once() -> None:
    told = Told()
    (report,) = told.of(record(0, epoch=10), record(1, epoch=10))
    assert isinstance(report, SwarmReport)
    assert report.eval_epoch == -1
    late = record(0, epoch=10, eval_epoch=10, eval_loss=1.25, eval_accuracy=0.5)
    (done,) = told.of(late, record(1, epoch=10))
    assert isinstance(done, EvaluationDone)
    assert (done.epoch, done.loss, done.accuracy, done.at_s) == (10, 1.25, 0.5, NOW)
    assert told.of(late, record(1, epoch=10)) == []
    (report,) = told.of(record(0, epoch=11, lineage=Lineage("m"), eval_epoch=10, eval_loss=1.25))
    assert isinstance(report, SwarmReport)
    assert told.of(record(0, epoch=11, lineage=Lineage("m"), eval_epoch=10, eval_loss=1.25)) == []


def test_that_of_the_last_step_is_told_also_when_all_trainers_are_leaving() -> None:
    told = Told()
    told.of(record(0, epoch=10))
    (done,) = told.of(record(0, epoch=10, state=PeerState.LEAVING, eval_epoch=10, eval_loss=1.25))
    assert isinstance(done, EvaluationDone)


def test_an_evaluation_that_cannot_be_or_is_our_own_is_not_told() -> None:
    told = Told()
    told.of(record(0, epoch=10))
    assert told.of(record(0, epoch=10, eval_epoch=12, eval_loss=0.0)) == [], "nobody is there yet"
    assert told.of(record(0, epoch=10, eval_epoch=10)) == [], "it has no loss"
    assert told.of(record(0, epoch=10), backbone(7, eval_epoch=10, eval_loss=1.0)) == [], "we have told of it"
    told.membership.our_record = lambda: backbone(7, eval_epoch=5, eval_loss=1.0)
    assert told.of(record(0, epoch=10, eval_epoch=10, eval_loss=0.0)) == [], "we measure ourselves"


def test_after_a_rollback_evaluations_of_before_are_not_told_and_later_ones_are() -> None:
    told = Told()
    told.of(record(0, epoch=20, eval_epoch=20, eval_loss=1.0))
    told.membership.era = "back"
    told.of(record(0, epoch=10, era="back", eval_epoch=-1))
    (done,) = told.of(
        record(0, epoch=10, era="back", eval_epoch=10, eval_loss=2.0), record(1, epoch=10, eval_epoch=20, eval_loss=1.0)
    )
    assert isinstance(done, EvaluationDone)
    assert (done.epoch, done.loss) == (10, 2.0)


def test_no_step_of_another_history_than_ours_is_told() -> None:
    """Seen just before we heard of a rollback; or taken after one that we have not heard of yet."""
    told = Told()
    assert told.of(record(0, epoch=20, era="back")) == []
    told.membership.era = "back"
    assert told.of(record(0, epoch=20)) == []
    (report,) = told.of(record(0, epoch=11, era="back"), record(1, epoch=20), record(2, epoch=20))
    assert isinstance(report, SwarmReport)
    assert (report.epoch, report.trainers) == (11, 1)


def test_what_is_measured_here_counts_before_what_anybody_says_and_else_the_middle_of_it() -> None:
    boast, honest = (record(number, epoch=10, eval_epoch=10, eval_loss=loss) for number, loss in ((0, 0.0), (1, 2.5)))
    silent = record(2, epoch=10, eval_epoch=10, eval_loss=math.nan)
    for others, ours, loss in (
        ((boast, honest, replace(honest, peer=PEOPLE[3].peer_id), silent), backbone(7), 2.5),
        ((boast, honest), backbone(7, eval_epoch=5, eval_loss=3.0), 3.0),
    ):
        told = Told()
        told.membership.our_record = lambda ours=ours: ours
        (report,) = told.of(*others, ours)
        assert isinstance(report, SwarmReport)
        assert report.eval_loss == loss


def test_an_epoch_that_a_stranger_claims_beyond_the_rounds_that_were_seen_is_not_told() -> None:
    told = Told()
    told.rounds = [make_record(contributors=((PEOPLE[0].peer_id, 8.0),), epoch=epoch) for epoch in (8, 9)]
    told.of(record(0, epoch=10), record(1, epoch=10**15))
    (report,) = told.of(record(0, epoch=11), record(1, epoch=10**15))
    assert isinstance(report, SwarmReport)
    assert (report.epoch, report.trainers) == (11, 1)
    (report,) = told.of(record(0, epoch=300), record(1, epoch=10**15))
    assert isinstance(report, SwarmReport)
    assert report.epoch == 300, "we were away from the rounds"


def test_where_parameters_are_stored_the_store_says_how_far_the_run_is() -> None:
    told = Told()
    told.version = 12
    (report,) = told.of(record(0, epoch=11), record(1, epoch=10**15))
    assert isinstance(report, SwarmReport)
    assert (report.epoch, report.lineage) == (12, lineage_of(12, ""))
    assert told.of() == [], "nobody is here"
