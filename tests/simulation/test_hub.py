"""Several backbones in virtual time, each of which may publish on one Hub: its real client, over real HTTP."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from collab.checkpoints.hub_publisher import Beside, HubPublisher, Staged
from collab.checkpoints.hub_repository import HubPlace, HubRepository, There
from collab.checkpoints.local import path_of, read_state
from collab.concurrency import Background
from collab.metrics.records import CheckpointOnHub, EpochFinished
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.identity import Identity
from collab.swarm.statements import Rollback
from peers.backbone import Backbone
from peers.hub_desk import HubDesk, HubPlan
from tests.fakes import FakeCompute
from tests.hub.client import hub
from tests.hub.standin import HubStandIn
from tests.simulation.swarm import SimSwarm

__all__ = ["hub"]
NAME = "org/simulated"


def nothing_more(_: Staged, there: There) -> Beside:
    return Beside(files={}, figures={})


def add_backbone(swarm: SimSwarm, server: HubStandIn, every_s: float = 0.0) -> SimPeer:
    """A backbone that publishes on the Hub, in each of its lives."""
    index = len(swarm.world.peers)

    async def main(ports: Ports) -> None:
        async with Background() as tasks:
            tasks.create_task(publish(ports, swarm.backbones.get(index)))
            await swarm.roles.serve(ports, index, has_joined=index > 0)

    async def publish(ports: Ports, before: Backbone | None) -> None:
        while (backbone := swarm.backbones.get(index)) is before:
            await asyncio.sleep(0.1)
        assert backbone is not None
        repository = HubRepository(HubPlace(NAME), endpoint=server.url)
        publisher = HubPublisher(repository, swarm.directory / f"outbox-{index}", nothing_more)
        plan = HubPlan(place=NAME, publish=publisher.publish, worker=FakeCompute(), every_s=every_s)
        desk = HubDesk(ports, backbone.keeper.shelf, backbone.lease.tenure, plan)
        backbone.last_errand = desk.finish
        await desk.run()

    return swarm.world.add_peer(main, link=Link(up_bytes_per_s=25e6, down_bytes_per_s=25e6, latency_s=0.01))


def published(server: HubStandIn) -> list[tuple[int, int, str]]:
    """Epoch, term and holder of each commit, all of whose files are of one checkpoint."""
    found = []
    for commit in server.repositories[NAME].commits[1:]:
        state = json.loads(commit.files["collab_state.json"])
        for name, digest in state["sha256"].items():
            assert hashlib.sha256(commit.files[name]).hexdigest() == digest, name
        found.append((state["epoch"], state["hub"]["term"], state["hub"]["holder"]))
    return found


def check_in_order(commits: list[tuple[int, int, str]]) -> None:
    """Neither epochs nor tenures go back, and no epoch comes twice."""
    assert [epoch for epoch, _, _ in commits] == sorted({epoch for epoch, _, _ in commits})
    tenures = [(term, holder) for _, term, holder in commits]
    assert tenures == sorted(tenures)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_backbones_that_die_one_after_the_other_leave_one_line_of_commits(
    hub: HubStandIn, tmp_path: Path, seed: int
) -> None:
    """The Hub stumbles at everything now and then, and backbones are killed just as they publish."""
    swarm = SimSwarm(tmp_path, seed=seed, until=60, every=5, target=640)
    swarm.backbones_stay_s = 60.0
    backbones = [add_backbone(swarm, hub) for _ in range(3)]
    for _ in range(3):
        swarm.add_trainer(microbatch_size=32)
    for kind, status in (("PUT /large/.*", 0), ("POST .*/commit/main", 503), ("POST .*/preupload/main", 429)):
        hub.fault(kind, status, times=2)
    hub.fault("POST .*/commit/main", 0, after=True)
    for number, peer in enumerate(backbones):
        swarm.churn.fail_at(peer=peer.index, time_s=30.0 + 35.0 * number, restart_after_s=20.0)
    swarm.world.run()
    assert not swarm.churn.unfired()
    commits = published(hub)
    check_in_order(commits)
    assert commits[-1][0] == 60, "the last epoch is there in the end"
    assert len({holder for _, _, holder in commits}) > 1
    told = [event.epoch for peer in backbones for event in swarm.events(peer, CheckpointOnHub)]
    assert set(told) <= {epoch for epoch, _, _ in commits}


def test_a_hub_that_is_gone_slows_nobody_down_and_gets_the_newest_one_when_it_is_back(
    hub: HubStandIn, tmp_path: Path
) -> None:
    ends_s = []
    for name, is_there in (("with", True), ("without", False)):
        swarm = SimSwarm(tmp_path / name, until=30, every=5, target=640)
        swarm.backbones_stay_s = 300.0
        add_backbone(swarm, hub)
        for _ in range(2):
            swarm.add_trainer(microbatch_size=32)
        if not is_there:
            del hub.repositories[NAME]
            hub.fault(".*", 503, times=5)
        swarm.world.run()
        steps = [event.at_s for peer in swarm.world.peers[1:] for event in peer.events if hasattr(event, "own_samples")]
        ends_s.append(max(steps))
        commits = published(hub)
        check_in_order(commits)
        assert commits[-1][0] == 30
    assert ends_s[0] == ends_s[1], "to the very moment"


def test_few_commits_are_made_and_the_last_checkpoint_is_there_when_the_backbone_leaves(
    hub: HubStandIn, tmp_path: Path
) -> None:
    swarm = SimSwarm(tmp_path, until=30, every=5, target=640)
    swarm.backbones_stay_s = 20.0
    add_backbone(swarm, hub, every_s=3600.0)
    for _ in range(2):
        swarm.add_trainer(microbatch_size=32)
    swarm.world.run()
    assert [epoch for epoch, _, _ in published(hub)] == [0, 30]


def test_what_is_on_the_hub_is_of_the_history_after_a_rollback_long_before_the_next_commit_is_due(
    hub: HubStandIn, tmp_path: Path
) -> None:
    """The run had gone on since its last commit, and goes back to a step after that."""
    swarm = SimSwarm(tmp_path, until=20, every=5, target=640, owner=Identity.from_seed(bytes([77] * 32)))
    swarm.backbones_stay_s = 20.0
    add_backbone(swarm, hub, every_s=3600.0)
    trainer, _ = (swarm.add_trainer(microbatch_size=32) for _ in range(2))
    gone_back: list[int] = []

    def go_back() -> None:
        state = read_state(path_of(tmp_path / "backbone-0" / "checkpoints", 10))
        swarm.order(Rollback(to_epoch=10, lineage=state["lineage"]))

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainer and isinstance(event, EpochFinished) and event.epoch == 14 and not gone_back:
            gone_back.append(event.epoch)
            swarm.world.call_at(event.at_s - EPOCH_S + 0.5, go_back)

    swarm.world.subscribe(watch)
    swarm.world.run()
    assert [epoch for epoch, _, _ in published(hub)] == [0, 10, 20]
    _, _, again, _ = hub.repositories[NAME].commits
    era = swarm.backbones[0].statutes.mandate.era
    assert era
    assert json.loads(again.files["collab_state.json"])["era"] == era
