"""Swarms so large that trainers know of each other by what a backbone tells of all."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.crowd import CROWD_FROM
from collab.swarm.identity import Identity
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

OWNER = Identity.from_seed(b"o" * 32)
TRAINERS = CROWD_FROM + 3


def crowd(directory: Path, *, until: int, backbones: int = 1, access: str = "open") -> SimSwarm:
    swarm = SimSwarm(directory, owner=OWNER, until=until, target=1024, access=access)
    for _ in range(backbones):
        swarm.add_backbone()
    for index in range(TRAINERS):
        papers = swarm.papers(f"person {index}", key=Identity.from_seed(bytes([index + 1] * 32)))
        swarm.add_trainer(samples_per_s=20.0, papers=papers if access == "invite_only" else None)
    return swarm


def trainers_in_crowd(swarm: SimSwarm) -> Iterator[bool]:
    for participant in swarm.participants.values():
        yield participant.membership.view.crowd is not None


@pytest.mark.parametrize("access", ["open", "invite_only"])
def test_a_crowd_trains_as_one_and_a_newcomer_is_taken_in(tmp_path: Path, access: str) -> None:
    swarm = crowd(tmp_path, until=16, access=access)
    known: list[bool] = []
    key = Identity.from_seed(b"n" * 32)

    def join() -> None:
        known.extend(trainers_in_crowd(swarm))
        swarm.add_trainer(samples_per_s=20.0, papers=swarm.papers("new", key=key) if access == "invite_only" else None)

    swarm.world.call_at(45.0, join)
    with swarm.world as world:
        world.run()
    assert all(known)
    assert_equal_ends(swarm, swarm.world.peers[1:], 16)
    contributors = swarm.contributors(swarm.world.peers[1])
    assert contributors[:4] == [TRAINERS] * 4
    assert contributors[-1] == TRAINERS + 1, "the newcomer as well"
    newest = swarm.world.peers[-1]
    assert [event.epoch for event in swarm.events(newest, EpochFinished)][-1] == 16


def test_when_the_backbone_of_a_crowd_dies_everybody_is_read_again_and_training_goes_on(tmp_path: Path) -> None:
    swarm = crowd(tmp_path, until=20)
    swarm.world.call_at(40.0, lambda: swarm.world.kill(0))
    seen: dict[float, list[bool]] = {}
    for at_s in (39.0, 75.0):
        swarm.world.call_at(at_s, lambda at_s=at_s: seen.update({at_s: list(trainers_in_crowd(swarm))}))
    with swarm.world as world:
        world.run()
    assert all(seen[39.0])
    assert not any(seen[75.0]), "what a dead backbone told is old by then"
    assert_equal_ends(swarm, swarm.world.peers[1:], 20)
    steps = [e for peer in swarm.world.peers[1:] for e in swarm.events(peer, EpochFinished) if e.at_s - EPOCH_S > 45.0]
    taken_s = [min(e.at_s for e in steps if e.epoch == epoch) for epoch in sorted({e.epoch for e in steps})]
    assert len(taken_s) > 5
    assert max(later - sooner for sooner, later in pairwise(taken_s)) < 2 * 1024 / (20.0 * TRAINERS)


def test_of_two_backbones_one_tells_and_the_other_does_when_it_dies(tmp_path: Path) -> None:
    swarm = crowd(tmp_path, until=22, backbones=2)
    first = min((0, 1), key=lambda index: swarm.world.peers[index].peer_id)
    swarm.world.call_at(40.0, lambda: swarm.world.kill(first))
    seen: list[bool] = []
    swarm.world.call_at(95.0, lambda: seen.extend(trainers_in_crowd(swarm)))
    with swarm.world as world:
        world.run()
    assert seen
    assert all(seen)
    assert_equal_ends(swarm, swarm.world.peers[2:], 22)
