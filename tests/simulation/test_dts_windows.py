"""DTS with several windows in a round, in a whole swarm in virtual time: each window's mean is here after two ways."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished, MicrobatchDone, RoundEnded, SamplesUsed, StateFetched, WindowsAveraged
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from tests.simulation.swarm import SimSwarm

WAYS_S = (0.008, 0.015, 0.064, 0.043)
"""Of four sites, to the middle: 46 to 214 ms there and back."""
STEP_S = 0.04
TARGET = 192
"""Too many for leases: some steps of each trainer."""


def swarm_of(
    directory: Path,
    *,
    until: int,
    windows: int,
    delay: str = "null",
    count: int = 4,
    step_s: float = STEP_S,
    seed: int = 1,
) -> SimSwarm:
    rule = f"dts, windows: {windows}, delay: {delay}, max_gradient_norm: null"
    optimizer = "{name: sgd, learning_rate: 0.05}"
    swarm = SimSwarm(directory, foreign=rule, until=until, target=TARGET, optimizer=optimizer, seed=seed)
    swarm.add_backbone()
    for number in range(count):
        add(swarm, WAYS_S[number % 4], step_s)
    return swarm


def add(swarm: SimSwarm, way_s: float, step_s: float = STEP_S) -> SimPeer:
    link = Link(up_bytes_per_s=12.5e6, down_bytes_per_s=12.5e6, latency_s=way_s)
    return swarm.add_trainer(samples_per_s=8 / step_s, link=link)


def run(swarm: SimSwarm, until_s: float = 200.0) -> list[SimPeer]:
    with swarm.world:
        swarm.world.run(until_s=until_s)
    return [swarm.world.peers[index] for index in swarm.participants]


def models(swarm: SimSwarm, peers: list[SimPeer]) -> set[bytes]:
    return {swarm.replicas[peer.index].layout.parameters_vector().tobytes() for peer in peers}


def share_of_alone(swarm: SimSwarm, peer: SimPeer, step_s: float) -> float:
    """Steps between the third round and the last but one, over those of a machine alone."""
    rounds = [event.at_s for event in swarm.events(peer, EpochFinished)]
    steps = sum(rounds[2] < event.at_s <= rounds[-2] for event in swarm.events(peer, MicrobatchDone))
    return steps * step_s / (rounds[-2] - rounds[2])


def delays(swarm: SimSwarm, peers: list[SimPeer]) -> list[int]:
    told = [event for peer in peers for event in swarm.events(peer, WindowsAveraged) if event.epoch > 2]
    return [late for event in told for _, late in event.paces]


def check_all_counted(swarm: SimSwarm, peers: list[SimPeer]) -> None:
    """Every step of these is in the model, once."""
    for peer in peers:
        computed = sum(event.samples for event in swarm.events(peer, MicrobatchDone))
        used = [sample for event in swarm.events(peer, EpochFinished) for sample in event.sample_ids]
        used += [sample for event in swarm.events(peer, SamplesUsed) for sample in event.sample_ids]
        assert len(used) == computed


def test_with_a_delay_of_twenty_steps_four_far_sites_step_as_if_alone(tmp_path: Path) -> None:
    """A round trip between the farthest is 21 steps, and a round is five of them: so that is to be hidden."""
    step_s = 0.01
    swarm = swarm_of(tmp_path, until=7, windows=24, delay="20", step_s=step_s)
    trainers = run(swarm)
    assert len(models(swarm, trainers)) == 1
    check_all_counted(swarm, trainers)
    assert min(share_of_alone(swarm, peer, step_s) for peer in trainers[:2]) > 0.9
    assert max(delays(swarm, trainers)) <= 20


def test_a_window_takes_a_way_to_a_near_site_and_one_back_where_a_round_takes_five(tmp_path: Path) -> None:
    step_s = 0.02
    swarm = swarm_of(tmp_path, until=7, windows=24, step_s=step_s)
    trainers = run(swarm)
    for peer, way_s in zip(trainers, WAYS_S, strict=True):
        there_s = WAYS_S[1] + max(WAYS_S)  # to the hub, which is at one of the first two sites
        later_s = max(WAYS_S) - way_s  # BEGIN was there, so windows end later
        late = statistics.median(delays(swarm, [peer]))
        assert late <= (later_s + there_s + WAYS_S[1] + way_s) / step_s + 1.5
        rounds = swarm.events(peer, RoundEnded)[-5:]
        assert all(event.contributors == 4 for event in rounds)
        assert min(event.seconds for event in rounds) > 24 * step_s


@pytest.mark.parametrize(("victim", "moment_s"), [(0, 12.0), (1, 13.1), (3, 13.1)])
def test_survivors_of_a_kill_lose_no_step_and_end_with_one_model(tmp_path: Path, victim: int, moment_s: float) -> None:
    """The backbone, whoever reduces, and one of the others."""
    swarm = swarm_of(tmp_path, until=14, windows=32, count=5)
    dies = swarm.world.peers[victim]
    swarm.churn.fail_at(peer=dies.index, time_s=moment_s, restart_after_s=None if victim else 12.0)
    trainers = run(swarm)
    survivors = [peer for peer in trainers if peer is not dies]
    assert {peer.result["epoch"] for peer in survivors} == {14}
    assert len(models(swarm, survivors)) == 1
    check_all_counted(swarm, survivors)


@pytest.mark.parametrize(
    ("windows", "seed", "count", "moment_s"),
    [(1, 149, 3, 4.84), (1, 595, 7, 6.39), (1, 731, 7, 4.83), (8, 115, 5, 23.63), (8, 759, 3, 10.43)],
)
def test_near_the_end_and_without_its_backbone_nobody_is_left_behind(
    tmp_path: Path, windows: int, seed: int, count: int, moment_s: float
) -> None:
    """Leaders change with each round then, and rounds without a pause leave behind whoever has missed one."""
    swarm = swarm_of(tmp_path, until=14, windows=windows, count=count, seed=seed)
    swarm.churn.fail_at(peer=swarm.world.peers[0].index, time_s=moment_s, restart_after_s=12.0)
    trainers = run(swarm)
    assert {peer.result["epoch"] for peer in trainers} == {14}
    assert len(models(swarm, trainers)) == 1
    check_all_counted(swarm, trainers)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What goes wrong near the end of a run of five trainers; seconds after somebody took the last step but one."""

    backbone_s: tuple[float, float]
    """When it dies, and for how long."""
    frozen: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    away_s: tuple[float, float]
    """When those are frozen, or cut off together, and for how long."""


