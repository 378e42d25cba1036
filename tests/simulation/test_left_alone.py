"""A newcomer whose only partner leaves before it has the run's state."""

from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished, Notice, StateFetched
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from tests.simulation.swarm import SimSwarm

LEAVES_S, BACK_S = 30.0, 90.0
THIN = Link(up_bytes_per_s=2e3, down_bytes_per_s=2e3)
"""The state, which has 6 kB, is on its way when its donor leaves."""


@pytest.mark.parametrize("how", ["dies", "freezes"])
def test_it_says_so_within_20_s_waits_and_goes_on_when_somebody_is_there(tmp_path: Path, how: str) -> None:
    swarm = SimSwarm(tmp_path, until=1000)
    swarm.add_backbone()
    partner = swarm.add_trainer()
    newcomers: list[SimPeer] = []
    swarm.churn.fail_at(peer=0, time_s=15.0, restart_after_s=BACK_S - 15.0)
    swarm.world.call_at(LEAVES_S - 2.0, lambda: newcomers.append(swarm.add_trainer(link=THIN)))
    if how == "dies":
        swarm.churn.fail_at(peer=partner.index, time_s=LEAVES_S)
    else:
        swarm.churn.freeze_at(peer=partner.index, time_s=LEAVES_S, for_s=1000.0)
    with swarm.world:
        swarm.world.run(until_s=BACK_S + 60.0)
    assert swarm.events(partner, EpochFinished)
    newcomer = newcomers[0]
    fetched = [event.at_s - EPOCH_S for event in swarm.events(newcomer, StateFetched)]
    assert fetched
    assert fetched[0] > BACK_S, "until then nobody had it"
    problems = [event for event in swarm.events(newcomer, Notice) if event.is_problem]
    assert problems
    assert LEAVES_S < problems[0].at_s - EPOCH_S < LEAVES_S + 20.0
    assert problems[0].text == "no other trainer is here any more"
    assert "waits until somebody is here" in problems[0].hint
    assert swarm.events(newcomer, EpochFinished), "and it trains then"
