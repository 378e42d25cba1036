"""What a peer says when nothing moves, and what it does about it."""

import asyncio
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.metrics.records import EpochFinished, Notice
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.records import PeerState
from collab.training.aims import Aim
from collab.training.standstill import (
    AS_LAST,
    LOOK_S,
    SHORTEST_S,
    SKIPPED,
    STEPS,
    UNHEARD_S,
    UNKNOWN_S,
    Remedy,
    Signs,
    Standstill,
    find,
)
from collab.types import Lineage, Role
from tests.fakes import FakeNetwork, make_ports, run
from tests.simulation.swarm import SimSwarm

QUIET = Signs(
    idle_s=100.0, epoch=7, swarm_epoch=7, others=3, unheard_s=1.0, samples=50.0, target=100, skipped=0, failure=""
)  # fmt: skip


@pytest.mark.parametrize(
    ("signs", "words", "remedy"),
    [
        (replace(QUIET, unheard_s=UNHEARD_S + 1), "nobody of the swarm has answered for 31 s", Remedy.REJOIN),
        (replace(QUIET, swarm_epoch=9), "the others are at epoch 9", Remedy.RESYNC),
        (replace(QUIET, skipped=SKIPPED), "4 microbatches in a row were not finite", Remedy.NOTHING),
        (replace(QUIET, samples=100.0, failure="no leader"), "rounds fail: no leader", Remedy.REJOIN),
        (QUIET, "50 of 100 samples are there, with 3 other trainers", Remedy.REJOIN),
        (replace(QUIET, swarm_epoch=None, others=1), "with 1 other trainer", Remedy.REJOIN),
        (replace(QUIET, swarm_epoch=6), "50 of 100 samples", Remedy.REJOIN),
        (replace(QUIET, is_own=True), "50 of its 100 samples are computed", Remedy.NOTHING),
        (replace(QUIET, is_own=True, target=0, failure="old"), "no unit of work for this machine; old", Remedy.REJOIN),
    ],
)
def test_the_most_certain_explanation_is_given(signs: Signs, words: str, remedy: Remedy) -> None:
    finding = find(signs)
    assert words in finding.text
    assert finding.text.startswith("no step for 100 s (epoch 7)")
    assert finding.hint
    assert finding.remedy is remedy


def notices(swarm: SimSwarm, peer: SimPeer, words: str) -> list[float]:
    return [event.at_s - EPOCH_S for event in swarm.events(peer, Notice) if words in event.text]


def test_a_peer_that_is_cut_off_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=60, target=512)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=40.0) for _ in range(3)]
    cut = trainers[0]
    swarm.churn.partition_at([[cut.index]], time_s=30.0, for_s=150.0)
    with swarm.world as world:
        world.run()
    said_s = notices(swarm, cut, "nobody of the swarm has answered")
    assert 30.0 + UNHEARD_S < said_s[0] < 35.0 + SHORTEST_S
    assert len(said_s) <= 2, "it does not repeat itself every few seconds"
    assert all(not notices(swarm, peer, "no step for") for peer in trainers[1:])
    assert max(event.epoch for event in swarm.events(cut, EpochFinished)) == 60


@pytest.mark.parametrize("delay", [0, 1])
def test_rounds_that_take_far_longer_than_computing_are_no_standstill(tmp_path: Path, delay: int) -> None:
    """Half a second of computing, and 4 MB through 50 kB/s; beside the round the next batch is computed, with delay."""
    swarm = SimSwarm(tmp_path, until=3, every=100, target=100, hidden=13_000, strategy=f"dedloc, delay: {delay}")
    thin = Link(up_bytes_per_s=50e3, down_bytes_per_s=1e6, latency_s=0.02)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(link=thin) for _ in range(2)]
    with swarm.world as world:
        world.run()
    for trainer in trainers:
        steps_s = [event.at_s for event in swarm.events(trainer, EpochFinished)]
        assert len(steps_s) == 3
        assert max(later - earlier for earlier, later in pairwise(steps_s)) > SHORTEST_S, "or this test shows nothing"
        assert not notices(swarm, trainer, "no step for")


class Steps:
    """A trainer in a swarm that takes steps when the test says so. Its own ``Aims``."""

    def __init__(self, *, is_own: bool = False) -> None:
        self.is_own, self.target, self.epochs = is_own, 100.0, 1
        self.record = SimpleNamespace(
            epoch=0, lineage=Lineage("l"), state=PeerState.TRAINING, samples_per_s=100.0, role=Role.TRAINER
        )
        view = SimpleNamespace(
            crowd=None, num_trainers=1, samples_per_s=100.0, all_trainers=list, samples=lambda *_: 50.0
        )
        self.membership: Any = SimpleNamespace(
            view=view, unheard_s=0.0, our_record=lambda: self.record, consensus_of_others=lambda: None
        )

    def now(self) -> Aim:
        return Aim(samples=50.0, target=self.target, samples_per_s=100.0)

    async def take(self, standstill: Standstill, *seconds: float) -> None:
        """So long each, while it is looked now and then."""
        for step_s in seconds:
            for _ in range(round(step_s / LOOK_S)):
                await asyncio.sleep(LOOK_S)
                standstill.look()
            self.record.epoch += self.epochs
            standstill.look()

    async def stops(self, standstill: Standstill) -> float:
        """From now on; how soon that is told."""
        for number in count(1):
            await asyncio.sleep(LOOK_S)
            if standstill.look() is not None:
                return number * LOOK_S
        raise AssertionError


