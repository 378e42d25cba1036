"""The organiser's hand in a running swarm: amended, ended, banned, rolled back; and nobody else's."""

from pathlib import Path

import numpy as np
import pytest

from collab.checkpoints.local import list_checkpoints, load_checkpoint
from collab.checkpoints.local_publisher import LocalPublisher
from collab.checkpoints.rolled_back import checkpoints_to_go_back_to, hold
from collab.errors import CheckpointFailed, Dismissed
from collab.metrics.records import CheckpointSaved, EpochFinished, Notice
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.identity import Identity
from collab.swarm.progress import RECORD_LIFE_S
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Amend, Ban, End, Rollback
from peers.shelf import REST_AFTER_FAILURE_S
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

OWNER = Identity.from_seed(bytes([77] * 32))


def owned(directory: Path, **options: object) -> SimSwarm:
    swarm = SimSwarm(directory, owner=OWNER, **options)  # type: ignore[arg-type]
    swarm.add_backbone()
    return swarm


def parameters(swarm: SimSwarm, peer: SimPeer) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in swarm.replicas[peer.index].model.parameters()])


def test_an_amendment_takes_effect_at_its_epoch_on_all_peers_and_on_who_was_away(tmp_path: Path) -> None:
    """A rate of almost nothing from epoch 6 on: the parameters stand still from there, on everybody."""
    swarm = owned(tmp_path, until=14)
    trainers = [swarm.add_trainer() for _ in range(3)]
    frozen = trainers[2]
    seen: dict[int, np.ndarray] = {}

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainers[0] and isinstance(event, EpochFinished):
            seen[event.epoch] = parameters(swarm, peer).copy()

    swarm.world.subscribe(watch)
    swarm.world.call_at(5.0, lambda: swarm.order(Amend(from_epoch=6, learning_rate=1e-12)))
    swarm.world.call_at(4.0, lambda: swarm.world.freeze(frozen.index))
    swarm.world.call_at(12.0, lambda: swarm.world.thaw(frozen.index))
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=14)
    moved = {epoch: float(np.abs(seen[epoch] - seen[epoch - 1]).max()) for epoch in seen if epoch - 1 in seen}
    before, after = [moved[e] for e in moved if e <= 6], [moved[e] for e in moved if e > 6]
    assert min(before) > 1e-4
    assert max(after) < 1e-9
    assert np.array_equal(parameters(swarm, trainers[0]), parameters(swarm, frozen))


def test_a_smaller_target_batch_makes_steps_smaller_from_its_epoch_on(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=12, target=256)
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.world.call_at(3.0, lambda: swarm.order(Amend(from_epoch=6, target_batch_size=64)))
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    samples = {event.epoch: event.swarm_samples for event in swarm.events(trainers[0], EpochFinished)}
    assert min(samples[epoch] for epoch in range(2, 7)) >= 256
    assert max(samples[epoch] for epoch in range(8, 12)) < 200


def test_at_the_end_that_the_organiser_names_everybody_has_the_same_and_the_backbone_keeps_it(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=1000, every=100)
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.world.call_at(4.0, lambda: swarm.order(End(at_epoch=9)))
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=9)
    assert swarm.backbones[0].record().checkpoint_epoch == 9


@pytest.mark.parametrize(("at_s", "ahead"), [(4.0, 1), (4.7, 1), (5.3, 1), (6.1, 1), (4.3, 0), (5.0, 0), (6.4, 0)])
def test_an_end_that_is_heard_of_late_ends_everybody_with_the_same_step(
    tmp_path: Path, at_s: float, ahead: int
) -> None:
    swarm = owned(tmp_path, until=1000, every=100, target=64)
    trainers = [swarm.add_trainer() for _ in range(4)]
    named: list[int] = []

    def end_now() -> None:
        named.append(max(swarm.replicas[peer.index].epoch for peer in trainers) + ahead)
        swarm.order(End(at_epoch=named[0]))

    swarm.world.call_at(at_s, end_now)
    with swarm.world:
        swarm.world.run()
    last = swarm.replicas[trainers[0].index].epoch
    assert named[0] + 1 - ahead <= last <= named[0] + 2
    assert_equal_ends(swarm, trainers, epoch=last)
    assert swarm.backbones[0].record().checkpoint_epoch == last


