"""Several backbones: each may die, one publishes at a time, and all hold the same files."""

import asyncio
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collab.checkpoints import local
from collab.checkpoints.base import Checkpoint
from collab.errors import NoDonor
from collab.metrics.records import CheckpointSaved, EpochFinished, LeaseChanged, Notice
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.lease import LEASE_S, MARGIN_S, RENEW_S, TURN_S
from collab.swarm.snapshots import PackedSnapshot
from collab.types import PeerId
from peers import fetching
from peers.process import LEAVE_LIMIT_S
from peers.shelf import Shelf
from peers.ungiven import UNGIVEN_S
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends
from tests.simulation.test_metrics import look

TAKEOVER_S = LEASE_S + MARGIN_S + 2 * RENEW_S + TURN_S


def several(tmp_path: Path, backbones: int, trainers: int, *, until: int, every: int = 5) -> SimSwarm:
    """A run of its first backbone, others that joined, and trainers, of which three take two seconds for a step."""
    swarm = SimSwarm(tmp_path, until=until, every=every, target=640)
    swarm.backbones_stay_s = 10.0
    for number in range(backbones):
        swarm.add_backbone(has_joined=number > 0)
    for _ in range(trainers):
        swarm.add_trainer(microbatch_size=32)
    return swarm


def files_of(swarm: SimSwarm, index: int) -> dict[str, bytes]:
    """All of a backbone's checkpoints."""
    root = swarm.directory / f"backbone-{index}" / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob("epoch-*/*"))}


def published(swarm: SimSwarm, index: int) -> dict[int, tuple[int, str]]:
    """Term and holder by epoch, of a backbone's checkpoints."""
    found = {}
    for path in (swarm.directory / f"backbone-{index}" / "checkpoints").glob("epoch-*/collab_state.json"):
        state = json.loads(path.read_bytes())
        told = state["metrics"]["published"]
        found[state["epoch"]] = (told["term"], told["holder"])
    return found


def longest_step_s(swarm: SimSwarm, peers: list[SimPeer]) -> float:
    """Of all steps but the first."""
    return max(step.seconds for peer in peers for step in swarm.events(peer, EpochFinished)[1:])


def holders(swarm: SimSwarm, peer: SimPeer) -> list[int]:
    """Terms that a backbone held, and 0 for each that it lost or freed."""
    return [event.term for event in swarm.events(peer, LeaseChanged)]


def test_all_backbones_hold_the_same_files_and_one_of_them_has_published_them(tmp_path: Path) -> None:
    swarm = several(tmp_path, 3, 3, until=18)
    swarm.world.run()
    first, second, third = (files_of(swarm, index) for index in range(3))
    assert set(published(swarm, 0)) == {10, 15, 18}
    assert first == second == third
    assert {holder for _, holder in published(swarm, 0).values()} == {swarm.world.peers[0].peer_id}
    assert not swarm.events(swarm.world.peers[1], LeaseChanged)


def test_backbones_killed_one_after_the_other_cost_seconds_and_the_rest_publish(tmp_path: Path) -> None:
    swarm = several(tmp_path, 3, 3, until=100)
    backbones, trainers = swarm.world.peers[:3], swarm.world.peers[3:]
    killed: list[int] = []

    def kill_the_holder() -> None:
        killed.append(next(p.index for p in backbones if p.is_alive and swarm.backbones[p.index].lease.tenure()))
        swarm.world.kill(killed[-1])

    for number in range(3):
        swarm.world.call_at(40.0 + 50.0 * number, kill_the_holder)
    swarm.world.run()
    assert sorted(killed) == [0, 1, 2]
    assert_equal_ends(swarm, trainers, epoch=100)
    assert longest_step_s(swarm, trainers) < 15.0
    assert [holders(swarm, backbones[index]) for index in killed] == [[1], [2], [3]]
    newest = [max(published(swarm, index)) for index in killed]
    assert newest == sorted(set(newest)), "each published something after the one before it had died"


def test_when_all_backbones_die_at_once_training_goes_on_and_they_come_back_to_it(tmp_path: Path) -> None:
    swarm = several(tmp_path, 2, 3, until=60)
    backbones, trainers = swarm.world.peers[:2], swarm.world.peers[2:]
    for peer in backbones:
        swarm.churn.fail_at(peer=peer.index, time_s=40.0, restart_after_s=40.0 + peer.index)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert_equal_ends(swarm, trainers, epoch=60)
    assert longest_step_s(swarm, trainers) < 15.0
    assert files_of(swarm, 0) == files_of(swarm, 1)
    assert max(published(swarm, 0)) == 60
    assert max(term for term, _ in published(swarm, 0).values()) == 2


