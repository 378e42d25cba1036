"""DTS in a whole swarm, in virtual time: steps go on beside rounds over long ways, and all end with one model."""

import statistics
from pathlib import Path

import pytest

from collab.metrics.records import (
    BlockTrained,
    EpochFinished,
    EvaluationDone,
    MicrobatchDone,
    RoundEnded,
    SamplesUsed,
    StateFetched,
)
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm

FAR = Link(up_bytes_per_s=12.5e6, down_bytes_per_s=12.5e6, latency_s=0.1)
"""100 Mbit/s, 200 ms and more there and back."""
MICROBATCH_S = 0.08
SETTLED_S = 13.0
"""After which everybody knows how fast the others are."""


def swarm_of(directory: Path, count: int, *, until: int, target: int = 256, **options: object) -> SimSwarm:
    swarm = SimSwarm(directory, strategy="dts", until=until, target=target, **options)  # type: ignore[arg-type]
    swarm.add_backbone()
    for _ in range(count):
        swarm.add_trainer(samples_per_s=8 / MICROBATCH_S, link=FAR)
    return swarm


def trainers_of(swarm: SimSwarm) -> list[SimPeer]:
    return [swarm.world.peers[index] for index in swarm.participants]


def vectors_of(swarm: SimSwarm, peers: list[SimPeer]) -> set[bytes]:
    """The models that they end with."""
    return {swarm.replicas[peer.index].layout.parameters_vector().tobytes() for peer in peers}


def test_four_far_trainers_step_as_fast_as_alone_and_end_with_one_model(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 4, until=12)
    with swarm.world:
        swarm.world.run(until_s=120.0)
    trainers = trainers_of(swarm)
    assert len({peer.result["lineage"] for peer in trainers}) == 1
    assert len(vectors_of(swarm, trainers)) == 1, "what was pending is in the last round"
    for peer in trainers:
        rounds = swarm.events(peer, RoundEnded)
        assert all(event.contributors == 4 for event in rounds)
        done = [event.at_s for event in swarm.events(peer, MicrobatchDone)]
        last = swarm.events(peer, EpochFinished)[-2].at_s
        beside = [at for at in done if at < last]
        rate = (len(beside) - 1) / (beside[-1] - beside[0])
        assert rate > 0.95 / MICROBATCH_S


def test_trainers_for_whom_a_pass_takes_seconds_wait_little_for_leases_at_its_ends(tmp_path: Path) -> None:
    """A target that is small against the data, so that they lease blocks; a claim takes a sixth of a pass."""
    swarm = swarm_of(tmp_path, 4, until=30, target=128)
    with swarm.world:
        swarm.world.run(until_s=120.0)
    rates, passes = [], set[int]()
    for peer in trainers_of(swarm):
        blocks = swarm.events(peer, BlockTrained)
        passes |= {event.pass_number for event in blocks}
        last = swarm.events(peer, EpochFinished)[-5].at_s
        done = [event.at_s for event in swarm.events(peer, MicrobatchDone)]
        beside = [at for at in done if EPOCH_S + SETTLED_S < at < last]
        rates.append((len(beside) - 1) / (beside[-1] - beside[0]) * MICROBATCH_S)
    assert len(passes) >= 3
    assert min(rates) > 0.9
    assert statistics.mean(rates) > 0.93


@pytest.mark.parametrize("victim", ["trainer", "backbone"])
@pytest.mark.parametrize("moment_s", [20.0, 20.7])
def test_survivors_of_a_kill_lose_no_step_and_end_with_one_model(tmp_path: Path, victim: str, moment_s: float) -> None:
    swarm = swarm_of(tmp_path, 5, until=40)
    dies = swarm.world.peers[0 if victim == "backbone" else 3]
    swarm.churn.fail_at(peer=dies.index, time_s=moment_s, restart_after_s=12.0 if victim == "backbone" else None)
    with swarm.world:
        swarm.world.run(until_s=200.0)
    survivors = [peer for peer in trainers_of(swarm) if peer is not dies]
    assert {peer.result["epoch"] for peer in survivors} == {40}
    assert len(vectors_of(swarm, survivors)) == 1
    for peer in survivors:
        computed = sum(event.samples for event in swarm.events(peer, MicrobatchDone))
        used = sum(event.own_samples for event in swarm.events(peer, EpochFinished))
        used += sum(event.samples for event in swarm.events(peer, SamplesUsed))
        assert used >= 0.99 * computed


