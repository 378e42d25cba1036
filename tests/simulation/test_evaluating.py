"""Evaluations that fail or are in the way, and trainers that fail: the swarm goes on, and who leaves says goodbye."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.checkpoints.local import load_newest
from collab.data.made_once import not_now
from collab.data.sources import NoText
from collab.errors import BrokenOff, DataError, DeviceFull
from collab.metrics.guest_records import Paused
from collab.metrics.records import CheckpointSaved, EvaluationDone, Notice
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.strategies.base import HandedOver
from collab.tasks.base import Batch, Evaluation, Task
from collab.training.supply import OwnSupply
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends
from tests.simulation.test_pausing import computed, contributed

FAILS_S, LATER_S = 20.0, 8.0
BATCHES, PAUSED_IN = 10, 3
BROKEN = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")
OTHERS_HAVE_IT = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Another:
    """The run's task with something else in the place of one of its methods."""

    def __init__(self, inner: Task, **methods: Callable[..., Any]) -> None:
        self._inner = inner
        for name, method in methods.items():
            setattr(self, name, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def notices(swarm: SimSwarm, peer: SimPeer) -> list[Notice]:
    return [notice for notice in swarm.events(peer, Notice) if "did not evaluate" in notice.text]


# -- evaluations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "hint", "is_problem"),
    [
        (DataError("the dataset cannot be read", hint="check the network"), "check the network", True),
        (NoText("none of the documents is on the eval side", hint="give more text"), "give more text", False),
        (OTHERS_HAVE_IT, "end what else uses the device", True),
        (KeyError("labels"), "tell the organiser", True),
    ],
)
def test_a_trainer_that_cannot_evaluate_says_so_once_and_trains_on(
    tmp_path: Path, error: Exception, hint: str, is_problem: bool
) -> None:
    def evaluate(_model: torch.nn.Module) -> Evaluation:
        raise error

    swarm = SimSwarm(tmp_path, until=12, every=2)
    backbone = swarm.add_backbone()
    lacking = swarm.add_trainer(task=Another(swarm.task, evaluate=evaluate))  # type: ignore[arg-type]
    other = swarm.add_trainer()
    swarm.world.run()
    assert_equal_ends(swarm, [lacking, other], epoch=12)
    (notice,) = notices(swarm, lacking)
    assert notice.hint.startswith(hint)
    assert notice.is_problem is is_problem
    assert not swarm.events(lacking, EvaluationDone)
    in_turn = [event.epoch for event in swarm.events(other, EvaluationDone)]
    assert in_turn[-1] == 12
    assert len(in_turn) > 1, "those that were its neighbour's turn"
    assert [event.epoch for event in swarm.events(backbone, CheckpointSaved)][-1] == 12


def evaluates_nothing(found: object) -> Callable[[torch.nn.Module], object]:
    """A task of somebody else's: it raises what it is given, or returns it."""

    def evaluate(model: torch.nn.Module) -> object:
        model.eval()
        torch.set_grad_enabled(False)
        if isinstance(found, Exception):
            raise found
        torch.set_grad_enabled(True)
        return found

    return evaluate


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (KeyError("labels"), "the task could not evaluate: KeyError: 'labels'"),
        ({"loss": 0.5}, "the task could not evaluate: AttributeError: 'dict' object has no attribute 'loss'"),
    ],
)
def test_where_nobody_can_evaluate_everybody_says_so_and_the_run_comes_to_its_end(
    tmp_path: Path, found: object, words: str
) -> None:
    swarm = SimSwarm(tmp_path, until=12, every=2)
    swarm.add_backbone()
    broken = Another(swarm.task, evaluate=evaluates_nothing(found))
    trainers = [swarm.add_trainer(task=broken) for _ in range(3)]  # type: ignore[arg-type]
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    for trainer in trainers:
        (notice,) = notices(swarm, trainer)
        assert notice.text.endswith(words)
        assert notice.is_problem
        assert swarm.replicas[trainer.index].model.training


def trained_alone(directory: Path, read_held_out: Callable[[], None]) -> tuple[SimSwarm, SimPeer]:
    """To the end, by one whose held-out data is read so."""
    swarm = SimSwarm(directory, until=12, every=2)
    swarm.add_backbone()
    trainer = swarm.add_trainer(task=Another(swarm.task, read_held_out=read_held_out))  # type: ignore[arg-type]
    swarm.world.run()
    assert_equal_ends(swarm, [trainer], epoch=12)
    return swarm, trainer


