"""VC-ASGD under an organiser who goes back to a checkpoint: with every unit once since then, and nothing of before."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from collab.checkpoints.local import list_checkpoints, load_checkpoint
from collab.data.unit_samples import sample_ids_of
from collab.data.work_units import Unit
from collab.errors import StateError
from collab.metrics.backbone_events import RolledBack
from collab.metrics.records import EpochFinished, Notice
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.identity import Identity
from collab.swarm.parameter_store.base import lineage_of
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback
from collab.training.copy_layout import CopyLayout
from peers.unit_ledger import DONE, FIRST_OPEN
from tests.simulation.mortal_store import MortalStore
from tests.simulation.swarm import SimSwarm

SHARDS, PASSES = 8, 5
BACK_TO = 2 * SHARDS


class Fleet:
    """A swarm of an owner; its stores remember each push, by era."""

    def __init__(
        self, directory: Path, *, seed: int = 1, at_once: int = 1, backbones: int = 1, clients: int = 3
    ) -> None:
        self.directory = directory
        self.swarm = swarm = SimSwarm(
            directory, seed=seed, strategy="vc_asgd", until=PASSES * SHARDS, every=SHARDS,
            units=f"shards: {SHARDS}, first_lease_s: 20.0, units_at_once: {at_once}",
            owner=Identity.from_seed(b"o" * 32),
        )  # fmt: skip
        self.stores: dict[str, MortalStore] = {}
        swarm.roles.stores = EraStores(
            lambda era: self.stores.setdefault(era, MortalStore(swarm.world)), lambda era: self.stores.pop(era, None)
        )
        swarm.backbones_stay_s = 20.0
        self.backbones = [swarm.add_backbone(has_joined=number > 0) for number in range(backbones)]
        self.clients = [swarm.add_trainer() for _ in range(clients)]
        self.before: list[Snapshot] = []
        """To which the organiser has gone back."""

    @property
    def present(self) -> MortalStore:
        """The store of the newest era."""
        return self.stores[list(self.stores)[-1]]

    def at_version(self, version: int, act: Callable[[], None], *, era: int = 0) -> None:
        """A moment after a client has heard that so many pushes are in the parameters of the present history."""
        done: list[bool] = []

        def watch(_: SimPeer, event: object) -> None:
            if done or not isinstance(event, EpochFinished) or len(self.before) != era:
                return
            first = self.present.first
            if first is not None and first.stored.version + len(self.present.pushes) >= version:
                done.append(True)
                self.swarm.world.call_at(event.at_s - EPOCH_S + 0.3, act)

        self.swarm.world.subscribe(watch)

    def roll_back(self, epoch: int = BACK_TO, *, backbone: int = 0) -> None:
        """To the first checkpoint of that backbone from ``epoch`` on; it hears of it first."""
        snapshot = load_checkpoint(self.checkpoint(epoch, backbone), fingerprint=self.swarm.bundle.fingerprint)
        self.before.append(snapshot)
        self.swarm.order(Rollback(to_epoch=snapshot.epoch, lineage=snapshot.lineage), backbone=backbone)

    def checkpoint(self, epoch: int, backbone: int) -> Path:
        """The first one from ``epoch`` on: they are made some pushes after a pass."""
        found = {int(path.name.rpartition("-")[2]): path for path in list_checkpoints(self.root(backbone))}
        return found[min(number for number in found if number >= epoch)]

    def root(self, backbone: int) -> Path:
        """Where it keeps its checkpoints."""
        return self.directory / f"backbone-{backbone}" / "checkpoints"

    def run(self) -> None:
        """To the end."""
        with self.swarm.world:
            self.swarm.world.run(until_s=900.0)

    def marks(self) -> list[str]:
        """Of the orders."""
        return [order.mark for order in self.swarm.backbones[0].statutes.mandate.book.orders]

    def samples_of(self, units: set[Unit]) -> int:
        """How many they have."""
        how = {"shards": SHARDS, "num_samples": self.swarm.task.num_samples, "seed": self.swarm.bundle.run.seed}
        return sum(len(sample_ids_of(unit, **how)) for unit in units)

    def assert_once(self) -> set[Unit]:
        """Every unit is in the parameters once: in the checkpoint, or by a push since; which ones are by a push."""
        before, store = self.before[-1], self.stores[self.marks()[-1]]
        everything = {Unit(number, shard) for number in range(1, PASSES + 1) for shard in range(SHARDS)}
        first_open, rows = before.scalars[FIRST_OPEN], before.scalars[DONE]
        assert isinstance(first_open, int)
        assert isinstance(rows, list)
        saved = {unit for unit in everything if unit.pass_number < first_open} | {Unit(*row[:2]) for row in rows}
        assert len(saved) == before.epoch
        assert Counter(push.unit for push in store.pushes) == Counter(everything - saved)
        stored, replayed, first = store.read(), store.replayed(), store.first
        assert stored is not None
        assert first is not None
        assert stored.version == PASSES * SHARDS
        assert stored.values.tobytes() == replayed.values.tobytes(), "the checkpoint and what came since, nothing else"
        names = CopyLayout(self.swarm.task.build_model()).names
        vector = np.concatenate([before.tensors[f"model.{name}"].reshape(-1) for name in names])
        assert (first.stored.version, first.stored.values.tobytes()) == (before.epoch, vector.tobytes())
        for client in self.clients:
            if client.is_alive or client.result is None:
                continue
            replica = self.swarm.replicas[client.index]
            assert (replica.era, replica.epoch) == (self.marks()[-1], PASSES * SHARDS)
            assert (replica.layout.parameters_vector() == stored.values).all()
        return everything - saved


@pytest.mark.parametrize("at_once", [1, 2])
def test_clients_drop_what_they_have_and_every_unit_since_the_checkpoint_is_done_once(
    tmp_path: Path, at_once: int
) -> None:
    fleet = Fleet(tmp_path, at_once=at_once)
    fleet.at_version(BACK_TO + 10, fleet.roll_back)
    fleet.run()
    again, swarm, (mark,) = fleet.assert_once(), fleet.swarm, fleet.marks()
    assert len(fleet.stores[""].pushes) >= BACK_TO + 10
    assert all(client.result["epoch"] == PASSES * SHARDS for client in fleet.clients)
    since = {lineage_of(version, mark) for version in range(PASSES * SHARDS + 1)}
    steps = [event for client in fleet.clients for event in swarm.events(client, EpochFinished)]
    counted = [event.own_samples for event in steps if event.lineage in since]
    untold = (at_once - 1) * len(fleet.clients)  # of two at once the last one of each is settled when it leaves
    assert len(again) - untold == len(counted), "each client knows what of its work counts"
    assert at_once > 1 or sum(counted) == fleet.samples_of(again)
    backbone = fleet.backbones[0]
    assert [event.epoch for event in swarm.events(backbone, RolledBack)] == [fleet.before[0].epoch]
    assert not [event for event in swarm.events(backbone, Notice) if "store was empty" in event.text], "it was not lost"
    assert swarm.backbones[0].keeper.shelf.saved_epoch == PASSES * SHARDS
    assert list(fleet.root(0).glob("before-rollback-*/epoch-*")), "later checkpoints are kept"


def test_who_was_away_at_the_order_brings_nothing_of_before(tmp_path: Path) -> None:
    """A client is frozen with a unit, one server is dead and has checkpoints of its own, and one client comes later."""
    fleet = Fleet(tmp_path, backbones=2, clients=3)
    world, away = fleet.swarm.world, fleet.clients[2]

    def go_back() -> None:
        world.kill(1)
        world.freeze(away.index)
        fleet.roll_back()
        world.call_at(world.time_s + 6.0, lambda: world.restart(1))
        world.call_at(world.time_s + 9.0, lambda: world.thaw(away.index))
        world.call_at(world.time_s + 5.0, lambda: fleet.clients.append(fleet.swarm.add_trainer()))

    fleet.at_version(BACK_TO + 10, go_back)
    fleet.run()
    fleet.assert_once()
    assert len(fleet.clients) == 4
    assert all(client.result["epoch"] == PASSES * SHARDS for client in fleet.clients)


def test_who_hands_out_units_and_lacks_the_checkpoint_has_it_from_who_has_it(tmp_path: Path) -> None:
    fleet, lacking = Fleet(tmp_path, backbones=2), list[int]()

    def go_back() -> None:
        holder = next(index for index in (0, 1) if fleet.swarm.backbones[index].lease.tenure() is not None)
        lacking.append(holder)
        shutil.rmtree(fleet.checkpoint(BACK_TO, holder))
        fleet.roll_back(backbone=1 - holder)

    fleet.at_version(BACK_TO + 10, go_back)
    fleet.run()
    fleet.assert_once()
    told = [event.text for event in fleet.swarm.events(fleet.backbones[lacking[0]], Notice)]
    assert [text for text in told if "of which there is no checkpoint here" in text]


def refuse(_: EraStores, eras: Iterable[str]) -> None:
    if list(eras):
        raise StateError("cannot remove parameters.sqlite: Operation not permitted")


@pytest.mark.parametrize("is_erased", [True, False])
def test_a_second_rollback_goes_to_what_was_made_since_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_erased: bool
) -> None:
    """The other server slept through both, and has a checkpoint of the same number from before them. What was before
    both is erased, unless the disk refuses that.
    """
    fleet = Fleet(tmp_path, backbones=2)
    if not is_erased:
        monkeypatch.setattr(EraStores, "erase", refuse)
    again_to = BACK_TO + SHARDS

    def first() -> None:
        assert fleet.checkpoint(again_to, 1)
        fleet.swarm.world.freeze(1)
        fleet.roll_back()

    def second() -> None:
        fleet.roll_back(again_to)
        fleet.swarm.world.call_at(fleet.swarm.world.time_s + 4.0, lambda: fleet.swarm.world.thaw(1))

    fleet.at_version(again_to + 8, first)
    fleet.at_version(again_to + 6, second, era=1)
    fleet.run()
    fleet.assert_once()
    assert list(fleet.stores) == ([] if is_erased else [""]) + fleet.marks()
    assert fleet.before[1].era == fleet.marks()[0]


@pytest.mark.parametrize("seed", range(6))
def test_no_unit_is_lost_or_counted_twice_whoever_dies_around_a_rollback(tmp_path: Path, seed: int) -> None:
    """Clients are killed or cut short, servers one after the other, and the stores in the middle of a push."""
    fleet, dice = Fleet(tmp_path, seed=seed, at_once=1 + seed % 2, backbones=2, clients=4), random.Random(seed)
    world, churn = fleet.swarm.world, fleet.swarm.churn

    def go_back() -> None:
        now_s = world.time_s
        for client in fleet.clients[:-1]:
            comes_back = dice.choice([None, dice.uniform(1.0, 12.0)])
            churn.fail_at(peer=client.index, time_s=now_s + dice.uniform(0.1, 6.0), restart_after_s=comes_back)
        moment_s = now_s + dice.uniform(0.5, 3.0)
        for server in dice.sample((0, 1), 2):
            churn.fail_at(peer=server, time_s=moment_s, restart_after_s=dice.uniform(2.0, 4.0))
            moment_s += dice.uniform(6.0, 8.0)
        fleet.present.fail_in_a_push_after(now_s, for_s=dice.uniform(0.5, 4.0), is_applied=seed % 4 < 2)
        fleet.roll_back()
        world.call_at(now_s + dice.uniform(4.0, 9.0), die)

    def die() -> None:
        fleet.present.fail_in_a_push_after(world.time_s, for_s=2.0, is_applied=seed % 4 >= 2)

    fleet.at_version(BACK_TO + dice.randrange(2, 12), go_back)
    fleet.run()
    fleet.assert_once()
    assert fleet.clients[-1].result["epoch"] == PASSES * SHARDS
