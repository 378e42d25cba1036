"""Trainers whose state is of another model, as after an update of theirs, or because they lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from collab.averaging.flow import Links
from collab.checkpoints.local import epoch_of, list_checkpoints, load_checkpoint
from collab.errors import ConfigError, ShapeMismatch
from collab.metrics.records import Notice, StateFetched
from collab.net.base import Transport
from collab.simulation.peer import SimPeer
from collab.swarm.donation import StateServer
from collab.swarm.forms import Forms
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack, unpack
from collab.training.state_sync import StateSync
from peers import simulated_roles
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

UNTIL = 30
WRONG = (1, 2)
"""Most of the three trainers that are there from the beginning."""


MORE = ("model.more", "optimizer.more.step")


@pytest.fixture(params=MORE)
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SimSwarm:
    """``WRONG`` give a state with one tensor more than the model, or its optimiser, has."""
    swarm, begin = SimSwarm(tmp_path, until=UNTIL, every=5), StateServer.__init__

    def begin_wrongly(self: StateServer, transport: Transport, links: Links, fingerprint: str, provide: object) -> None:
        async def other(epoch: int | None) -> PackedSnapshot | None:
            if (packed := await provide(epoch)) is None:  # type: ignore[operator]
                return None
            snapshot = unpack(packed)
            tensors = {**snapshot.tensors, request.param: snapshot.tensors[min(snapshot.tensors)]}  # the same of both
            return pack(replace(snapshot, tensors=tensors), fingerprint=fingerprint)

        is_wrong = transport.peer_id in {swarm.world.peers[index].peer_id for index in WRONG}
        begin(self, transport, links, fingerprint, other if is_wrong else provide)  # type: ignore[arg-type]

    monkeypatch.setattr(StateServer, "__init__", begin_wrongly)
    return swarm


def test_neither_a_newcomer_nor_a_backbone_takes_it_though_most_trainers_give_it(
    swarm: SimSwarm, tmp_path: Path
) -> None:
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.world.call_at(20.0, lambda: trainers.append(swarm.add_trainer()))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=UNTIL)
    assert swarm.events(trainers[-1], StateFetched)[0].epoch > 0
    kept = list_checkpoints(tmp_path / "backbone-0" / "checkpoints")
    assert max(map(epoch_of, kept)) == UNTIL
    for path in kept:
        assert not {*MORE} & load_checkpoint(path, fingerprint=None).tensors.keys()
    for peer in (backbone, trainers[-1]):
        assert_refused(swarm, peer)


def assert_refused(swarm: SimSwarm, peer: SimPeer) -> None:
    told = [event.text for event in swarm.events(peer, Notice) if "is not taken" in event.text]
    assert any("model.more" in text or "tensor more" in text or "state for more" in text for text in told)


def test_a_backbone_that_has_no_state_yet_compares_with_the_run_s_model(swarm: SimSwarm, tmp_path: Path) -> None:
    first, joined = swarm.add_backbone(), list[SimPeer]()
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.world.call_at(15.0, lambda: swarm.world.kill(first.index))
    swarm.world.call_at(20.0, lambda: joined.append(swarm.add_backbone(has_joined=True)))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=UNTIL)
    kept = list_checkpoints(tmp_path / f"backbone-{joined[0].index}" / "checkpoints")
    assert max(map(epoch_of, kept)) == UNTIL
    for path in kept:
        assert not {*MORE} & load_checkpoint(path, fingerprint=None).tensors.keys()
    assert_refused(swarm, joined[0])


def test_a_backbone_on_whose_machine_the_run_s_task_is_not_takes_a_state_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(_: object) -> Forms:
        raise ConfigError("this run uses the module 'theirs', which is not allowed on this machine")

    monkeypatch.setattr(simulated_roles, "model_forms", not_here)
    swarm, joined = SimSwarm(tmp_path, until=UNTIL, every=5), list[SimPeer]()
    swarm.add_backbone()
    for _ in range(2):
        swarm.add_trainer()
    swarm.world.call_at(20.0, lambda: joined.append(swarm.add_backbone(has_joined=True)))
    swarm.world.run()
    assert max(map(epoch_of, list_checkpoints(tmp_path / f"backbone-{joined[0].index}" / "checkpoints"))) == UNTIL


@pytest.mark.parametrize("misfits", [2, 3])
def test_a_newcomer_that_gets_another_model_s_state_asks_again_as_who_has_the_right_one_may_be_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misfits: int
) -> None:
    swarm, fetch, left = SimSwarm(tmp_path, until=UNTIL, every=5), StateSync._fetch, [misfits]

    async def fetch_wrongly(sync: StateSync, *, goes_on: bool) -> Snapshot:
        if swarm.world.time_s >= 20.0 and left[0]:
            left[0] -= 1
            raise ShapeMismatch("tensor more is missing here")
        return await fetch(sync, goes_on=goes_on)

    monkeypatch.setattr(StateSync, "_fetch", fetch_wrongly)
    swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(2)]
    swarm.world.call_at(20.0, lambda: trainers.append(swarm.add_trainer()))
    if misfits == 2:
        swarm.world.run()
        assert_equal_ends(swarm, trainers, epoch=UNTIL)
    else:
        with pytest.raises(ShapeMismatch, match="tensor more"):
            swarm.world.run()
