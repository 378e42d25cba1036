"""A machine whose owner wants it back: its device is free within seconds, and the swarm does not notice."""

from itertools import pairwise
from pathlib import Path

import pytest

from collab.errors import Dismissed
from collab.metrics.guest_records import Paused
from collab.metrics.records import EpochFinished, MicrobatchDone, StateFetched, UnitBegun
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.training.participant import Participant
from peers.event_words import words
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

PAUSED_S, RESUMED_S = 21.7, 46.0
TARGET = 1200
"""Four seconds of three trainers, six of two."""


def pausing_swarm(
    directory: Path, *, until: int, strategy: str = "dedloc", pauses: bool = True
) -> tuple[SimSwarm, SimPeer, list[SimPeer]]:
    """A backbone, a trainer that pauses in the middle of an epoch, and two that do not."""
    swarm = SimSwarm(directory, until=until, target=TARGET, strategy=strategy, every=10)
    swarm.add_backbone()
    guest = swarm.add_trainer(state_dir=directory / "guest")
    others = [swarm.add_trainer() for _ in range(2)]
    if pauses:
        swarm.world.call_at(PAUSED_S, lambda: swarm.ask_to_pause(guest))
    return swarm, guest, others


def computed(swarm: SimSwarm, peer: SimPeer) -> int:
    """Samples whose gradients a peer has accumulated."""
    return sum(event.samples for event in swarm.events(peer, MicrobatchDone))


def contributed(swarm: SimSwarm, peer: SimPeer) -> int:
    """Of these, how many are in steps."""
    return sum(event.own_samples for event in swarm.events(peer, EpochFinished))


@pytest.mark.parametrize("strategy", ["dedloc", "dts", "diloco"])
def test_the_device_is_free_at_once_and_all_that_was_computed_is_in_the_next_step(
    tmp_path: Path, strategy: str
) -> None:
    swarm, guest, others = pausing_swarm(tmp_path, until=9, strategy=strategy)
    swarm.world.run()
    (paused,) = swarm.events(guest, Paused)
    assert paused.at_s - EPOCH_S - PAUSED_S < 5.0
    assert paused.samples > 0
    after = [event for event in swarm.events(guest, MicrobatchDone) if event.at_s > paused.at_s]
    assert not after
    last = swarm.events(guest, EpochFinished)[-1]
    assert last.at_s - EPOCH_S - PAUSED_S < 15.0, "it has left with the step that used what it had"
    assert computed(swarm, guest) == contributed(swarm, guest)
    assert_equal_ends(swarm, others, epoch=9)
    assert str(swarm.replicas[guest.index].layout.parameters[0].device) == "cpu"