def test_who_cannot_read_the_held_out_data_trains_on(tmp_path: Path) -> None:
    def read_held_out() -> None:
        raise IndexError("list index out of range")

    swarm, trainer = trained_alone(tmp_path, read_held_out)
    (notice,) = notices(swarm, trainer)
    assert notice.text.endswith("the task could not read its held-out data: IndexError: list index out of range")


def test_who_finds_another_peer_encoding_it_trains_on_and_evaluates_the_next_time(tmp_path: Path) -> None:
    reads = list[int]()

    def read_held_out() -> None:
        reads.append(0)
        if len(reads) <= 2:
            not_now(tmp_path / "tokens.lock")

    swarm, trainer = trained_alone(tmp_path, read_held_out)
    (notice,) = notices(swarm, trainer)
    assert notice.text.endswith("another peer of yours is encoding the text for it just now")
    assert not notice.is_problem
    assert [event.epoch for event in swarm.events(trainer, EvaluationDone)] == [6, 8, 10, 12]


def test_who_breaks_off_reading_it_since_the_machine_is_wanted_back_has_no_problem(tmp_path: Path) -> None:
    def read_held_out() -> None:
        raise BrokenOff("this machine is wanted back")

    swarm, trainer = trained_alone(tmp_path, read_held_out)
    assert notices(swarm, trainer) == []


def test_a_device_that_fails_while_it_evaluates_ends_its_trainer(tmp_path: Path) -> None:
    """It does nothing more for this process."""
    swarm = SimSwarm(tmp_path, until=12, every=2)
    swarm.add_backbone()
    swarm.add_trainer(task=Another(swarm.task, evaluate=evaluates_nothing(BROKEN)))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="device-side assert"):
        swarm.world.run()


def test_a_pause_in_the_middle_of_an_evaluation_waits_for_a_batch_of_it_and_not_for_its_end(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12, every=1, target=1200)
    swarm.add_backbone()
    done = list[int]()

    def evaluate(model: torch.nn.Module) -> Evaluation:
        for number in range(BATCHES):
            if number == PAUSED_IN:
                swarm.ask_to_pause(guest)
            model(torch.zeros(1, 64))
            done.append(number)
        return Evaluation(0.5)

    guest = swarm.add_trainer(task=Another(swarm.task, evaluate=evaluate))  # type: ignore[arg-type]
    others = [swarm.add_trainer() for _ in range(2)]
    swarm.world.run()
    assert done == list(range(PAUSED_IN))
    assert guest.result["epoch"] == 1, "it has left after the step whose state that was"
    assert not swarm.events(guest, EvaluationDone)
    assert computed(swarm, guest) == contributed(swarm, guest)
    assert_equal_ends(swarm, others, epoch=12)


def test_a_pause_does_not_wait_for_held_out_text_that_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = SimSwarm(tmp_path, until=12, every=1, target=1200)
    swarm.add_backbone()
    asked_s = list[float]()

    def read_held_out() -> None:
        """Takes minutes; see ``apart``."""

    guest = swarm.add_trainer(task=Another(swarm.task, read_held_out=read_held_out))  # type: ignore[arg-type]
    others = [swarm.add_trainer() for _ in range(2)]
    at_once = guest.compute.apart

    async def apart(work: Callable[[], Any]) -> Any:
        if work is read_held_out:
            await asyncio.sleep(1.0)
            asked_s.append(swarm.world.time_s)
            swarm.ask_to_pause(guest)
            await asyncio.sleep(600.0)
        return await at_once(work)

    monkeypatch.setattr(guest.compute, "apart", apart)
    swarm.world.run()
    (paused,) = swarm.events(guest, Paused)
    assert paused.at_s - EPOCH_S - asked_s[0] < 1.0
    assert len(asked_s) == 1
    assert computed(swarm, guest) == contributed(swarm, guest)
    assert not swarm.events(guest, EvaluationDone)
    assert_equal_ends(swarm, others, epoch=12)


# -- trainers that fail ------------------------------------------------------------------------------------------------


def failing_swarm(
    directory: Path, task: Callable[[SimSwarm], Task] | None = None
) -> tuple[SimSwarm, SimPeer, list[SimPeer], list[bool]]:
    """A trainer that fails beside two others; whether it seemed to be there before, and a little later."""
    swarm = SimSwarm(directory, until=9, target=1200, every=100, optimizer="{name: adamw, learning_rate: 0.01}")
    swarm.add_backbone()
    wrong = task(swarm) if task is not None else None
    failing = swarm.add_trainer(task=wrong, state_dir=directory / "failing", is_welcome=False)
    others = [swarm.add_trainer() for _ in range(2)]
    seems_there = list[bool]()

    def look() -> None:
        trainers = swarm.participants[others[0].index].membership.view.all_trainers()
        seems_there.append(failing.peer_id in {record.peer for record in trainers})

    swarm.world.call_at(FAILS_S - 5.0, look)
    swarm.world.call_at(FAILS_S + LATER_S, look)
    return swarm, failing, others, seems_there