def test_a_banned_peer_stops_and_says_why_and_the_others_go_on_without_it(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=14)
    trainers = [swarm.add_trainer() for _ in range(4)]
    banned = trainers[3]
    swarm.world.call_at(4.0, lambda: swarm.order(Ban(who=banned.peer_id, reason="sends noise")))
    with swarm.world, pytest.raises(Dismissed, match="sends noise"):
        swarm.world.run()


def test_a_banned_peer_that_does_not_stop_is_refused_by_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = owned(tmp_path, until=16)
    trainers = [swarm.add_trainer() for _ in range(4)]
    banned = trainers[3]
    monkeypatch.setattr("collab.training.participant.dismissal", lambda *_: None)
    swarm.world.call_at(4.0, lambda: swarm.order(Ban(who=banned.peer_id, reason="sends noise")))
    with swarm.world:
        swarm.world.run(until_s=40.0)
    assert {swarm.replicas[peer.index].epoch for peer in trainers[:3]} == {16}
    last = [event for event in swarm.events(trainers[0], EpochFinished) if event.epoch >= 12]
    assert {event.contributors for event in last} == {3}
    assert swarm.replicas[banned.index].epoch < 16


def test_who_is_too_old_stops_at_the_epoch_and_not_before(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=20)
    trainers = [swarm.add_trainer() for _ in range(2)]
    swarm.world.call_at(3.0, lambda: swarm.order(Amend(from_epoch=8, minimum_version="99.0")))
    with swarm.world, pytest.raises(Dismissed, match=r"from epoch \d+ on this run needs version 99.0"):
        swarm.world.run()
    assert {swarm.replicas[peer.index].epoch for peer in trainers} <= {8, 9}


def test_without_backbone_and_owner_for_long_peers_keep_their_state_and_stop(tmp_path: Path) -> None:
    swarm = owned(tmp_path, until=100000, orphan_after_h=0.02)
    swarm.add_trainer(state_dir=tmp_path / "state")
    swarm.world.call_at(5.0, lambda: swarm.world.kill(0))
    with swarm.world, pytest.raises(Dismissed, match="no backbone of this run, and nothing of its owner"):
        swarm.world.run(until_s=200.0)
    last_seen_s = 5.0 + RECORD_LIFE_S
    assert last_seen_s + 72.0 - 5.0 <= swarm.world.time_s <= last_seen_s + 72.0 + 5.0
    assert list((tmp_path / "state" / "copies").glob("epoch-*"))


def test_after_a_rollback_everybody_goes_on_from_the_checkpoint_with_one_history(tmp_path: Path) -> None:
    """A loss spike: one trainer is cut off while the organiser goes back, and one comes later."""
    swarm = owned(tmp_path, until=30, every=5)
    trainers = [swarm.add_trainer() for _ in range(3)]
    kept: dict[int, np.ndarray] = {}

    gone_back: list[int] = []

    def watch(peer: SimPeer, event: object) -> None:
        if peer is not trainers[0] or not isinstance(event, EpochFinished) or gone_back:
            return
        if event.epoch == 10:
            kept[10] = parameters(swarm, peer).copy()
        if event.epoch == 14:  # a moment before everybody has its next step
            now_s = event.at_s - EPOCH_S
            swarm.world.call_at(now_s + 0.5, go_back)
            swarm.world.call_at(now_s + 6.0, lambda: trainers.append(swarm.add_trainer(link=Link())))
            swarm.world.call_at(now_s + 16.0, lambda: swarm.world.thaw(trainers[2].index))

    def go_back() -> None:
        path = next(p for p in list_checkpoints(tmp_path / "backbone-0" / "checkpoints") if p.name.endswith("10"))
        snapshot = load_checkpoint(path, fingerprint=swarm.bundle.fingerprint)
        gone_back.append(swarm.replicas[1].epoch)
        swarm.order(Rollback(to_epoch=10, lineage=snapshot.lineage))
        swarm.world.freeze(trainers[2].index)

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=30)
    assert gone_back[0] > 12, "there was something to roll back"
    steps = [event.epoch for event in swarm.events(trainers[0], EpochFinished)]
    again = steps.index(11, steps.index(gone_back[0]))
    assert steps[again:] == list(range(11, 31)), "the steps after the checkpoint were taken again, each once"
    aside = list((tmp_path / "backbone-0" / "checkpoints").glob("before-rollback-*/epoch-*"))
    assert aside, "later checkpoints are kept"
    assert len({swarm.replicas[peer.index].lineage for peer in trainers}) == 1