def test_a_second_backbone_takes_the_state_that_is_there_and_never_makes_a_first_one(tmp_path: Path) -> None:
    """It joins when its only companion is dead, and trainers are ahead of all checkpoints."""
    swarm = several(tmp_path, 1, 3, until=40, every=100)
    swarm.churn.fail_at(peer=0, time_s=20.0)
    late: list[SimPeer] = []
    swarm.world.call_at(45.0, lambda: late.append(swarm.add_backbone(has_joined=True)))
    swarm.world.run()
    assert_equal_ends(swarm, swarm.world.peers[1:4], epoch=40)
    saved = [event.epoch for event in swarm.events(late[0], CheckpointSaved)]
    assert saved[-1] == 40
    assert 0 not in saved


def test_the_first_backbone_that_lost_its_disk_makes_no_new_state_while_others_have_one(tmp_path: Path) -> None:
    swarm = several(tmp_path, 2, 3, until=40)
    first, _, *trainers = swarm.world.peers
    swarm.churn.fail_at(peer=first.index, time_s=30.0)
    lives: list[int] = []

    def come_back_empty() -> None:
        shutil.rmtree(tmp_path / "backbone-0")
        lives.append(len(first.events))
        swarm.world.restart(first.index)

    swarm.world.call_at(32.0, come_back_empty)
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=40)
    saved = [event.epoch for event in first.events[lives[0] :] if isinstance(event, CheckpointSaved)]
    assert 0 not in saved
    assert files_of(swarm, 0) == files_of(swarm, 1)


def test_a_full_disk_is_told_once_and_another_backbone_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = several(tmp_path, 2, 3, until=70)
    first, second, *trainers = swarm.world.peers
    write, full = local.write_synced, {"is": False}

    def write_unless_full(path: Path, data: bytes, *_: object) -> None:
        if full["is"] and "backbone-0" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(local, "write_synced", write_unless_full)
    swarm.world.call_at(25.0, lambda: full.update({"is": True}))
    swarm.world.call_at(95.0, lambda: full.update({"is": False}))
    standing: dict[float, str] = {}
    for tick in range(500, 2600):
        swarm.world.call_at(tick / 20, lambda: standing.update({swarm.world.time_s: swarm.backbones[0].problem()}))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=70)
    problems = [event for event in swarm.events(first, Notice) if event.is_problem]
    assert ["No space left" in event.text for event in problems] == [True]
    assert "another backbone" in problems[0].hint
    settled = [event.settles for event in swarm.events(first, Notice) if "takes checkpoints again" in event.text]
    assert settled == [problems[0].text]
    over = next(event for event in swarm.events(first, Notice) if event.settles)
    begun_s, over_s = (event.at_s - EPOCH_S for event in (problems[0], over))
    told = {text for at_s, text in standing.items() if begun_s < at_s < over_s}
    assert problems[0].text in told
    assert all(text.endswith("No space left on device") for text in told), "also while it is tried again"
    assert holders(swarm, first) == [1, 0]
    assert holders(swarm, second) == [2, 0], "until it left"
    saved = [event.epoch for event in swarm.events(second, CheckpointSaved)]
    assert saved == list(range(0, 75, 5)), "no checkpoint is missing"
    assert files_of(swarm, 0) == files_of(swarm, 1), "when there is space again the first one has them, too"


def test_a_task_that_fails_to_make_its_files_is_told_as_that_and_not_as_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = SimSwarm(tmp_path, until=8)
    swarm.add_backbone()
    swarm.add_trainer()

    def fails(_: object) -> dict[str, bytes]:
        raise ValueError("no tokenizer")

    monkeypatch.setattr(type(swarm.task), "checkpoint_files", fails)
    told = look(swarm, 6.0)
    swarm.world.run()
    text, hint = told["health"]["text"], told["health"]["hint"]
    assert text.endswith("but the task's files for checkpoints cannot be made: ValueError('no tokenizer')")
    assert hint.startswith("see the log, mend what it names, and start again; it is tried again each minute")
    assert "disk" not in text + hint