def test_a_newcomer_comes_between_windows_and_is_in_the_rounds_from_then_on(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, 3, until=40)
    late: list[SimPeer] = []
    swarm.world.call_at(15.0, lambda: late.append(swarm.add_trainer(samples_per_s=8 / MICROBATCH_S, link=FAR)))
    with swarm.world:
        swarm.world.run(until_s=200.0)
    trainers = trainers_of(swarm)
    assert {peer.result["epoch"] for peer in trainers} == {40}
    assert len(vectors_of(swarm, trainers)) == 1
    assert swarm.events(late[0], StateFetched)
    contributed = [event for event in swarm.events(late[0], EpochFinished) if event.own_samples]
    assert len(contributed) > 10
    assert [event.contributors for event in contributed][-5:] == [4] * 5


def test_what_is_learnt_is_what_training_on_one_machine_learns(tmp_path: Path) -> None:
    """Beside a round of a second every trainer takes a dozen steps; loss as low as with as many samples alone."""
    swarm = swarm_of(tmp_path / "dts", 4, until=60)
    with swarm.world:
        swarm.world.run(until_s=200.0)
    alone = SimSwarm(tmp_path / "alone", strategy="solo", until=200, target=32)
    alone.add_backbone()
    solo = alone.add_trainer()
    with alone.world:
        alone.world.run(until_s=400.0)
    ours = swarm.events(trainers_of(swarm)[0], EvaluationDone)[-1].loss
    assert ours < 1.1 * alone.events(solo, EvaluationDone)[-1].loss


def test_a_window_of_hundreds_of_target_batches_counts_whole(tmp_path: Path) -> None:
    """A round takes a second, in which each trainer computes more than 16 times the target."""
    swarm = SimSwarm(tmp_path, strategy="dts", until=12, target=8, optimizer="{name: sgd, learning_rate: 0.05}")
    swarm.add_backbone()
    for _ in range(2):
        swarm.add_trainer(samples_per_s=400.0, link=FAR)
    with swarm.world:
        swarm.world.run(until_s=120.0)
    for peer in trainers_of(swarm):
        heaviest = max(event.own_samples for event in swarm.events(peer, EpochFinished))
        assert heaviest > 16 * 8
        for event in swarm.events(peer, EpochFinished):
            together = sum(
                other.own_samples
                for each in trainers_of(swarm)
                for other in swarm.events(each, EpochFinished)
                if other.epoch == event.epoch
            )
            assert event.swarm_samples == together


@pytest.mark.parametrize(("strategy", "is_ever"), [("dts", True), ("dedloc", False)])
def test_a_step_beside_a_round_asks_nobody_unless_it_may_have_to_wait(
    tmp_path: Path, strategy: str, is_ever: bool
) -> None:
    """``collab.join`` crosses to its event loop only when there is something to do there."""
    swarm = SimSwarm(tmp_path, strategy=strategy, until=12, target=256)
    swarm.add_backbone()
    for _ in range(3):
        swarm.add_trainer(samples_per_s=8 / MICROBATCH_S, link=FAR)
    seen: list[bool] = []

    def look() -> None:
        seen.extend(swarm.participants[index].is_undisturbed for index in swarm.participants)

    for number in range(60):
        swarm.world.call_at(8.0 + 0.1 * number, look)
    with swarm.world:
        swarm.world.run(until_s=120.0)
    assert any(seen) == is_ever
    assert not all(seen), "between rounds it does ask"
