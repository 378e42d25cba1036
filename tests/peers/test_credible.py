"""Whose word counts in what a panel shows, and since when trainers are here."""

from types import SimpleNamespace
from typing import Any

from collab.config import parse_run
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import Lineage, PeerId
from peers.credible import Credible
from peers.progress import ahead_of_swarm, ahead_of_trainer, seen_by_trainer
from peers.reporting import Reporter
from scripts.dashboard_swarm import RUN
from tests.averaging.records import make_record
from tests.fakes import NOW
from tests.swarm.people import backbone, record


def test_a_stranger_s_claim_says_to_no_panel_how_far_the_run_is_or_when_the_next_step_comes() -> None:
    bundle = Bundle(parse_run(RUN, origin="the test"), {}, PeerId(""))
    here = record(0, epoch=10, samples_per_s=8.0)
    ahead = record(1, epoch=2**53, lineage=Lineage("x"), samples_per_s=1e9)
    keeper = backbone(2, checkpoint_epoch=2**53)
    rounds, view = [make_record(contributors=((here.peer, 8.0),), epoch=9)], SwarmView((here, ahead, keeper), NOW)
    members = SimpleNamespace(era="", known_records=lambda: rounds, trusts=lambda _: False, view=view)
    participant: Any = SimpleNamespace(
        bundle=bundle,
        membership=members,
        statutes=SimpleNamespace(mandate=Mandate(bundle)),
        replica=SimpleNamespace(lineage=here.lineage, epoch=10),
        ports=SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW)),
    )
    credible = Credible(bundle.run, str, members.known_records, trusts=members.trusts)
    for found in (ahead_of_swarm(credible, Mandate(bundle), view, NOW), ahead_of_trainer(participant)):
        assert found is not None
        assert (found.epoch, found.step_s) == (10, 512 / 8.0)
    assert seen_by_trainer(participant).num_trainers == 1


def test_trainers_came_when_the_first_did_to_where_none_was_also_if_nobody_looked() -> None:
    bundle = Bundle(parse_run(RUN, origin="the test"), {}, PeerId(""))
    mandate, credible = Mandate(bundle), Credible(bundle.run, str, list, trusts=bool)
    observer: Any = SimpleNamespace(observe=lambda _: None)
    membership: Any = SimpleNamespace(era="", our_record=lambda: backbone(7))
    reporter, one, other = Reporter(observer, mandate, membership, credible), record(0), record(1)

    def here_s(*seen: tuple[float, tuple[PeerRecord, ...]]) -> float:
        for at_s, records in seen:
            reporter.report(SwarmView(records, at_s))
        at_s, records = seen[-1]
        return ahead_of_swarm(credible, mandate, SwarmView(records, at_s), at_s + 0.5).here_s

    assert here_s((5.0, (one,)), (6.0, (one, other)), (9.0, (other,))) == 4.5
    assert here_s((10.0, ()), (11.0, (one,)), (13.0, (one,))) == 2.5
