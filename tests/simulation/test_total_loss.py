"""Everybody dies, and the run goes on from the newest whole snapshot that anybody comes back with."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from collab.checkpoints.local import epoch_of, list_checkpoints, load_newest
from collab.metrics.records import EpochFinished, Event, MicrobatchDone, Notice
from collab.simulation.peer import SimPeer
from collab.swarm.last_seen import seen_in
from collab.swarm.snapshots import Snapshot
from tests.simulation.swarm import SimSwarm

KILLED_S = 40.0
UNTIL = 32


@dataclass
class Loss:
    """A swarm that has lost everybody."""

    swarm: SimSwarm
    backbones: list[SimPeer]
    trainers: list[SimPeer]

    def root(self, peer: SimPeer) -> Path:
        """Of a peer's checkpoints, or copies."""
        if peer in self.backbones:
            return self.swarm.directory / f"backbone-{peer.index}" / "checkpoints"
        return self.swarm.directory / f"trainer-{peer.index}" / "copies"

    def held(self, peer: SimPeer) -> Snapshot | None:
        """The newest that it has, whole."""
        return load_newest(self.root(peer), fingerprint=self.swarm.bundle.fingerprint)

    def newest(self) -> Snapshot:
        """Of all."""
        held = [snapshot for peer in self.swarm.world.peers if (snapshot := self.held(peer)) is not None]
        return max(held, key=lambda snapshot: snapshot.epoch)

    def loss_of(self, snapshot: Snapshot) -> float:
        """On the held-out samples."""
        replica = self.swarm.replicas[self.trainers[0].index]
        replica.load(snapshot)
        return self.swarm.task.evaluate(replica.model).loss


def everybody_dies(tmp_path: Path, *, backbones: int = 2, trainers: int = 3, every: int = 15) -> Loss:
    """A run with checkpoints far apart, in which all are killed at once, about twenty steps from its beginning."""
    swarm = SimSwarm(tmp_path, until=UNTIL, every=every, target=640)
    swarm.backbones_stay_s = 10.0
    first = [swarm.add_backbone(has_joined=number > 0) for number in range(backbones)]
    then = [
        swarm.add_trainer(microbatch_size=32, state_dir=tmp_path / f"trainer-{backbones + number}")
        for number in range(trainers)
    ]
    swarm.world.add_peer(_bystander)
    swarm.world.run(until_s=KILLED_S)
    for peer in (*first, *then):
        swarm.world.kill(peer.index)
    return Loss(swarm, first, then)


async def _bystander(_: object) -> None:
    """A world in which all are dead would be over."""
    await asyncio.sleep(400.0)


def come_back(
    loss: Loss, order: list[SimPeer], *, apart_s: float = 2.0, for_s: float = 400.0
) -> tuple[list[int], list[float]]:
    """Start peers again, one after the other, and train to the end, or for so long.

    Returns:
        The epochs of all steps that were taken since, and the loss of each trainer's state when it trained first.
    """
    swarm, losses = loss.swarm, dict[int, float]()
    numbers = {peer.index: len(peer.events) for peer in order}

    def look(peer: SimPeer, event: Event) -> None:
        if isinstance(event, MicrobatchDone) and peer.index not in losses:
            losses[peer.index] = swarm.task.evaluate(swarm.replicas[peer.index].model).loss

    swarm.world.subscribe(look)
    for number, peer in enumerate(order):
        swarm.world.call_at(KILLED_S + 5.0 + apart_s * number, lambda peer=peer: swarm.world.restart(peer.index))
    swarm.world.run(until_s=KILLED_S + for_s)
    steps = [e.epoch for p in order for e in p.events[numbers[p.index] :] if isinstance(e, EpochFinished)]
    return steps, list(losses.values())


ORDERS: dict[str, Callable[[Loss], list[SimPeer]]] = {
    "backbones_first": lambda loss: [*loss.backbones, *loss.trainers],
    "trainers_first": lambda loss: [*loss.trainers, *loss.backbones],
    "oldest_copy_first": lambda loss: sorted(
        [*loss.backbones, *loss.trainers], key=lambda peer: (held.epoch if (held := loss.held(peer)) else -1)
    ),
}


def spread_copies(loss: Loss) -> None:
    """Let the trainers' newest copies be of different epochs, as on machines with slow disks."""
    for number, peer in enumerate(loss.trainers[:-1]):
        newest, older = list_checkpoints(loss.root(peer))[:2]
        shutil.rmtree(newest)
        if number == 0:
            shutil.rmtree(older)


@pytest.mark.parametrize("order", list(ORDERS))
def test_after_everybody_died_the_run_goes_on_from_the_newest_copy_whoever_comes_back_first(
    tmp_path: Path, order: str
) -> None:
    loss = everybody_dies(tmp_path)
    with loss.swarm.world:
        spread_copies(loss)
        newest = loss.newest()
        assert newest.epoch > max(held.epoch for peer in loss.backbones if (held := loss.held(peer)))
        expected = loss.loss_of(newest)
        steps, losses = come_back(loss, ORDERS[order](loss))
    assert min(steps) == newest.epoch + 1, "nothing is trained twice"
    assert max(steps) == UNTIL
    assert min(losses) == pytest.approx(expected, rel=0.01)
    assert max(losses) == pytest.approx(expected, rel=0.01), "nobody trained on an older state"
    assert len({loss.swarm.participants[peer.index].replica.lineage for peer in loss.trainers}) == 1


