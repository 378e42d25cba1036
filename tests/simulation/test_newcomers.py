"""Newcomers that hold the run's state, and who decides what follows it: those who made it, while they are there."""

from pathlib import Path

import pytest

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, Notice, StateFetched
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.identity import Identity
from tests.simulation.swarm import SimSwarm

JOIN_S = 30.0


def lineages(swarm: SimSwarm, peers: list[SimPeer]) -> dict[int, set[str]]:
    """Of each epoch, those that somebody finished it with."""
    found: dict[int, set[str]] = {}
    for peer in peers:
        for event in swarm.events(peer, EpochFinished):
            found.setdefault(event.epoch, set()).add(event.lineage)
    return found


@pytest.mark.parametrize("how", ["frozen", "restarted"])
def test_four_fast_newcomers_beside_two_slow_trainers_make_no_second_history(tmp_path: Path, how: str) -> None:
    """The backbone, which would have led, is away just then and knows nothing of the last rounds."""
    swarm = SimSwarm(tmp_path, until=14, target=160, every=1)
    swarm.add_backbone()
    peers = [swarm.add_trainer(samples_per_s=20.0, microbatch_size=32) for _ in range(2)]
    if how == "frozen":
        swarm.churn.freeze_at(peer=0, time_s=JOIN_S, for_s=25.0)
    else:
        swarm.churn.fail_at(peer=0, time_s=JOIN_S + 2.6, restart_after_s=1.0)

    def join() -> None:
        peers.extend(swarm.add_trainer(samples_per_s=100.0) for _ in range(4))

    swarm.world.call_at(JOIN_S + (2.6 if how == "frozen" else 0.0), join)
    with swarm.world:
        swarm.world.run(until_s=120.0)
    found = lineages(swarm, peers)
    assert max(found) == 14, "they all train on"
    assert not {epoch: names for epoch, names in found.items() if len(names) > 1}
    assert all(swarm.events(peer, EpochFinished) for peer in peers)


def test_newcomers_go_on_when_all_who_decide_have_died(tmp_path: Path) -> None:
    """Nobody who made the history is left, nor the backbone; two that hold the state are."""
    swarm = SimSwarm(tmp_path, until=200, target=160, every=1)
    swarm.add_backbone()
    old = [swarm.add_trainer(samples_per_s=20.0, microbatch_size=32) for _ in range(2)]
    swarm.churn.fail_at(peer=0, time_s=15.0)
    new: list[SimPeer] = []
    swarm.world.call_at(JOIN_S, lambda: new.extend(swarm.add_trainer(samples_per_s=20.0) for _ in range(2)))
    for peer in old:
        swarm.churn.fail_at(peer=peer.index, time_s=JOIN_S + 6.0)
    with swarm.world:
        swarm.world.run(until_s=JOIN_S + FIRST.reform_s + 60.0)
    assert not swarm.churn.unfired()
    assert all(swarm.events(peer, StateFetched) for peer in new)
    assert all(swarm.events(peer, EpochFinished) for peer in new), "three minutes later they decide"
    assert all(len(names) == 1 for names in lineages(swarm, [*old, *new]).values())


def test_who_reaches_nobody_with_a_newer_state_fetches_the_backbone_s_old_one_once_and_is_told_why(
    tmp_path: Path,
) -> None:
    """All trainers are hidden, no relay is there, and the backbone has the state of the beginning: it fetched that
    each second, a whole state each time.
    """
    swarm = SimSwarm(tmp_path, until=200, target=160, every=100)
    swarm.add_backbone()
    old = [swarm.add_trainer(samples_per_s=40.0, client_mode=True) for _ in range(2)]
    new: list[SimPeer] = []
    swarm.world.call_at(JOIN_S, lambda: new.append(swarm.add_trainer(samples_per_s=40.0, client_mode=True)))
    with swarm.world:
        swarm.world.run(until_s=JOIN_S + 60.0)
    assert min(max(event.epoch for event in swarm.events(peer, EpochFinished)) for peer in old) > 10
    assert [event.epoch for event in swarm.events(new[0], StateFetched)] == [0]
    (notice,) = [event for event in swarm.events(new[0], Notice) if "could not be fetched" in event.text]
    assert "no way to peer" in notice.text
    assert "which is what we hold already" in notice.text


def test_newcomers_to_a_run_whose_trainers_were_all_killed_go_on_with_the_owner_s_backbone_at_once(
    tmp_path: Path,
) -> None:
    """None of them stays as long as it would have to look for the dead itself: the run would stand still for ever."""
    swarm = SimSwarm(tmp_path, until=10_000, every=5, owner=Identity.from_seed(bytes(32)))
    swarm.add_backbone()
    for peer in [swarm.add_trainer() for _ in range(4)]:
        swarm.churn.fail_at(peer=peer.index, time_s=JOIN_S)
    come_s = JOIN_S + FIRST.reform_s + 60.0
    lives_s, new = FIRST.reform_s / 4, list[SimPeer]()

    def come() -> None:
        peer = swarm.add_trainer()
        new.append(peer)
        swarm.world.call_at(swarm.world.time_s + lives_s, lambda: (swarm.world.kill(peer.index), come()))

    for number in range(4):
        swarm.world.call_at(come_s + number * lives_s / 4, come)
    with swarm.world:
        swarm.world.run(until_s=come_s + 6 * lives_s)
    assert not swarm.churn.unfired()
    steps = sorted(step.at_s - EPOCH_S for peer in new for step in swarm.events(peer, EpochFinished))
    assert steps[0] < come_s + 30.0
    assert steps[-1] > come_s + 6 * lives_s - 30.0, "they live for less than half of what they would have to wait"
    assert all(len(names) == 1 for names in lineages(swarm, new).values())