def test_a_run_whose_state_nobody_gives_is_not_well_after_some_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers go on, a step each five seconds, and the backbone gets nothing from them for five minutes."""
    swarm = SimSwarm(tmp_path, until=90, every=2, target=100)
    backbone, *trainers = swarm.add_backbone(), *(swarm.add_trainer(samples_per_s=10.0) for _ in range(2))
    fetch, is_given = fetching.fetch_state, {"is": False}

    async def fetch_if_given(*args: Any, **options: Any) -> tuple[PackedSnapshot, dict[PeerId, int]]:
        if not is_given["is"]:
            raise NoDonor("the run's state could not be fetched", hint="")
        return await fetch(*args, **options)

    monkeypatch.setattr(fetching, "fetch_state", fetch_if_given)
    swarm.world.call_at(300.0, lambda: is_given.update({"is": True}))
    early, late, after = (look(swarm, at_s) for at_s in (UNGIVEN_S / 2, 290.0, 340.0))
    problems: dict[float, str] = {}
    for at_s in (UNGIVEN_S / 2, 290.0, 340.0):
        swarm.world.call_at(at_s, lambda at_s=at_s: problems.update({at_s: swarm.backbones[0].problem()}))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=90)
    text = "nothing after step 0 is saved: no trainer gives its state"
    assert list(problems.values()) == ["", text, ""]
    assert [told["health"]["level"] for told in (early, late, after)] == ["good", "trouble", "good"]
    assert late["health"]["text"].endswith(f"; but {text}")
    assert "that others can dial" in late["health"]["hint"]
    notices = swarm.events(backbone, Notice)
    assert [(event.text, event.is_problem) for event in notices if text in (event.text, event.settles)] == [
        (text, True), ("trainers give their state again", False),
    ]  # fmt: skip


@pytest.mark.parametrize("who", [0, 1])
def test_a_checkpoint_that_is_being_written_when_its_backbone_is_asked_to_leave_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: int
) -> None:
    """By the one that publishes, and by one that has it from there."""
    swarm = several(tmp_path, 2, 3, until=40)
    backbone = swarm.world.peers[who]
    asked = leave_while_it_writes(swarm, monkeypatch, who, write_s=1.0)
    swarm.world.run()
    (epoch,) = asked
    assert epoch in published(swarm, who)
    assert epoch in [event.epoch for event in swarm.events(backbone, CheckpointSaved)]
    assert max(published(swarm, who)) == epoch, "it has left"


def test_who_cannot_finish_a_checkpoint_in_time_says_goodbye_before_it_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = several(tmp_path, 2, 3, until=40)
    asked = leave_while_it_writes(swarm, monkeypatch, 0, write_s=20.0)
    swarm.world.run()
    (asked_s,) = asked.values()
    (freed,) = [event for event in swarm.events(swarm.world.peers[0], LeaseChanged) if event.term == 0]
    assert freed.at_s - EPOCH_S < asked_s + LEAVE_LIMIT_S
    (taken,) = [event for event in swarm.events(swarm.world.peers[1], LeaseChanged) if event.term == 2]
    assert taken.at_s < freed.at_s + LEASE_S, "it has heard that"


def leave_while_it_writes(
    swarm: SimSwarm, monkeypatch: pytest.MonkeyPatch, who: int, *, write_s: float
) -> dict[int, float]:
    """A backbone is asked to leave half a second after it began a checkpoint; of which epoch, and when, later on."""
    write, asked = Shelf._write, dict[int, float]()

    async def slowly(shelf: Shelf, epoch: int, do: Callable[[], Checkpoint]) -> bool:
        is_ours = shelf.root.is_relative_to(swarm.directory / f"backbone-{who}")
        if is_ours and epoch >= 20 and not asked:
            asked[epoch] = swarm.world.time_s + 0.5
            swarm.world.call_at(asked[epoch], lambda: swarm.ask_to_leave(swarm.world.peers[who]))
            await asyncio.sleep(write_s)
        return await write(shelf, epoch, do)

    monkeypatch.setattr(Shelf, "_write", slowly)
    return asked


def test_a_holder_frozen_while_it_publishes_yields_to_the_next_one(tmp_path: Path) -> None:
    swarm = several(tmp_path, 2, 3, until=70)
    first, second, *trainers = swarm.world.peers
    swarm.churn.freeze_at(peer=first.index, time_s=30.0, for_s=60.0)
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=70)
    assert holders(swarm, first) == [1, 0]
    assert holders(swarm, second) == [2, 0], "until it left"
    assert {holder for _, holder in published(swarm, 0).values()} == {second.peer_id}
    assert files_of(swarm, 0) == files_of(swarm, 1)


def test_two_holders_of_a_partition_do_not_interleave_and_the_later_tenure_goes_on(tmp_path: Path) -> None:
    """The first backbone has the trainers with it, two others nobody; on both sides somebody holds the lease."""
    swarm = several(tmp_path, 3, 3, until=70)
    first, *others = swarm.world.peers[:3]
    swarm.churn.partition_at([[peer.index for peer in others]], time_s=30.0, for_s=60.0)
    at_once: list[int] = []

    def count() -> None:
        at_once.append(sum(swarm.backbones[index].lease.tenure() is not None for index in range(3)))

    swarm.world.call_at(85.0, count)
    swarm.world.run()
    assert at_once == [2]
    assert_equal_ends(swarm, swarm.world.peers[3:], epoch=70)
    assert holders(swarm, first) == [1, 0]
    assert sorted(holders(swarm, peer) for peer in others) == [[], [2, 0]]
    for index in range(3):
        in_order = [tenure for _, tenure in sorted(published(swarm, index).items())]
        assert in_order == sorted(in_order)
        assert in_order[-1][0] == 2
        assert files_of(swarm, index) == files_of(swarm, 0)
