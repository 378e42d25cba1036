"""VC-ASGD in a whole swarm, in virtual time: clients work on units, and nobody waits for anybody."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from collab.data.work_units import Unit
from collab.errors import DataError
from collab.metrics.records import EpochFinished, EvaluationDone, MicrobatchSkipped, Notice, StateFetched, UnitBegun
from collab.swarm.access import PASS_LIFE_S
from collab.swarm.identity import Identity
from collab.swarm.snapshots import unpack
from collab.tasks.base import Batch, Evaluation, Task
from collab.training.copy_layout import CopyLayout
from collab.training.judging import evaluate_state
from collab.training.layout import VectorLayout
from tests.simulation.mortal_store import units_done
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import SickTask

SHARDS = 8


def swarm_of(directory: Path, clients: int, *, passes: int = 3, units: str = "", **options: object) -> SimSwarm:
    text = f"shards: {SHARDS}" + (f", {units}" if units else "")
    swarm = SimSwarm(directory, strategy="vc_asgd", until=passes * SHARDS, units=text, every=SHARDS, **options)  # type: ignore[arg-type]
    swarm.add_backbone()
    for _ in range(clients):
        swarm.add_trainer()
    return swarm


def test_three_clients_do_every_unit_once_and_end_with_the_servers_parameters(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 3)
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert swarm.store.version() == 3 * SHARDS
    assert done_once(swarm, 3)
    stored = swarm.store.read()
    assert stored is not None
    for index in swarm.participants:
        assert (swarm.replicas[index].layout.parameters_vector() == stored.values).all()
        assert swarm.events(swarm.world.peers[index], EvaluationDone)[-1].loss < 1.5


def done_once(swarm: SimSwarm, passes: int) -> bool:
    """Whether every unit is in the parameters, and nothing else."""
    everything = [Unit(number, shard) for number in range(1, passes + 1) for shard in range(SHARDS)]
    return units_done(swarm.store, SHARDS) == everything and swarm.store.version() == passes * SHARDS


def test_a_unit_of_a_client_that_dies_is_done_by_another_after_its_deadline(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 3, passes=6, units="first_lease_s: 30.0")
    swarm.churn.fail_at(peer=2, time_s=12.0)
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert done_once(swarm, 6)
    survivors = [index for index in swarm.participants if index != 2]
    assert {swarm.world.peers[index].result["epoch"] for index in survivors} == {6 * SHARDS}


def test_a_unit_that_gives_nothing_finite_goes_back_and_the_next_begins_with_the_servers_parameters(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, 1, passes=4)
    sick = swarm.add_trainer(task=SickTask(swarm.task, range(10, 30)))
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert done_once(swarm, 4)
    begun = swarm.events(sick, UnitBegun)
    skipped = [event.at_s for event in swarm.events(sick, MicrobatchSkipped)]
    told = [event.at_s for event in swarm.events(sick, Notice) if "giving this unit back" in event.text]
    assert len(skipped) == 20
    assert told == [skipped[7], skipped[15]], "after eight in a row, and eight more"
    for at_s in told:
        assert any(at_s <= unit.at_s < at_s + 1.0 for unit in begun), "another unit at once"
    fetched = [event for event in swarm.events(sick, StateFetched) if event.at_s > begun[0].at_s]
    assert fetched == [], "a unit begins with what the servers have"
    used = [event.own_samples for event in swarm.events(sick, EpochFinished)]
    whole = {event.samples for event in begun}
    assert min(used) >= min(whole) - 4 * 8, "a unit that was given back has no part in the next one's push"
    assert max(used) <= max(whole)


def test_who_is_asked_to_leave_gives_its_unit_back_at_once(tmp_path: Path) -> None:
    """A preemption's SIGTERM; the deadline would be an hour."""
    swarm = swarm_of(tmp_path, 2, passes=4, units="first_lease_s: 3600.0")
    leaves = swarm.world.peers[2]
    swarm.world.call_at(12.0, lambda: swarm.ask_to_leave(leaves))
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert done_once(swarm, 4)
    assert swarm.world.time_s < 300.0


def test_a_server_that_dies_loses_nothing_that_it_has_said_is_taken(tmp_path: Path) -> None:
    """The store outlives it, as SQLite and Redis do."""
    swarm = swarm_of(tmp_path, 3, passes=6)
    swarm.churn.fail_at(peer=0, time_s=14.0, restart_after_s=15.0)
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert done_once(swarm, 6)