def test_one_whose_samples_cannot_be_read_any_more_says_goodbye(tmp_path: Path) -> None:
    def unreadable(swarm: SimSwarm) -> Task:
        def batch(sample_ids: tuple[int, ...]) -> Batch:
            if swarm.world.time_s > FAILS_S:
                raise DataError("shard 7 cannot be read", hint="check the network")
            return swarm.task.batch(sample_ids)

        task: Any = Another(swarm.task, batch=batch)
        return task  # type: ignore[no-any-return]

    swarm, failing, others, seems_there = failing_swarm(tmp_path, unreadable)
    swarm.world.run()
    assert failing.result["epoch"] < 9
    assert seems_there == [True, False]
    assert_equal_ends(swarm, others, epoch=9)


def fills_up(swarm: SimSwarm, peer: SimPeer) -> None:
    """From now on a step of its optimiser ends half-way: one parameter is moved, and for the next there is no room."""
    replica = swarm.replicas[peer.index]

    def step(*_: object) -> None:
        with torch.no_grad():
            replica.layout.parameters[0].add_(1.0)
        raise OTHERS_HAVE_IT

    replica.optimizer.step = step  # type: ignore[method-assign]


def test_one_whose_optimiser_has_no_room_says_goodbye_and_gives_its_torn_state_to_nobody(tmp_path: Path) -> None:
    swarm, failing, others, seems_there = failing_swarm(tmp_path)
    swarm.world.call_at(FAILS_S - 4.0, lambda: fills_up(swarm, failing))
    swarm.world.run()
    assert seems_there == [True, False]
    assert_equal_ends(swarm, others, epoch=9)
    assert swarm.replicas[failing.index].lineage == ""
    kept = load_newest(tmp_path / "failing" / "copies", fingerprint=swarm.bundle.fingerprint)
    assert kept is not None
    torn = swarm.replicas[failing.index].layout.parameters[0].detach().numpy()
    assert (kept.tensors[f"model.{swarm.replicas[failing.index].layout.names[0]}"] != torn).all()


def test_one_that_has_no_room_to_bring_anything_to_a_round_says_goodbye(tmp_path: Path) -> None:
    """That happens beside training, and not in it."""
    swarm, failing, others, seems_there = failing_swarm(tmp_path)

    def hand_over() -> HandedOver:
        raise OTHERS_HAVE_IT

    def fill_up() -> None:
        swarm.replicas[failing.index].hand_over = hand_over  # type: ignore[method-assign]

    swarm.world.call_at(FAILS_S - 4.0, fill_up)
    swarm.world.run()
    assert failing.result["epoch"] < 9
    assert seems_there == [True, False]
    assert_equal_ends(swarm, others, epoch=9)


def test_one_that_gets_no_samples_any_more_says_goodbye(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, failing, others, seems_there = failing_swarm(tmp_path)
    lives = count()

    async def supply(_self: OwnSupply) -> None:
        if next(lives):
            await asyncio.Event().wait()
        await asyncio.sleep(FAILS_S)
        raise ExceptionGroup("of some tasks", [DataError("no shards can be listed", hint="check the network")])

    monkeypatch.setattr(OwnSupply, "run", supply)
    swarm.world.run()
    assert failing.result["epoch"] < 9
    assert seems_there == [True, False]
    assert_equal_ends(swarm, others, epoch=9)


def test_its_owner_is_told_what_did_not_fit(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=9)
    swarm.add_backbone()
    only = swarm.add_trainer()
    swarm.world.call_at(FAILS_S / 4, lambda: fills_up(swarm, only))
    with pytest.raises(DeviceFull, match="a step of this run does not fit") as error:
        swarm.world.run()
    assert "--device cpu" in error.value.hint


def test_a_defect_is_told_as_what_it_is_after_the_goodbye(tmp_path: Path) -> None:
    def wrong(_model: torch.nn.Module, _tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    swarm = SimSwarm(tmp_path, until=9)
    swarm.add_backbone()
    swarm.add_trainer(task=Another(swarm.task, loss=wrong))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        swarm.world.run()
