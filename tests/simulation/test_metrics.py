"""What a backbone's metrics hold of a run: the very events of a simulated one, in the store and in the state."""

import math
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from collab.checkpoints.local import list_checkpoints, load_checkpoint
from collab.metrics.backbone_events import RolledBack, RoundPlanned, RoundShared
from collab.metrics.records import EpochFinished, RoundEnded, SwarmReport
from collab.metrics.store import MetricsStore
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.swarm.statements import Rollback
from collab.types import PeerId
from peers.credits import CreditBook
from peers.dashboard.overview import Overview
from peers.dashboard.recent import Recent
from peers.dashboard.sources import Sources
from peers.exhibiting import Publishing, concern_of
from peers.summary import DEFERRED
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_orders import owned
from tests.simulation.test_vc_asgd import swarm_of


def look(swarm: SimSwarm, at_s: float) -> dict:  # type: ignore[type-arg]
    """The state that the backbone's dashboard shows at a moment; there when the world has run."""
    found: dict = {}  # type: ignore[type-arg]
    swarm.world.call_at(at_s, lambda: found.update(overview(swarm).state()))
    return found


def overview(swarm: SimSwarm) -> Overview:
    backbone, peer = swarm.backbones[0], swarm.world.peers[0]
    with closing(MetricsStore.in_memory()) as store:
        store.write(peer.events)
        recent = Recent(store, lambda: [record.peer for record in backbone.membership.view.records])
    book = CreditBook(swarm.directory / "credits.sqlite", only_seen=True)
    book.meet(backbone.membership.view.records)
    book.note(backbone.membership.view.records, contributors=backbone.contributors())
    assert peer.ports is not None
    return Overview(
        Sources(
            run=swarm.bundle.run,
            mandate=backbone.statutes.mandate,
            clock=peer.ports.clock,
            me=PeerId(peer.identity.peer_id),
            view=lambda: backbone.membership.view,
            credible=backbone.reporter.credible,
            credits=book,
            store=store,
            recent=recent,
            problem=backbone.problem,
            concern=lambda: concern_of(backbone, Publishing()),
            on_disk=lambda: backbone.keeper.shelf.epochs,
            home=str(swarm.directory),
        )
    )


def test_a_backbone_tells_who_brought_what_and_who_averaged_it(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=8, target=128, optimizer="{name: sgd, learning_rate: 0.2}")
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer(), swarm.add_trainer(samples_per_s=200.0)]
    told = look(swarm, 9.0)
    with swarm.world:
        swarm.world.run()
    shared = swarm.events(backbone, RoundShared)
    committed = {event.round_id: event for event in swarm.events(backbone, RoundEnded) if event.committed}
    assert {event.round_id for event in shared} == committed.keys()
    ids = {trainer.identity.peer_id for trainer in trainers}
    for event in shared:
        ended = committed[event.round_id]
        assert {peer for peer, _ in event.brought} <= ids
        assert math.fsum(samples for _, samples in event.brought) == pytest.approx(ended.samples)
        assert math.fsum(share for _, share in event.reduced) == pytest.approx(1.0)
        assert event.left_out == ()
    planned = {event.round_id: event for event in swarm.events(backbone, RoundPlanned)}
    assert planned.keys() >= committed.keys(), "it leads all rounds here"
    rates = {peer: (up, down) for peer, up, down, _ in list(planned.values())[-1].links}
    assert all(rates[peer][0] > 0 for peer in ids), "as they have measured by then"
    reports = swarm.events(backbone, SwarmReport)
    assert {report.learning_rate for report in reports} == {0.2}
    assert told["health"]["level"] == "good"
    assert {peer["doing"] for peer in told["peers"] if peer["role"] == "trainer"} == {"trains"}
    assert told["now"]["epoch"] > 0
    assert [row["name"] for row in told["contributors"]["rows"]] == ["trainer-2", "trainer-1"]


def test_an_auxiliary_tells_where_the_swarm_stands_and_counts_its_rounds(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=8)
    backbone, auxiliary = swarm.add_backbone(), swarm.add_auxiliary()
    swarm.add_trainer()
    swarm.add_trainer()
    with swarm.world:
        swarm.world.run()
    reports, others = (swarm.events(peer, SwarmReport) for peer in (auxiliary, backbone))
    assert len({report.epoch for report in reports}) > 1
    assert {report.lineage for report in reports} <= {report.lineage for report in others}
    assert all(report.trainers == 2 for report in reports)
    assert math.isfinite(reports[-1].loss)
    committed = [event for event in swarm.events(auxiliary, RoundEnded) if event.committed]
    assert len(committed) == swarm.roles.auxiliaries[auxiliary.index].assistant.rounds_committed > 0


def test_a_peer_whose_upload_would_hold_up_the_others_is_told_of_as_left_out(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12, target=256, hidden=2000)
    backbone = swarm.add_backbone()
    for _ in range(3):
        swarm.add_trainer()
    slow = swarm.add_trainer(link=Link(up_bytes_per_s=40e3, down_bytes_per_s=2.5e6, latency_s=0.02))
    with swarm.world:
        swarm.world.run()
    left_out = [pair for event in swarm.events(backbone, RoundShared) for pair in event.left_out]
    assert (slow.identity.peer_id, DEFERRED) in left_out
    others = [peer for peer, _ in left_out if peer != slow.identity.peer_id]
    assert len(others) <= len(left_out) / 4


