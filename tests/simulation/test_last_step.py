"""The end of a run without a backbone: who has missed the last step still gets it from those who took it."""

from pathlib import Path

from collab.metrics.records import EpochFinished, Notice, Phase
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.types import PeerId
from tests.simulation.swarm import SimSwarm

LAST = 8


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