def test_two_servers_over_one_store_share_the_pushes(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 0, passes=4)
    swarm.add_backbone(has_joined=True)
    for _ in range(4):
        swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert done_once(swarm, 4)
    assert all(swarm.backbones[index].keeper.pushes_taken > SHARDS for index in (0, 1))


def test_a_unit_of_a_backbone_that_has_left_for_good_counts_with_the_other_one(tmp_path: Path) -> None:
    """Which knows the one that has signed the unit from before, whose pass has ended when the unit is done."""
    swarm = swarm_of(tmp_path, 0, passes=1, owner=Identity.from_seed(bytes(32)), units="first_lease_s: 2000.0")
    swarm.add_backbone(has_joined=True)
    clients = [swarm.add_trainer(samples_per_s=187 / (1.2 * PASS_LIFE_S)) for _ in range(SHARDS)]
    swarm.world.call_at(14.0, lambda: swarm.ask_to_leave(swarm.world.peers[0]))
    with swarm.world:
        swarm.world.run(until_s=4 * PASS_LIFE_S)
    assert swarm.backbones[1].keeper.pushes_taken == SHARDS
    assert done_once(swarm, 1)
    for client in clients:
        first = swarm.events(client, UnitBegun)[0]
        assert [e.own_samples for e in swarm.events(client, EpochFinished)] == [first.samples], "it counted"
        assert not [event.text for event in swarm.events(client, Notice) if "no step for" in event.text]


def test_with_two_units_at_once_nobody_waits_for_the_link(tmp_path: Path) -> None:
    """A unit takes a client two seconds, and so does bringing it."""
    ends = []
    for at_once in (1, 2):
        swarm = swarm_of(tmp_path / str(at_once), 1, passes=3, units=f"units_at_once: {at_once}", hidden=4096)
        with swarm.world:
            swarm.world.run(until_s=900.0)
        assert done_once(swarm, 3)
        ends.append(swarm.world.time_s)
    assert ends[1] < 0.8 * ends[0]


def test_the_checkpoint_is_what_is_stored(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 2, passes=2)
    swarm.backbones_stay_s = 30.0
    with swarm.world:
        swarm.world.run(until_s=400.0)
    packed = swarm.backbones[0].keeper.packed
    assert packed is not None
    assert packed.manifest.epoch == 2 * SHARDS
    saved, stored = unpack(packed), swarm.store.read()
    assert stored is not None
    names = VectorLayout(swarm.task.build_model()).names
    vector = np.concatenate([saved.tensors[f"model.{name}"].reshape(-1) for name in names])
    assert vector.tobytes() == stored.values.tobytes()