def test_the_curves_of_a_run_that_was_rolled_back_are_those_of_what_counts(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=20, every=5)
    trainers = [swarm.add_trainer() for _ in range(2)]
    done: list[int] = []

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainers[0] and isinstance(event, EpochFinished) and event.epoch == 13 and not done:
            done.append(event.epoch)
            swarm.world.call_at(swarm.world.time_s + 0.5, go_back)

    def go_back() -> None:
        path = next(p for p in list_checkpoints(tmp_path / "backbone-0" / "checkpoints") if p.name.endswith("10"))
        snapshot = load_checkpoint(path, fingerprint=swarm.bundle.fingerprint)
        swarm.order(Rollback(to_epoch=10, lineage=snapshot.lineage))

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    events = swarm.world.peers[0].events
    assert [event.epoch for event in events if isinstance(event, RolledBack)] == [10]
    at = next(number for number, event in enumerate(events) if isinstance(event, RolledBack))
    with closing(MetricsStore.in_memory()) as store:
        store.write(events[: at + 1])
        assert max(store.curve("loss").epochs) <= 10
        store.write(events[at + 1 :])
        assert store.curve("loss").epochs[-1] == 20


def test_a_backbone_that_slept_through_a_rollback_comes_back_without_what_was_undone(tmp_path: Path) -> None:
    """Its disk has no checkpoint of the epoch gone back to, and gets one of a later epoch."""
    swarm = owned(tmp_path, until=40, every=5)
    sleeper, trainers = swarm.add_backbone(has_joined=True), [swarm.add_trainer() for _ in range(2)]
    roots = [tmp_path / f"backbone-{index}" / "checkpoints" for index in range(2)]
    before: list[int] = []
    is_awake: list[bool] = []

    def sleep() -> None:
        swarm.world.kill(sleeper.index)
        before.append(len(sleeper.events))
        shutil.rmtree(roots[1] / "epoch-00000010")
        snapshot = load_checkpoint(roots[0] / "epoch-00000010", fingerprint=swarm.bundle.fingerprint)
        swarm.order(Rollback(to_epoch=10, lineage=snapshot.lineage))

    def watch(peer: SimPeer, event: object) -> None:
        if peer is not trainers[0] or not isinstance(event, EpochFinished):
            return
        if event.epoch == 18 and not before:
            swarm.world.call_at(swarm.world.time_s + 0.1, sleep)
        if event.epoch == 27 and not is_awake:
            is_awake.append(True)
            swarm.world.call_at(swarm.world.time_s + 0.1, lambda: swarm.world.restart(sleeper.index))

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    lives = sleeper.events[: before[0]], sleeper.events[before[0] :]
    undone, seen = ({one.epoch for one in life if isinstance(one, SwarmReport) and one.epoch > 10} for life in lives)
    assert undone, "there was something to forget"
    assert [event.epoch for event in lives[1] if isinstance(event, RolledBack)] == [10]
    with closing(MetricsStore.in_memory()) as store:
        store.write(sleeper.events)
        assert {epoch for epoch in store.curve("loss").epochs if epoch > 10} == seen
        assert store.era() == swarm.backbones[0].statutes.mandate.era


def test_the_table_of_checkpoints_shows_those_that_are_there_also_after_a_rollback(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=40, every=5)
    backbone, trainers = swarm.world.peers[0], [swarm.add_trainer() for _ in range(2)]
    root = tmp_path / "backbone-0" / "checkpoints"
    seen: list[tuple[list[int], list[int]]] = []
    done: list[int] = []

    def compare() -> None:
        shown = [one["epoch"] for one in overview(swarm).state()["checkpoints"] if one["where"] == "disk"]
        seen.append((sorted(shown, reverse=True), [int(path.name[6:]) for path in list_checkpoints(root)]))

    def go_back() -> None:
        path = next(p for p in list_checkpoints(root) if p.name.endswith("15"))
        snapshot = load_checkpoint(path, fingerprint=swarm.bundle.fingerprint)
        swarm.order(Rollback(to_epoch=15, lineage=snapshot.lineage))

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainers[0] and isinstance(event, EpochFinished) and event.epoch == 23 and not done:
            done.append(event.epoch)
            swarm.world.call_at(swarm.world.time_s + 0.1, go_back)
        if peer is backbone and isinstance(event, SwarmReport):
            swarm.world.call_at(swarm.world.time_s + 0.1, compare)

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    assert [event.epoch for event in backbone.events if isinstance(event, RolledBack)] == [15]
    assert [shown for shown, there in seen if shown != there] == []
    assert [25, 30, 35] in [sorted(there) for _, there in seen], "older ones are deleted"
    assert [15] in [there for _, there in seen], "and later ones set aside"


def test_where_pushes_are_steps_nobody_is_behind_and_no_step_is_due(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 2)
    told = look(swarm, 20.0)
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert {peer["doing"] for peer in told["peers"] if peer["role"] == "trainer"} == {"trains"}
    assert told["now"]["epoch"] > 0
    assert told["now"]["next_step_s"] is None
    assert told["health"]["level"] == "good"
    assert told["rounds"] == []
    given = [peer["brought_at_s"] for peer in told["peers"] if peer["samples"]]
    assert given
    assert all(told["at_s"] - 20.0 < at_s <= told["at_s"] for at_s in given)
