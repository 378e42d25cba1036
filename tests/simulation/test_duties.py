"""What a backbone is told not to do it does not do, others do not ask it to, and the run goes on with the others."""

from pathlib import Path

import pytest

from collab.errors import ConfigError
from collab.metrics.backbone_events import RoundShared
from collab.metrics.records import CheckpointSaved, EpochFinished, LeaseChanged
from collab.net.base import Stream
from collab.net.memory_net import MemoryTransport
from collab.simulation.peer import SimPeer
from collab.swarm.bundle import BUNDLE_PROTOCOL
from collab.swarm.donation import STATE_PROTOCOL
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.handover import HANDOVER_PROTOCOL
from collab.swarm.time_sync import PROTOCOL as TIME_PROTOCOL
from collab.types import PeerId
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

Calls = list[tuple[PeerId, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Everything that anybody in the world asks of anybody: whom, and by which protocol."""
    found: Calls = []
    opens = MemoryTransport.open

    async def noted(self: MemoryTransport, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        found.append((peer, protocol))
        return await opens(self, peer, protocol, timeout_s=timeout_s)

    monkeypatch.setattr(MemoryTransport, "open", noted)
    return found


def served(swarm: SimSwarm, peer: SimPeer, at_s: float) -> set[str]:
    """Protocols that a backbone answers at that time; filled while the world runs."""
    found: set[str] = set()
    swarm.world.call_at(at_s, lambda: found.update(peer.transport.handlers))
    return found


def with_a_newcomer(swarm: SimSwarm, at_s: float = 8.0) -> list[SimPeer]:
    """Two trainers from the beginning, and one that comes later."""
    trainers = [swarm.add_trainer(), swarm.add_trainer()]
    swarm.world.call_at(at_s, lambda: trainers.append(swarm.add_trainer()))
    return trainers


def test_a_backbone_with_all_its_duties_does_them(tmp_path: Path, calls: Calls) -> None:
    """What the other tests look for is there when nothing is switched off."""
    swarm = SimSwarm(tmp_path, until=15)
    backbone = swarm.add_backbone()
    trainers, answers = with_a_newcomer(swarm), served(swarm, backbone, 5.0)
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=15)
    assert {STATE_PROTOCOL, HANDOVER_PROTOCOL, BUNDLE_PROTOCOL, TIME_PROTOCOL} <= answers
    assert set(backbone.ports.entrance.contributors()) == {trainer.peer_id for trainer in trainers}
    assert (backbone.peer_id, STATE_PROTOCOL) in calls
    assert swarm.events(backbone, CheckpointSaved)
    assert list((tmp_path / "backbone-0" / "checkpoints").iterdir())
    assert swarm.backbones[0].own_addresses


@pytest.mark.parametrize("off", [NOTHING_OFF, frozenset({Duty.REDUCER})])
def test_a_backbone_that_is_no_reducer_leads_and_takes_no_span(tmp_path: Path, off: frozenset[Duty]) -> None:
    """Its line is the fastest by far, and most trainers only dial: one that reduces has a part of the vector."""
    swarm = SimSwarm(tmp_path, until=12, hidden=256)
    backbone = swarm.add_backbone(off=off)
    trainers = [swarm.add_trainer(), swarm.add_trainer(client_mode=True), swarm.add_trainer(client_mode=True)]
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    shared = swarm.events(backbone, RoundShared)
    assert len(shared) == 12, "it was in every round"
    reducers = {peer for told in shared for peer, _ in told.reduced}
    assert (backbone.peer_id in reducers) == (not off)
    assert reducers <= {backbone.peer_id, trainers[0].peer_id}
    assert swarm.events(backbone, CheckpointSaved)


def test_a_backbone_that_gives_no_state_is_asked_for_none_and_follows_another(tmp_path: Path, calls: Calls) -> None:
    swarm = SimSwarm(tmp_path, until=40)
    swarm.backbones_stay_s = 10.0
    first, second = swarm.add_backbone(), swarm.add_backbone(has_joined=True, off=frozenset({Duty.STATE}))
    trainers, answers = with_a_newcomer(swarm), served(swarm, second, 5.0)
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=40)
    assert not {STATE_PROTOCOL, HANDOVER_PROTOCOL} & answers
    assert (first.peer_id, STATE_PROTOCOL) in calls
    assert (second.peer_id, STATE_PROTOCOL) not in calls
    assert max(event.epoch for event in swarm.events(second, CheckpointSaved)) == 40
    assert not swarm.events(second, LeaseChanged)


def test_a_backbone_without_checkpoints_writes_nothing_and_gives_the_newest_state(
    tmp_path: Path, calls: Calls
) -> None:
    """Alone: nobody publishes, and it keeps in memory what would be due."""
    swarm = SimSwarm(tmp_path, until=40)
    backbone = swarm.add_backbone(off=frozenset({Duty.CHECKPOINTS}))
    trainers, answers = with_a_newcomer(swarm), served(swarm, backbone, 5.0)
    held: list[int] = []
    swarm.world.call_at(15.0, lambda: held.append(swarm.backbones[0].keeper.epoch))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=40)
    assert held[0] >= 5, "a state of the trainers' is here"
    assert STATE_PROTOCOL in answers
    assert (backbone.peer_id, STATE_PROTOCOL) in calls
    assert HANDOVER_PROTOCOL not in answers, "whoever leaves last is not told that its state is safe"
    assert (backbone.peer_id, HANDOVER_PROTOCOL) not in calls
    assert not swarm.events(backbone, CheckpointSaved)
    assert not swarm.events(backbone, LeaseChanged)
    assert not (tmp_path / "backbone-0" / "checkpoints").exists()


def test_a_backbone_without_checkpoints_goes_on_from_those_of_its_earlier_life_and_touches_none(
    tmp_path: Path,
) -> None:
    swarm = SimSwarm(tmp_path, until=10)
    swarm.add_backbone()
    swarm.add_trainer()
    swarm.world.run()
    place = tmp_path / "backbone-0" / "checkpoints"
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    again = SimSwarm(tmp_path, until=20, seed=2)
    again.bundle = swarm.bundle
    again.add_backbone(off=frozenset({Duty.CHECKPOINTS}))
    begun: list[int] = []
    again.world.call_at(1.0, lambda: begun.append(again.backbones[0].keeper.epoch))
    again.world.call_at(2.0, lambda: again.ask_to_leave(again.world.peers[0]))
    again.world.run()
    assert begun == [10]
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_backbone_that_lets_nobody_in_answers_no_newcomer_and_is_named_to_none(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12)
    _, second = swarm.add_backbone(), swarm.add_backbone(has_joined=True, off=frozenset({Duty.BOOTSTRAP}))
    trainers, answers = [swarm.add_trainer(), swarm.add_trainer()], served(swarm, second, 5.0)
    told: list[tuple[str, ...]] = []
    swarm.world.call_at(8.0, lambda: told.append(swarm.backbones[0].all_addresses()))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    assert not {BUNDLE_PROTOCOL, TIME_PROTOCOL} & answers
    assert told[0]
    assert all(second.peer_id not in address for address in told[0])
    assert swarm.events(second, RoundShared), "it is in rounds as before"


def test_a_run_is_not_begun_by_a_backbone_that_gives_nobody_its_first_state(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=5)
    backbone = swarm.add_backbone(off=frozenset({Duty.STATE}))
    with pytest.raises(ConfigError, match="nobody has a state of this run"):
        swarm.world.run()
    assert not swarm.events(backbone, EpochFinished)


@pytest.mark.parametrize("duty", [Duty.CHECKPOINTS, Duty.STATE])
def test_the_last_trainer_leaves_its_state_where_it_is_kept_and_given(
    tmp_path: Path, calls: Calls, duty: Duty
) -> None:
    swarm = SimSwarm(tmp_path, until=200, every=100)
    first, second = swarm.add_backbone(), swarm.add_backbone(has_joined=True, off=frozenset({duty}))
    trainer = swarm.add_trainer()
    swarm.world.call_at(20.0, lambda: swarm.ask_to_leave(trainer))
    swarm.world.run()
    asked = {peer for peer, protocol in calls if protocol == HANDOVER_PROTOCOL}
    assert asked == {first.peer_id}
    assert swarm.events(first, CheckpointSaved)[-1].epoch == swarm.replicas[trainer.index].epoch
    assert second.peer_id not in asked
