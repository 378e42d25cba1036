"""Whose word counts, in what a panel shows."""

from types import SimpleNamespace
from typing import Any

from collab.config import parse_run
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.types import Lineage, PeerId
from peers.credible import Credible
from peers.progress import ahead_of_swarm, ahead_of_trainer, seen_by_trainer
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
