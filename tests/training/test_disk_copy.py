"""A trainer's own copies of the state: the newest ones, whole, and never in the way."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from collab import config
from collab.checkpoints.local import list_checkpoints
from collab.concurrency import Background
from collab.errors import CheckpointFailed
from collab.metrics.records import Notice
from collab.training import disk_copy
from collab.training.disk_copy import KEPT, REST, REST_AFTER_FAILURE_S, DiskCopy
from collab.training.replica import Replica
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, FakeObserver, make_ports, run
from tests.training.toy import Plain, replica, seeded

ADAM = config.Optimizer(name="adamw", learning_rate=0.1)


class Life:
    """One life of a peer that copies to ``root``."""

    def __init__(self, network: FakeNetwork, root: Path | None, *, fingerprint: str = "f", width: int = 16) -> None:
        self.ports = make_ports(network.join(PeerId(f"life{len(network.peers)}")))
        self.replica: Replica = replica(Plain(width) if width != 16 else seeded(Plain), ADAM)
        self.copy = DiskCopy(self.ports, self.replica, root, fingerprint)

    def step(self, lineage: str) -> None:
        gradient = np.ones(self.replica.layout.num_elements, np.float32)
        self.replica.step(gradient, Lineage(lineage))

    @property
    def notices(self) -> list[str]:
        assert isinstance(self.ports.observer, FakeObserver)
        return [event.text for event in self.ports.observer.events if isinstance(event, Notice)]


def in_network(test: Callable[[FakeNetwork], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await test(network)

    run(main())


def assert_equal(first: Replica, second: Replica) -> None:
    assert (first.epoch, first.lineage) == (second.epoch, second.lineage)
    ours, theirs = first.snapshot(), second.snapshot()
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(np.array_equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())


def test_the_next_life_begins_where_the_newest_copy_was_made(tmp_path: Path) -> None:
    async def test(network: FakeNetwork) -> None:
        first, second = Life(network, tmp_path), Life(network, tmp_path)
        for lineage in "abc":
            first.step(lineage)
            await first.copy.save()
        with torch.no_grad():
            next(iter(second.replica.model.parameters())).zero_()
        await second.copy.restore()
        assert second.replica.epoch == 3
        assert_equal(first.replica, second.replica)
        first.step("d")
        second.step("d")
        assert_equal(first.replica, second.replica)  # the optimiser's state came along
        assert len(list_checkpoints(tmp_path)) == KEPT

    in_network(test)


def test_without_a_directory_or_a_state_nothing_is_written(tmp_path: Path) -> None:
    async def test(network: FakeNetwork) -> None:
        nowhere, stateless = Life(network, None), Life(network, tmp_path)
        nowhere.step("a")
        for life in (nowhere, stateless):
            await life.copy.restore()
            await life.copy.save()
            assert not life.notices

    in_network(test)
    assert not list(tmp_path.iterdir())


def test_a_damaged_copy_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    async def test(network: FakeNetwork) -> None:
        first, second = Life(network, tmp_path), Life(network, tmp_path)
        for lineage in "ab":
            first.step(lineage)
            await first.copy.save()
        newest = list_checkpoints(tmp_path)[0] / "model.safetensors"
        newest.write_bytes(newest.read_bytes()[:-1])
        await second.copy.restore()
        assert (second.replica.epoch, second.replica.lineage) == (1, "a")

    in_network(test)


@pytest.mark.parametrize("other", [{"fingerprint": "g"}, {"width": 8}])
def test_a_copy_of_another_run_or_model_is_told_of_and_not_used(tmp_path: Path, other: dict[str, Any]) -> None:
    async def test(network: FakeNetwork) -> None:
        stranger, ours = Life(network, tmp_path, **other), Life(network, tmp_path)
        stranger.step("a")
        await stranger.copy.save()
        await ours.copy.restore()
        assert (ours.replica.epoch, ours.replica.lineage) == (0, "")
        assert len(ours.notices) == 1
        assert "cannot be used" in ours.notices[0]

    in_network(test)


def test_when_the_swarm_has_left_our_history_its_copies_go(tmp_path: Path) -> None:
    async def test(network: FakeNetwork) -> None:
        ahead, behind, third = (Life(network, tmp_path) for _ in range(3))
        for lineage in "abcd":
            ahead.step(lineage)
            await ahead.copy.save()
        for lineage in "xy":
            behind.step(lineage)
        await behind.copy.save()
        await third.copy.restore()
        assert (third.replica.epoch, third.replica.lineage) == (2, "y")

    in_network(test)


def test_copies_take_a_fiftieth_of_the_time_however_often_there_are_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(network: FakeNetwork) -> None:
        life = Life(network, tmp_path)
        num_saved = 0
        write_s = 2.0

        async def slow(work: Callable[[], Any]) -> Any:
            nonlocal num_saved
            num_saved += 1
            await asyncio.sleep(write_s)
            return work()

        monkeypatch.setattr(life.ports.compute, "beside", slow)
        async with Background() as tasks:
            tasks.create_task(life.copy.run())
            for number in range(1000):
                life.step(str(number))
                life.copy.note_step()
                await asyncio.sleep(1.0)
        assert num_saved == pytest.approx(1000 / (write_s * (1 + REST)), abs=1)

    in_network(test)


def test_a_full_disk_is_told_once_in_a_while_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise CheckpointFailed("No space left on device", hint="free some space")

    async def test(network: FakeNetwork) -> None:
        life = Life(network, tmp_path)
        monkeypatch.setattr(disk_copy, "save_checkpoint", full)
        async with Background() as tasks:
            tasks.create_task(life.copy.run())
            for number in range(round(REST_AFTER_FAILURE_S) - 10):
                life.step(str(number))
                life.copy.note_step()
                await asyncio.sleep(1.0)
        assert len(life.notices) == 1
        assert "No space left" in life.notices[0]

    in_network(test)