@pytest.mark.parametrize("damage", ["torn", "corrupt"])
def test_of_a_damaged_newest_snapshot_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    loss = everybody_dies(tmp_path)
    with loss.swarm.world:
        for peer in (*loss.trainers, *loss.backbones):
            newest = list_checkpoints(loss.root(peer))[0] / "model.safetensors"
            data = newest.read_bytes()
            newest.write_bytes(data[: len(data) // 2] if damage == "torn" else data[:-1] + bytes([data[-1] ^ 1]))
        left = loss.newest()
        expected = loss.loss_of(left)
        steps, losses = come_back(loss, [*loss.backbones, *loss.trainers])
    assert min(steps) == left.epoch + 1
    assert max(losses) == pytest.approx(expected, rel=0.01)
    for peer in loss.backbones:
        told = [event.text for event in loss.swarm.events(peer, Notice) if event.is_problem]
        assert any("damaged" in text for text in told)


def test_when_no_trainer_has_a_copy_the_newest_checkpoint_of_any_backbone_counts(tmp_path: Path) -> None:
    loss = everybody_dies(tmp_path, every=5)
    with loss.swarm.world:
        for peer in loss.trainers:
            shutil.rmtree(loss.root(peer))
        shutil.rmtree(list_checkpoints(loss.root(loss.backbones[0]))[0])
        newest = loss.newest()
        assert loss.held(loss.backbones[1]).epoch == newest.epoch
        expected = loss.loss_of(newest)
        steps, losses = come_back(loss, [*loss.backbones, *loss.trainers])
    assert min(steps) == newest.epoch + 1
    assert max(losses) == pytest.approx(expected, rel=0.01)


def test_trainers_that_come_back_alone_go_on_from_the_newest_copy(tmp_path: Path) -> None:
    loss = everybody_dies(tmp_path, backbones=1)
    with loss.swarm.world:
        spread_copies(loss)
        newest = loss.newest()
        expected = loss.loss_of(newest)
        steps, losses = come_back(loss, loss.trainers)
    assert min(steps) == newest.epoch + 1
    assert max(losses) == pytest.approx(expected, rel=0.01)


def test_what_a_backbone_withholds_at_first_is_waited_for_by_a_trainer_with_an_older_copy(tmp_path: Path) -> None:
    """Both have seen later epochs than they hold: the backbone gives nothing until who has these may have come back."""
    loss = everybody_dies(tmp_path, backbones=1, trainers=1, every=3)
    backbone, trainer = loss.backbones[0], loss.trainers[0]
    with loss.swarm.world:
        older = list_checkpoints(loss.root(backbone))[1]
        shutil.rmtree(loss.root(trainer))
        shutil.copytree(older, loss.root(trainer) / older.name)
        held = loss.held(backbone)
        assert held is not None
        for peer in (backbone, trainer):
            assert seen_in(loss.root(peer).parent / "last-seen.json") > held.epoch > epoch_of(older)
        steps, losses = come_back(loss, [backbone, trainer], for_s=90.0)
    assert steps, "it is there within a minute and a half"
    assert min(steps) == held.epoch + 1
    assert losses == [pytest.approx(loss.loss_of(held), rel=0.01)], "nobody trained on an older state"


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_backbone_that_lost_all_its_checkpoints_begins_no_new_run(tmp_path: Path, is_restored: bool) -> None:
    """It makes a first state only where there never was one; also with a directory from a backup without them."""
    loss = everybody_dies(tmp_path, backbones=1, every=5)
    with loss.swarm.world:
        for path in list_checkpoints(loss.root(loss.backbones[0])):
            (path / "model.safetensors").write_bytes(b"torn")
        if is_restored:
            shutil.rmtree(loss.root(loss.backbones[0]))
        newest = loss.newest()
        steps, _ = come_back(loss, [*loss.backbones, *loss.trainers], apart_s=30.0)
    assert min(steps) == newest.epoch + 1
    told = [event.text for event in loss.swarm.events(loss.backbones[0], Notice) if event.is_problem]
    assert any("can be read" in text for text in told)


def test_a_backbone_that_comes_back_with_what_the_run_has_left_behind_puts_it_aside(tmp_path: Path) -> None:
    """Trainers have gone on from an older checkpoint without it, and are slow to come by its epoch."""
    loss = everybody_dies(tmp_path, every=5)
    late, there = loss.backbones
    with loss.swarm.world:
        for peer in loss.trainers:
            shutil.rmtree(loss.root(peer))
            peer.compute.samples_per_s /= 8
        for path in list_checkpoints(loss.root(there))[:1]:
            shutil.rmtree(path)
        left, held = loss.held(late).epoch, loss.held(there).epoch
        assert held < left
        loss.swarm.world.call_at(KILLED_S + 70.0, lambda: loss.swarm.world.restart(late.index))
        steps, _ = come_back(loss, [there, *loss.trainers], for_s=150.0)
    assert min(steps) == held + 1
    told = [event.text for event in loss.swarm.events(late, Notice) if event.is_problem]
    assert sum("put aside" in text for text in told) == 1
    assert [path.name for path in (loss.root(late) / "set-aside").iterdir()] == [f"epoch-{left:08d}"]
    ours, theirs = (
        sorted((path.name, path.read_bytes()) for path in loss.root(peer).glob("epoch-*/*")) for peer in (late, there)
    )
    assert ours == theirs