def test_a_run_with_a_target_ends_with_the_checkpoint_that_reaches_it(tmp_path: Path) -> None:
    swarm = SimSwarm(
        tmp_path, strategy="vc_asgd", until=400, units=f"shards: {SHARDS}", every=SHARDS,
        owner=Identity.from_seed(b"o" * 32), goal="until_accuracy: 0.85",
    )  # fmt: skip
    backbone = swarm.add_backbone()
    swarm.backbones_stay_s = 30.0
    for _ in range(3):
        swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=900.0)
    measured = swarm.events(backbone, EvaluationDone)
    reached = [event for event in measured if event.accuracy >= 0.85]
    passes = [event.epoch // SHARDS for event in measured]
    assert passes[:-1] == list(range(len(passes) - 1))  # before the first, after each, and what is left at the end
    version = swarm.store.version()
    assert version is not None
    assert reached[0].epoch <= version <= reached[0].epoch + 12
    assert swarm.backbones[0].keeper.shelf.saved_epoch == version


def test_a_store_that_was_lost_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    """A Redis server without its disk is killed: what came after the checkpoint is done again, nothing else."""
    swarm = swarm_of(tmp_path, 3, passes=6)
    lost_at = []

    def lose() -> None:
        lost_at.append(swarm.store.version())
        swarm.store.__init__()  # type: ignore[misc]  # empty, as at the beginning

    swarm.world.call_at(20.0, lose)
    swarm.backbones_stay_s = 30.0
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert done_once(swarm, 6)
    assert lost_at[0] > SHARDS
    told = [event.text for event in swarm.events(swarm.world.peers[0], Notice) if "store was empty" in event.text]
    again = int(told[0].split()[-1])
    assert again <= lost_at[0]
    assert again % SHARDS == 0 or again - again // SHARDS * SHARDS < 4  # soon after a pass
    stored = swarm.store.read()
    assert stored is not None
    for index in swarm.participants:
        assert (swarm.replicas[index].layout.parameters_vector() == stored.values).all()


def test_a_backbone_without_the_store_never_hands_out_units(tmp_path: Path) -> None:
    """It joined without --store; when the only parameter server dies clients wait for it to come back."""
    swarm = swarm_of(tmp_path, 0, passes=6)
    swarm.add_backbone(has_joined=True, has_store=False)
    for _ in range(3):
        swarm.add_trainer()
    swarm.churn.fail_at(peer=0, time_s=14.0, restart_after_s=40.0)
    swarm.backbones_stay_s = 30.0
    with swarm.world:
        swarm.world.run(until_s=900.0)
    assert done_once(swarm, 6)
    assert swarm.backbones[1].keeper.shelf.saved_epoch == 6 * SHARDS
    assert [e.text for e in swarm.events(swarm.world.peers[1], Notice) if "takes no pushes" in e.text]


class Far(torch.nn.Module):
    """Pixels that are far from the statistics of a fresh norm."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return 40.0 * pixels + 300.0


class Normed:
    """A task whose model has a norm with running statistics in front."""

    def __init__(self, task: Task) -> None:
        self._task, self.num_samples = task, task.num_samples

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(64), self._task.build_model())

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        found = self._task.batch(sample_ids)
        return Batch(sample_ids=sample_ids, tensors={**found.tensors, "pixels": Far()(found.tensors["pixels"])})

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._task.loss(model, tensors)

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        return self._task.evaluate(torch.nn.Sequential(Far(), model))

    def checkpoint_files(self) -> Mapping[str, bytes]:
        return self._task.checkpoint_files()


def test_statistics_of_norms_are_mixed_and_in_the_checkpoint_and_with_every_client(tmp_path: Path) -> None:
    """With the statistics of a fresh norm the state would be worth nothing."""
    swarm = SimSwarm(
        tmp_path, strategy="vc_asgd", until=4 * SHARDS, units=f"shards: {SHARDS}, alpha: 0.5", every=SHARDS
    )
    swarm.task = Normed(swarm.task)
    swarm.add_backbone()
    for _ in range(3):
        swarm.add_trainer()
    swarm.backbones_stay_s = 30.0
    with swarm.world:
        swarm.world.run(until_s=400.0)
    packed, stored = swarm.backbones[0].keeper.packed, swarm.store.read()
    assert packed is not None
    assert stored is not None
    assert packed.manifest.epoch == stored.version == 4 * SHARDS
    saved = unpack(packed)
    names = CopyLayout(swarm.task.build_model()).names
    assert {"0.running_mean", "0.running_var"} <= set(names)
    vector = np.concatenate([saved.tensors[f"model.{name}"].reshape(-1) for name in names])
    assert vector.tobytes() == stored.values.tobytes()
    means = saved.tensors["model.0.running_mean"]
    everything = swarm.task.batch(tuple(range(swarm.task.num_samples))).tensors["pixels"].mean(0).numpy()
    assert np.abs(means - everything).max() < 40.0, "they began at 0"
    for index in swarm.participants:
        replica = swarm.replicas[index]
        assert CopyLayout(replica.model).vector().tobytes() == stored.values.tobytes()
    assert evaluate_state(swarm.task, saved).loss < 2.0


class Fewer:
    """The run's task on a machine with too little of the data, or none."""

    def __init__(self, inner: Task, num_samples: int | None) -> None:
        self._inner, self._num_samples = inner, num_samples

    @property
    def num_samples(self) -> int:
        if self._num_samples is None:
            raise DataError("task.data.path matches no file")
        return self._num_samples

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_run_with_fewer_samples_than_shards_is_not_made(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, strategy="vc_asgd", until=12, units="shards: 2000")
    swarm.add_backbone()
    with swarm.world, pytest.raises(DataError, match="1500 samples cannot be cut into 2000 units of work"):
        swarm.world.run(until_s=60.0)


def test_a_backbone_without_the_data_makes_the_run_and_who_has_too_few_samples_does_not_join(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, strategy="vc_asgd", until=SHARDS, units=f"shards: {SHARDS}", every=SHARDS)
    whole, swarm.task = swarm.task, Fewer(swarm.task, None)  # type: ignore[assignment]
    swarm.add_backbone()
    swarm.add_trainer(task=Fewer(whole, SHARDS - 1))  # type: ignore[arg-type]
    with swarm.world, pytest.raises(DataError, match="7 samples cannot be cut into 8 units of work"):
        swarm.world.run(until_s=60.0)
