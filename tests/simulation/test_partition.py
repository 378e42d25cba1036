"""A swarm that is cut in two for a minute: one history, and no sample counted twice or dropped in silence."""

from itertools import pairwise
from pathlib import Path

import pytest

from collab.averaging.timeouts import FIRST
from collab.metrics.records import EpochFinished, MicrobatchDone, SamplesUsed
from collab.simulation.peer import SimPeer
from tests.simulation.swarm import SimSwarm

CUT_S = 30.0
SINCE_S = 1_700_000_000.0


def num_used(swarm: SimSwarm, peer: SimPeer) -> int:
    """Samples of a peer that it knows to be in steps."""
    return sum(event.own_samples for event in swarm.events(peer, EpochFinished)) + sum(
        event.samples for event in swarm.events(peer, SamplesUsed)
    )


@pytest.mark.parametrize(
    ("minority", "healed_s"),
    [((1, 2, 3), 90.0), ((0, 1, 2), 90.0), ((0, 1, 2), 94.0)],
    ids=["trainers", "with the backbone", "with the backbone, in the middle of a wait"],
)
def test_a_partition_of_a_minute_ends_with_one_history_and_every_sample_counted_once(
    tmp_path: Path, minority: tuple[int, ...], healed_s: float
) -> None:
    swarm = SimSwarm(tmp_path, until=34, target=400, every=1000)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=20.0) for _ in range(8)]
    majority = [index for index in range(9) if index not in minority]
    swarm.churn.partition_at([minority, majority], time_s=CUT_S, for_s=healed_s - CUT_S)
    swarm.world.run()
    assert not swarm.churn.unfired()

    lineages: dict[int, set[str]] = {}
    for peer in trainers:
        for event in swarm.events(peer, EpochFinished):
            lineages.setdefault(event.epoch, set()).add(event.lineage)
    assert all(len(each) == 1 for each in lineages.values()), "one record for every epoch"
    steps = {peer.index: [e.at_s - SINCE_S for e in swarm.events(peer, EpochFinished)] for peer in trainers}
    for peer in trainers:
        during = [at_s for at_s in steps[peer.index] if CUT_S + 10.0 < at_s < healed_s]
        assert bool(during) == (peer.index in majority), "only the majority goes on"
    epoch_s = max(
        late - early for early, late in pairwise(t for t in steps[trainers[-1].index] if CUT_S + 10 < t < healed_s)
    )
    for peer in trainers:
        first = min(at_s for at_s in steps[peer.index] if at_s > healed_s)
        assert first < healed_s + 2 * epoch_s, "within two epochs all are in step"
    assert swarm.events(trainers[-1], EpochFinished)[-1].contributors == 8

    claimed = 0
    for peer in trainers:
        used, held = num_used(swarm, peer), len(swarm.replicas[peer.index].sample_ids)
        computed = sum(event.samples for event in swarm.events(peer, MicrobatchDone))
        assert used + held == computed, "nothing is lost, and nothing that is used is brought again"
        claimed += used
    in_records = {event.epoch: event.swarm_samples for peer in trainers for event in swarm.events(peer, EpochFinished)}
    assert claimed == pytest.approx(sum(in_records.values()), abs=0.5), "and nothing is used without its peer's knowing"


def test_those_who_were_cut_off_before_do_not_take_the_others_for_long_gone_the_next_time(tmp_path: Path) -> None:
    """What a minority's leader last saw of the others is minutes old when it comes to lead again; they were not."""
    swarm = SimSwarm(tmp_path, until=75, target=160, every=1000)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=4.0) for _ in range(8)]
    second_s = CUT_S + 30.0 + FIRST.reform_s + 20.0
    for time_s in (CUT_S, second_s):
        swarm.churn.partition_at([(1,), (0, 2, 3, 4, 5, 6, 7, 8)], time_s=time_s, for_s=30.0)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert max(event.at_s for event in swarm.events(trainers[-1], EpochFinished)) - SINCE_S > second_s + 30.0
    lineages: dict[int, set[str]] = {}
    for peer in trainers:
        for event in swarm.events(peer, EpochFinished):
            lineages.setdefault(event.epoch, set()).add(event.lineage)
    assert all(len(each) == 1 for each in lineages.values()), "one record for every epoch"