def test_who_is_asked_with_nothing_in_hand_says_so_though_its_training_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two samples it looks whether to go on, and hears of the pause before anybody who waits for that does."""
    swarm, guest, others = pausing_swarm(tmp_path, until=9, pauses=False)
    unwanted = Participant.unwanted

    def look(participant: Participant) -> Dismissed | None:
        is_guest = participant is swarm.participants.get(guest.index)
        if is_guest and participant.replica.epoch == 3 and not participant.replica.samples:
            swarm.ask_to_pause(guest)
        return unwanted(participant)

    monkeypatch.setattr(Participant, "unwanted", look)
    swarm.world.run()
    (paused,) = swarm.events(guest, Paused)
    assert paused.samples == 0
    assert swarm.events(guest, EpochFinished)[-1].epoch == 3
    assert_equal_ends(swarm, others, epoch=9)
    assert str(swarm.replicas[guest.index].layout.parameters[0].device) == "cpu"


def test_the_others_go_on_as_fast_as_a_swarm_without_it(tmp_path: Path) -> None:
    def steps_s(swarm: SimSwarm, peer: SimPeer) -> list[float]:
        return [e.at_s - EPOCH_S for e in swarm.events(peer, EpochFinished) if e.at_s - EPOCH_S > PAUSED_S]

    swarm, guest, others = pausing_swarm(tmp_path, until=12)
    swarm.world.run()
    taken_s = steps_s(swarm, others[0])
    paused_after_s = PAUSED_S - max(
        e.at_s - EPOCH_S for e in swarm.events(others[0], EpochFinished) if e.at_s - EPOCH_S <= PAUSED_S
    )
    mine = swarm.events(guest, Paused)[0].samples
    assert taken_s[0] - PAUSED_S < (TARGET - mine) / 200 - paused_after_s + 1.0, "its samples count"

    without = SimSwarm(tmp_path / "without", until=8, target=TARGET)
    without.add_backbone()
    alone = [without.add_trainer() for _ in range(2)]
    without.world.run()
    usual = [after - before for before, after in pairwise(e.at_s for e in without.events(alone[0], EpochFinished))]
    intervals = [after - before for before, after in pairwise(taken_s)]
    assert max(intervals) < 1.05 * max(usual[2:])
    assert sum(intervals) / len(intervals) < 1.02 * sum(usual[2:]) / len(usual[2:])


def test_it_comes_back_with_what_is_on_its_disk_and_contributes(tmp_path: Path) -> None:
    swarm, guest, others = pausing_swarm(tmp_path, until=18)
    swarm.world.call_at(RESUMED_S, lambda: swarm.world.restart(guest.index))
    swarm.world.run()
    assert_equal_ends(swarm, [guest, *others], epoch=18)
    back = [e for e in swarm.events(guest, EpochFinished) if e.at_s - EPOCH_S > RESUMED_S and e.own_samples]
    assert back[0].at_s - EPOCH_S - RESUMED_S < 20.0
    assert len(swarm.events(guest, StateFetched)) == 1, "when it came for the first time"
    assert computed(swarm, guest) == contributed(swarm, guest)


def test_who_comes_back_tells_no_speed_of_a_step_whose_beginning_it_has_not_seen(tmp_path: Path) -> None:
    swarm, guest, _ = pausing_swarm(tmp_path, until=18)
    swarm.world.call_at(RESUMED_S, lambda: swarm.world.restart(guest.index))
    swarm.world.run()
    steps = swarm.events(guest, EpochFinished)
    first = next(event for event in steps if event.at_s - EPOCH_S > RESUMED_S)
    assert first.seconds == 0.0
    assert "samples/s" not in words(first)
    speeds = [event.swarm_samples / event.seconds for event in steps if event.seconds]
    assert len(speeds) > 8
    assert 190.0 < min(speeds) <= max(speeds) < 330.0, "two or three trainers of 100 samples/s"


def test_one_that_is_alone_has_nobody_to_hand_anything_to_and_leaves_its_state_behind(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=60, target=400, every=1000)
    backbone = swarm.add_backbone()
    guest = swarm.add_trainer(state_dir=tmp_path / "guest")
    swarm.world.call_at(PAUSED_S, lambda: swarm.ask_to_pause(guest))
    swarm.world.run()
    assert swarm.world.time_s < PAUSED_S + 20.0
    assert swarm.backbones[backbone.index].keeper.epoch == guest.result["epoch"] > 1


def test_one_that_still_takes_the_state_over_stops_at_once(tmp_path: Path) -> None:
    swarm, _, others = pausing_swarm(tmp_path, until=9, pauses=False)
    late: list[SimPeer] = []
    swarm.world.call_at(15.0, lambda: late.append(swarm.add_trainer()))
    swarm.world.call_at(15.2, lambda: swarm.ask_to_pause(late[0]))
    swarm.world.run()
    assert_equal_ends(swarm, others, epoch=9)
    assert not swarm.events(late[0], MicrobatchDone)
    assert len(swarm.events(late[0], Paused)) == 1


def test_a_client_of_parameter_servers_gives_its_unit_back(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, strategy="vc_asgd", until=60, units="shards: 20, first_lease_s: 500", every=20)
    swarm.add_backbone()
    guest, other = (swarm.add_trainer(samples_per_s=20.0) for _ in range(2))
    swarm.world.call_at(20.5, lambda: swarm.ask_to_pause(guest))
    swarm.world.run()
    begun = swarm.events(guest, UnitBegun)[-1]
    again = [e for e in swarm.events(other, UnitBegun) if (e.pass_number, e.shard) == (begun.pass_number, begun.shard)]
    assert again[0].at_s - EPOCH_S < 200.0, "long before its lease would have ended"
    assert other.result["epoch"] == 60
