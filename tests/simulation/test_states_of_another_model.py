"""Trainers whose state is of another model, as after an update of theirs, or because they lie."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from collab.averaging.flow import Links
from collab.checkpoints.local import epoch_of, list_checkpoints, load_checkpoint
from collab.errors import ConfigError, ShapeMismatch
from collab.metrics.records import Notice, StateFetched
from collab.net.base import Transport
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.donation import StateServer
from collab.swarm.forms import Forms
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack, unpack
from collab.training.pursuit import MISFIT_PAUSE_S, MISFITS_S
from collab.training.state_sync import StateSync
from peers import simulated_roles
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

UNTIL = 30
WRONG = (1, 2)
"""Most of the three trainers that are there from the beginning."""
NEWCOMERS_S = (20.0, 20.4)
"""Whoever asks while a step is taken hears of three different states, and may take the right one at once. Steps come
every 0.9 s and take less than 0.2 s, so that is one of these at most, wherever floats put the steps on this machine."""


MORE = ("model.more", "optimizer.more.step")


@pytest.fixture(params=MORE)
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SimSwarm:
    """``WRONG`` give a state with one tensor more than the model, or its optimiser, has."""
    return misled(SimSwarm(tmp_path, until=UNTIL, every=5), monkeypatch, request.param, math.inf)


def misled(swarm: SimSwarm, monkeypatch: pytest.MonkeyPatch, more: str, until_s: float) -> SimSwarm:
    """The same, and they do so until then."""
    begin = StateServer.__init__

    def begin_wrongly(self: StateServer, transport: Transport, links: Links, fingerprint: str, provide: object) -> None:
        async def other(epoch: int | None) -> PackedSnapshot | None:
            if (packed := await provide(epoch)) is None or swarm.world.time_s > until_s:  # type: ignore[operator]
                return packed  # type: ignore[no-any-return]
            snapshot = unpack(packed)
            tensors = {**snapshot.tensors, more: snapshot.tensors[min(snapshot.tensors)]}  # the same of both
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
    for at_s in NEWCOMERS_S:
        swarm.world.call_at(at_s, lambda: trainers.append(swarm.add_trainer()))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=UNTIL)
    newcomers = trainers[3:]
    assert all(swarm.events(newcomer, StateFetched)[0].epoch > 0 for newcomer in newcomers)
    kept = list_checkpoints(tmp_path / "backbone-0" / "checkpoints")
    assert max(map(epoch_of, kept)) == UNTIL
    for path in kept:
        assert not {*MORE} & load_checkpoint(path, fingerprint=None).tensors.keys()
    assert has_refused(swarm, backbone)
    assert any(has_refused(swarm, newcomer) for newcomer in newcomers)


def has_refused(swarm: SimSwarm, peer: SimPeer) -> bool:
    """Whether it was given such a state first, and said so."""
    told = [event.text for event in swarm.events(peer, Notice) if "is not taken" in event.text]
    return any("model.more" in text or "tensor more" in text or "state for more" in text for text in told)


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
    assert has_refused(swarm, joined[0])


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


def test_a_newcomer_waits_where_all_who_are_here_give_a_state_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backbone is away, and those trainers are mended after a while."""
    swarm = misled(SimSwarm(tmp_path, until=UNTIL, every=5, target=640), monkeypatch, MORE[0], until_s=60.0)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in WRONG]
    swarm.churn.fail_at(peer=backbone.index, time_s=20.0, restart_after_s=60.0)
    swarm.world.call_at(21.0, lambda: trainers.append(swarm.add_trainer()))
    swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=UNTIL)
    assert swarm.events(trainers[-1], StateFetched)[0].at_s > EPOCH_S + 60.0


@pytest.mark.parametrize("misfits_s", [50.0, math.inf])
def test_a_newcomer_ends_after_a_minute_of_nothing_but_states_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misfits_s: float
) -> None:
    swarm, fetch = SimSwarm(tmp_path, until=UNTIL, every=5, target=640), StateSync._fetch

    async def fetch_wrongly(sync: StateSync, *, goes_on: bool) -> Snapshot:
        if 20.0 <= swarm.world.time_s < 20.0 + misfits_s:
            raise ShapeMismatch("tensor more is missing here")
        return await fetch(sync, goes_on=goes_on)

    monkeypatch.setattr(StateSync, "_fetch", fetch_wrongly)
    swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(2)]
    swarm.world.call_at(20.0, lambda: trainers.append(swarm.add_trainer()))
    if math.isfinite(misfits_s):
        swarm.world.run()
        assert_equal_ends(swarm, trainers, epoch=UNTIL)
    else:
        with pytest.raises(ShapeMismatch, match="tensor more"):
            swarm.world.run()
        assert 20.0 + MISFITS_S <= swarm.world.time_s < 25.0 + MISFITS_S + MISFIT_PAUSE_S
