"""Newcomers where rounds fill the uplinks all the time: the swarm lets them in, and hardly loses anything by it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from collab.averaging.courtesy import LONGEST_S
from collab.metrics.records import EpochFinished
from collab.simulation.peer import SimPeer
from collab.simulation.swarm_file import NoTask
from collab.simulation.synthetic import SyntheticTask
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm

JOINED_S = 15.0
UNTIL = 16


@dataclass(frozen=True, slots=True)
class Run:
    """What is left of one: the steps that peers took."""

    resident: list[EpochFinished]
    """Of the first trainer."""
    late: list[list[EpochFinished]]
    """Of each newcomer."""


def busy(directory: Path, *, newcomers: int, samples_per_s: float) -> Run:
    """Four trainers of 20 Mbit/s with 1.9 million parameters, whose rounds take 2 s, and those who come later.

    Nothing is learnt: only steps and seconds are looked at.
    """
    swarm = SimSwarm(
        directory,
        until=UNTIL,
        compression="half",
        optimizer="{name: adamw, learning_rate: 0.001}",
        every=UNTIL,
    )
    swarm.task = SyntheticTask(NoTask(name="none", num_elements=1_900_000, samples=1400))
    swarm.add_backbone()
    residents = [swarm.add_trainer(samples_per_s=samples_per_s) for _ in range(4)]
    late: list[SimPeer] = []
    for _ in range(newcomers):
        swarm.world.call_at(JOINED_S, lambda: late.append(swarm.add_trainer(samples_per_s=samples_per_s)))
    swarm.world.run()
    return Run(swarm.events(residents[0], EpochFinished), [swarm.events(peer, EpochFinished) for peer in late])


@pytest.fixture(scope="module")
def busy_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, float], Run]:
    """A run with so many newcomers and trainers of such a speed; played once, whoever looks at it."""

    @cache
    def played(newcomers: int, samples_per_s: float) -> Run:
        return busy(tmp_path_factory.mktemp("busy"), newcomers=newcomers, samples_per_s=samples_per_s)

    return played


@pytest.mark.parametrize(
    ("newcomers", "samples_per_s", "within_s"),
    [
        pytest.param(1, 150.0, 12.0, id="a batch takes a tenth of a round"),
        pytest.param(1, 36.0, 25.0, id="a batch takes half of a round"),
        pytest.param(3, 150.0, 20.0, id="three at once"),
    ],
)
def test_a_newcomer_gets_in(
    busy_run: Callable[[int, float], Run], newcomers: int, samples_per_s: float, within_s: float
) -> None:
    """23 MB of state from four uplinks take 2.3 s alone, a twentieth of them 46 s, in which 21 steps are taken."""
    run = busy_run(newcomers, samples_per_s)
    assert len(run.late) == newcomers
    for steps in run.late:
        assert steps[0].at_s - EPOCH_S - JOINED_S < within_s
        assert steps[-1].epoch == UNTIL
        assert len(steps) == UNTIL - steps[0].epoch + 1, "it is in every step from then on"


def test_what_a_newcomer_costs_the_others_is_bounded(busy_run: Callable[[int, float], Run]) -> None:
    alone, joined = busy_run(0, 150.0), busy_run(1, 150.0)
    longer_s = joined.resident[-1].at_s - alone.resident[-1].at_s
    assert longer_s < min(6.0, LONGEST_S), "one pause, of three rounds at most"
