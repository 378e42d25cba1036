"""Newcomers where rounds fill the uplinks all the time: the swarm lets them in, and hardly loses anything by it."""

from pathlib import Path

import pytest

from collab.averaging.courtesy import LONGEST_S
from collab.metrics.records import EpochFinished
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm

JOINED_S = 15.0


def busy(directory: Path, *, newcomers: int, samples_per_s: float, until: int) -> tuple[SimSwarm, list[SimPeer]]:
    """Four trainers of 20 Mbit/s with 1.9 million parameters, whose rounds take 2 s, and those who come later."""
    swarm = SimSwarm(
        directory,
        until=until,
        compression="half",
        optimizer="{name: adamw, learning_rate: 0.001}",
        hidden="1200, 1500",
        every=until,
    )
    swarm.add_backbone()
    for _ in range(4):
        swarm.add_trainer(samples_per_s=samples_per_s)
    late: list[SimPeer] = []
    for _ in range(newcomers):
        swarm.world.call_at(JOINED_S, lambda: late.append(swarm.add_trainer(samples_per_s=samples_per_s)))
    swarm.world.run()
    return swarm, late


@pytest.mark.parametrize(
    ("newcomers", "samples_per_s", "within_s"),
    [
        pytest.param(1, 150.0, 12.0, id="a batch takes a tenth of a round"),
        pytest.param(1, 36.0, 25.0, id="a batch takes half of a round"),
        pytest.param(3, 150.0, 20.0, id="three at once"),
    ],
)
def test_a_newcomer_gets_in(tmp_path: Path, newcomers: int, samples_per_s: float, within_s: float) -> None:
    """23 MB of state from four uplinks take 2.3 s alone, a twentieth of them 46 s, in which 21 steps are taken."""
    swarm, late = busy(tmp_path, newcomers=newcomers, samples_per_s=samples_per_s, until=16)
    for peer in late:
        steps = swarm.events(peer, EpochFinished)
        assert steps[0].at_s - EPOCH_S - JOINED_S < within_s
        assert steps[-1].epoch == 16
        assert len(steps) == 16 - steps[0].epoch + 1, "it is in every step from then on"


def test_what_a_newcomer_costs_the_others_is_bounded(tmp_path: Path) -> None:
    alone, _ = busy(tmp_path / "alone", newcomers=0, samples_per_s=150.0, until=16)
    joined, _ = busy(tmp_path / "joined", newcomers=1, samples_per_s=150.0, until=16)

    def took_s(swarm: SimSwarm) -> float:
        return swarm.events(swarm.world.peers[1], EpochFinished)[-1].at_s - EPOCH_S

    assert took_s(joined) - took_s(alone) < min(6.0, LONGEST_S), "one pause, of three rounds at most"