@pytest.mark.parametrize(
    ("steps_s", "told_s"),
    [
        ([4.0, 4.0], SHORTEST_S),
        ([100.0, 100.0], AS_LAST * 100.0),
        ([4.0, 36_000.0], SHORTEST_S),
        ([4.0, 36_000.0, 4.0], SHORTEST_S),
    ],
)
def test_it_is_told_after_some_times_what_a_step_takes_whatever_one_of_them_took(
    steps_s: list[float], told_s: float
) -> None:
    async def main() -> float:
        steps = Steps()
        standstill = Standstill(make_ports(FakeNetwork().join("me")), steps.membership, steps)
        standstill.look()
        await steps.take(standstill, *steps_s)
        return await steps.stops(standstill)

    assert run(main()) == pytest.approx(told_s, abs=LOOK_S)


@pytest.mark.parametrize(
    ("samples", "told_s"), [(100.0, SHORTEST_S), (6_000.0, STEPS * 60.0), (0.0, UNKNOWN_S)]
)
def test_who_needs_no_others_is_as_patient_as_its_unit_is_long_wherever_they_are(samples: float, told_s: float) -> None:
    async def main() -> float:
        steps = Steps(is_own=True)
        steps.membership.consensus_of_others = lambda: (99, Lineage("l"))
        standstill = Standstill(make_ports(FakeNetwork().join("me")), steps.membership, steps)
        steps.target = samples
        standstill.look()
        return await steps.stops(standstill)

    assert run(main()) == pytest.approx(told_s, abs=LOOK_S)


def test_a_push_among_many_of_others_is_a_step_like_any() -> None:
    """Its epoch is the version of the parameters."""

    async def main() -> float:
        steps = Steps(is_own=True)
        steps.epochs = 8
        standstill = Standstill(make_ports(FakeNetwork().join("me")), steps.membership, steps)
        standstill.look()
        await steps.take(standstill, 100.0, 100.0)
        return await steps.stops(standstill)

    assert run(main()) == pytest.approx(AS_LAST * 100.0, abs=LOOK_S)


def test_who_waits_for_a_unit_does_so_since_it_has_handed_over_the_last_one() -> None:
    async def main() -> float:
        steps = Steps(is_own=True)
        standstill = Standstill(make_ports(FakeNetwork().join("me")), steps.membership, steps)
        steps.target = 20_000.0
        standstill.look()
        await asyncio.sleep(1_000.0)
        assert standstill.look() is None
        steps.target = 0.0
        return await steps.stops(standstill)

    assert run(main()) == pytest.approx(UNKNOWN_S, abs=LOOK_S)


def test_what_was_waited_for_before_it_could_train_is_no_part_of_a_step() -> None:
    async def main() -> float:
        steps = Steps()
        standstill = Standstill(make_ports(FakeNetwork().join("me")), steps.membership, steps)
        steps.record.state = PeerState.SYNCING
        standstill.look()
        await asyncio.sleep(36_000.0)
        standstill.look()
        steps.record.state = PeerState.TRAINING
        await steps.take(standstill, 4.0)
        return await steps.stops(standstill)

    assert run(main()) == pytest.approx(SHORTEST_S, abs=LOOK_S)


@pytest.mark.parametrize("is_killed", [False, True])
def test_who_is_left_alone_says_so_within_twenty_seconds_and_trains_on(tmp_path: Path, is_killed: bool) -> None:
    swarm = SimSwarm(tmp_path, until=25, target=256)
    swarm.add_backbone()
    first, second = (swarm.add_trainer(samples_per_s=40.0) for _ in range(2))
    end = (lambda: swarm.world.kill(first.index)) if is_killed else (lambda: swarm.ask_to_leave(first))
    swarm.world.call_at(20.0, end)
    with swarm.world as world:
        world.run()
    said_s = notices(swarm, second, "no other trainer is here")
    assert len(said_s) == 1
    assert 20.0 <= said_s[0] <= 40.0
    assert max(event.epoch for event in swarm.events(second, EpochFinished)) == 25


def test_who_is_left_alone_waits_for_company_where_the_run_wants_it(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=30, target=256, when_alone="wait")
    swarm.add_backbone()
    first, second = (swarm.add_trainer(samples_per_s=40.0) for _ in range(2))
    swarm.world.call_at(20.0, lambda: swarm.ask_to_leave(first))
    swarm.world.call_at(120.0, lambda: swarm.add_trainer(samples_per_s=40.0))
    with swarm.world as world:
        world.run()
    at_s = [event.at_s - EPOCH_S for event in swarm.events(second, EpochFinished)]
    assert not [moment for moment in at_s if 40.0 < moment < 120.0]
    assert [moment for moment in at_s if moment > 120.0], "it goes on with the next one"
    assert not notices(swarm, second, "no step for"), "it is known what is waited for"
    left, back, *_ = (event for event in swarm.events(second, Notice) if "other trainer is here" in event.text)
    assert left.is_problem
    assert back.settles == left.text
    assert 120.0 < back.at_s - EPOCH_S < 130.0
