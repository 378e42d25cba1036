"""The end of a run without a backbone: who has missed the last step still gets it from those who took it."""

from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished, Notice, Phase
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.types import PeerId
from tests.simulation.swarm import SimSwarm

LAST = 8
AWAY_S = 45.0
"""Three times as long as a word counts for somebody's being here."""


def test_whoever_misses_the_last_step_gets_it_before_the_others_are_gone(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=LAST)
    backbone = swarm.add_backbone()
    victim, *others = [swarm.add_trainer() for _ in range(3)]
    cut_s: list[float] = []

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == LAST - 1 and not cut_s:
            cut_s.append(swarm.world.time_s)
            swarm.churn.partition_at([[victim.index]], time_s=swarm.world.time_s + 0.2, for_s=8.0)

    swarm.churn.fail_at(peer=backbone.index, phase=Phase.JOIN_GROUP, epoch=3)
    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run(until_s=300.0)
    assert cut_s
    assert victim.result.get("epoch") == LAST, "it has its end, too"
    assert len({peer.result["lineage"] for peer in (victim, *others)}) == 1
    for peer in others:
        notices = [event for event in swarm.events(peer, Notice) if "still need its last step" in event.text]
        assert len(notices) == 1


def test_nobody_waits_for_a_trainer_that_is_gone(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=LAST)
    backbone = swarm.add_backbone()
    victim, *others = [swarm.add_trainer() for _ in range(3)]
    died_s: list[float] = []

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == LAST - 1 and not died_s:
            died_s.append(swarm.world.time_s)
            swarm.world.kill(victim.index)

    swarm.churn.fail_at(peer=backbone.index, phase=Phase.JOIN_GROUP, epoch=3)
    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run()
    assert died_s
    assert {peer.result["epoch"] for peer in others} == {LAST}
    assert swarm.world.time_s - died_s[0] < 60.0


def test_whoever_takes_too_long_does_not_cost_the_others_their_goodbye(tmp_path: Path) -> None:
    """A newcomer on a link so thin that the state takes minutes."""
    swarm = SimSwarm(tmp_path, until=LAST, hidden=4000)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(2)]
    thin = Link(up_bytes_per_s=5e3, down_bytes_per_s=5e3)
    newcomers: list[SimPeer] = []
    heard: set[PeerId] = set()

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == LAST - 2 and not newcomers:
            newcomers.append(swarm.add_trainer(link=thin))

    def listen() -> None:
        heard.update(swarm.participants[newcomers[0].index].membership.view.left)

    swarm.churn.fail_at(peer=backbone.index, phase=Phase.JOIN_GROUP, epoch=3)
    swarm.world.subscribe(watch)
    for second in range(40, 200):
        swarm.world.call_at(float(second), listen)
    with swarm.world:
        swarm.world.run(until_s=200.0)
    for peer in trainers:
        assert peer.result["epoch"] == LAST
        assert any("still need its last step" in event.text for event in swarm.events(peer, Notice))
        assert peer.peer_id in heard


@pytest.mark.parametrize("backbone_dies", [False, True])
def test_several_that_were_cut_off_in_the_last_round_make_no_end_of_their_own(
    tmp_path: Path, backbone_dies: bool
) -> None:
    """Those who took the last step have given it to the backbone and are gone. Its votes went with the backbone's life,
    if it dies; the state did not.
    """
    swarm = SimSwarm(tmp_path, until=LAST)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(5)]
    minority, majority = trainers[3:], trainers[:3]
    cut_s: list[float] = []

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == LAST - 1 and not cut_s:
            cut_s.append(swarm.world.time_s)
            at_s = swarm.world.time_s + 0.05
            swarm.churn.partition_at([[peer.index for peer in minority]], time_s=at_s, for_s=AWAY_S)
            if backbone_dies:
                swarm.churn.fail_at(peer=backbone.index, time_s=at_s + AWAY_S - 10.0, restart_after_s=5.0)

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run(until_s=600.0)
    assert not swarm.churn.unfired()
    ends_s = {peer.index: swarm.events(peer, EpochFinished)[-1].at_s - EPOCH_S for peer in majority}
    assert max(ends_s.values()) < cut_s[0] + AWAY_S - 20.0, "they were gone before the cut was over"
    assert {peer.result.get("epoch") for peer in trainers} == {LAST}
    assert len({peer.result["lineage"] for peer in trainers}) == 1
    steps = {(e["epoch"], e["lineage"]) for e in swarm.finished_epochs()}
    assert len(steps) == len({epoch for epoch, _ in steps})


def test_the_end_of_a_run_waits_for_a_backbone_that_is_started_again(tmp_path: Path) -> None:
    """And whoever was frozen meanwhile, and unseen, finds it there."""
    swarm = SimSwarm(tmp_path, until=LAST)
    backbone = swarm.add_backbone()
    frozen, *others = [swarm.add_trainer() for _ in range(4)]

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == LAST - 1 and backbone.is_alive:
            swarm.world.kill(backbone.index)
            at_s = swarm.world.time_s
            swarm.churn.restart_at(backbone.index, time_s=at_s + 20.0)
            swarm.churn.freeze_at(frozen.index, time_s=at_s + 0.01, for_s=60.0)

    swarm.world.subscribe(watch)
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert {peer.result["epoch"] for peer in (frozen, *others)} == {LAST}
    assert len({peer.result["lineage"] for peer in (frozen, *others)}) == 1
    for peer in others:
        assert any("no backbone has its end" in event.text for event in swarm.events(peer, Notice))