def test_a_rollback_is_taken_back_and_the_swarm_goes_on_from_what_it_had_set_aside(tmp_path: Path) -> None:
    """The first one names a checkpoint that nobody has; the second one finds what the first one put away."""
    swarm = owned(tmp_path, until=20, every=5)
    trainers = [swarm.add_trainer() for _ in range(3)]
    root = tmp_path / "backbone-0" / "checkpoints"
    stood: list[int] = []

    def lose() -> None:
        swarm.order(Rollback(to_epoch=7, lineage="of a checkpoint that was deleted"))

    def take_back() -> None:
        mandate = swarm.backbones[0].statutes.mandate
        found = checkpoints_to_go_back_to(root, mandate.era, swarm.bundle.fingerprint)
        stood.append(swarm.replicas[trainers[0].index].epoch)
        path, order = found[10]
        assert path.parent.name == f"before-rollback-{mandate.era}"
        mark = mandate.book.extended([mandate.book.signed(order, OWNER, EPOCH_S + swarm.world.time_s)]).mark
        hold(root, path, order, mark)
        swarm.order(order)

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainers[0] and isinstance(event, EpochFinished) and event.epoch == 13 and not stood:
            swarm.world.call_at(event.at_s - EPOCH_S + 0.1, lose)
            swarm.world.call_at(event.at_s - EPOCH_S + 8.0, take_back)

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=20)
    taken: set[int] = set()
    for trainer in trainers:
        steps = [event.epoch for event in swarm.events(trainer, EpochFinished)]
        back = next(place for place in range(1, len(steps)) if steps[place] < steps[place - 1])
        assert steps[back:] == list(range(steps[back], 21)), "one history, and no step twice"
        taken |= set(steps[back:])
    assert taken == set(range(11, 21)), "whoever was later has the first of them from the others"
    assert stood[0] > 13, "there was something to lose"
    assert len({swarm.replicas[peer.index].lineage for peer in trainers}) == 1


@pytest.mark.parametrize(("late", "until"), [(0, 20), (1, 90)])
def test_a_disk_that_takes_no_rollback_at_first_takes_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, until: int
) -> None:
    """Until then nothing of the new history lies beside the old one, which another backbone would have given."""
    swarm = owned(tmp_path, until=until, every=5)
    for _ in range(late):
        swarm.add_backbone(has_joined=True)
    backbone, trainers = swarm.world.peers[late], [swarm.add_trainer(samples_per_s=20.0) for _ in range(3)]
    begins_again, refused_s = LocalPublisher.begin_again, list[float]()

    def full_at_first(publisher: LocalPublisher, what: Rollback, mark: str) -> Snapshot | None:
        if publisher.root.parent.name == f"backbone-{late}" and len(refused_s) < 2:
            refused_s.append(swarm.world.time_s)
            raise CheckpointFailed("no space left", hint="free some")
        return begins_again(publisher, what, mark)

    def go_back() -> None:
        path = next(p for p in list_checkpoints(tmp_path / "backbone-0" / "checkpoints") if p.name.endswith("10"))
        snapshot = load_checkpoint(path, fingerprint=swarm.bundle.fingerprint)
        swarm.order(Rollback(to_epoch=10, lineage=snapshot.lineage))

    def watch(peer: SimPeer, event: object) -> None:
        if peer is trainers[0] and isinstance(event, EpochFinished) and event.epoch == 14 and not refused_s:
            swarm.world.call_at(event.at_s - EPOCH_S + 0.1, go_back)

    monkeypatch.setattr(LocalPublisher, "begin_again", full_at_first)
    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert_equal_ends(swarm, trainers, epoch=until)
    assert refused_s
    told = [event for event in swarm.events(backbone, Notice) if "no space left" in event.text]
    assert len(told) == 1
    assert "tried again" in told[0].hint
    saved_s = [event.at_s - EPOCH_S for event in swarm.events(backbone, CheckpointSaved)]
    assert min(at_s for at_s in saved_s if at_s > refused_s[0]) >= refused_s[1] + REST_AFTER_FAILURE_S