@pytest.mark.parametrize(
    "ending",
    [
        Ending(backbone_s=(0.76, 20.5), frozen=(2,), away_s=(0.57, 53.3)),
        Ending(backbone_s=(35.0, 3.0), cut=(4, 5), away_s=(0.3, 45.0)),
        Ending(backbone_s=(0.3, 10.0), frozen=(1, 3), away_s=(0.4, 25.0)),
    ],
    ids=["one is frozen until all are gone", "two are cut off until all are gone", "two are frozen"],
)
def test_whoever_misses_the_last_round_makes_none_of_its_own(tmp_path: Path, ending: Ending) -> None:
    swarm = swarm_of(tmp_path, until=5, windows=8, count=5, seed=229)
    begun: list[float] = []

    def watch(_: object, event: object) -> None:
        if isinstance(event, EpochFinished) and event.epoch == 4 and not begun:
            begun.append(swarm.world.time_s)
            (dies_s, dead_s), (away_s, for_s) = ending.backbone_s, ending.away_s
            swarm.churn.fail_at(0, time_s=begun[0] + dies_s, restart_after_s=dead_s)
            for index in ending.frozen:
                swarm.churn.freeze_at(index, time_s=begun[0] + away_s, for_s=for_s)
            if ending.cut:
                swarm.churn.partition_at([ending.cut], time_s=begun[0] + away_s, for_s=for_s)

    swarm.world.subscribe(watch)
    trainers = run(swarm, until_s=400.0)
    assert not swarm.churn.unfired()
    assert {peer.result["epoch"] for peer in trainers} == {5}
    assert len({peer.result["lineage"] for peer in trainers}) == 1
    assert len(models(swarm, trainers)) == 1
    assert swarm.world.time_s < begun[0] + 45.0 + 100.0, "nobody waits until the others count as dead"


@pytest.mark.parametrize("windows", [1, 16])
def test_a_window_has_the_steps_that_the_period_asks_for(tmp_path: Path, windows: int) -> None:
    swarm = swarm_of(tmp_path, until=6, windows=windows, delay="null, period: 24")
    trainers = run(swarm)
    for peer in trainers:
        told = swarm.events(peer, WindowsAveraged)[-3:-1]  # all are here by then; the last round is short
        assert len(told) == 2
        assert all(23 <= event.period <= 30 for event in told)


def test_a_newcomer_is_in_the_rounds_from_then_on(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, until=20, windows=16, count=3)
    late: list[SimPeer] = []
    swarm.world.call_at(9.0, lambda: late.append(add(swarm, 0.05)))
    trainers = run(swarm)
    assert {peer.result["epoch"] for peer in trainers} == {20}
    assert len(models(swarm, trainers)) == 1
    assert swarm.events(late[0], StateFetched)
    contributed = [event.contributors for event in swarm.events(late[0], EpochFinished) if event.own_samples]
    assert contributed[-4:] == [4] * 4


def test_who_was_cut_off_in_a_round_takes_it_over_when_it_is_back(tmp_path: Path) -> None:
    """It has missed rounds of windows, and its own windows are either in them or in the next one."""
    swarm = swarm_of(tmp_path, until=16, windows=16, count=5)
    away = swarm.world.peers[4]
    swarm.churn.partition_at([[4]], time_s=12.3, for_s=9.0)
    trainers = run(swarm)
    assert {peer.result["epoch"] for peer in trainers} == {16}
    assert len(models(swarm, trainers)) == 1
    check_all_counted(swarm, [peer for peer in trainers if peer is not away])
    computed = sum(event.samples for event in swarm.events(away, MicrobatchDone))
    used = sum(event.own_samples for event in swarm.events(away, EpochFinished))
    used += sum(event.samples for event in swarm.events(away, SamplesUsed))
    assert 0.9 * computed < used <= computed, "nothing counts twice"


def test_the_farthest_trainer_is_in_nearly_every_round(tmp_path: Path) -> None:
    """From the middle it is eight times as far away as the nearest, and a round without it would be over sooner."""
    swarm = swarm_of(tmp_path, until=14, windows=1, seed=613)
    trainers = run(swarm)
    own = [sum(step.own_samples > 0 for step in swarm.events(trainer, EpochFinished)) for trainer in trainers]
    assert min(own) >= 12, own
    check_all_counted(swarm, trainers)
