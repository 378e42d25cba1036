"""When a newcomer waits for the swarm's next step before it fetches the state."""

import math
from pathlib import Path
from typing import Literal

import pytest
import torch

from collab.config import Optimizer
from collab.metrics.records import EpochFinished, Event, MicrobatchDone, StateFetched
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.training import fresh_epoch
from collab.training.fresh_epoch import state_floats, worth_waiting_s
from collab.training.optimizers import build_optimizer
from tests.simulation.swarm import SimSwarm


@pytest.mark.parametrize(
    ("figures", "wait_s"),
    [
        ({"due_s": 2.0, "step_s": 60.0, "fetch_s": 9.0, "missed_s": 3.0}, 2.0),  # one step is not missed
        ({"due_s": 4.0, "step_s": 60.0, "fetch_s": 9.0, "missed_s": 3.0}, 0.0),  # waiting takes longer
        ({"due_s": 2.0, "step_s": 60.0, "fetch_s": 1.0, "missed_s": 3.0}, 0.0),  # the state is here before the step
        ({"due_s": 2.0, "step_s": 5.0, "fetch_s": 9.0, "missed_s": 3.0}, 2.0),  # one step is missed, not two
        ({"due_s": 2.0, "step_s": 4.0, "fetch_s": 9.0, "missed_s": 3.0}, 0.0),  # two steps are missed either way
        ({"due_s": 0.0, "step_s": 60.0, "fetch_s": 9.0, "missed_s": 3.0}, 0.0),  # it is there already
        ({"due_s": math.inf, "step_s": math.inf, "fetch_s": 9.0, "missed_s": 3.0}, 0.0),  # nobody computes
    ],
)
def test_waiting_is_worth_it_when_it_takes_less_than_the_step_that_is_not_missed(
    figures: dict[str, float], wait_s: float
) -> None:
    assert worth_waiting_s(**figures) == wait_s


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_so_much_is_what_an_optimiser_keeps(name: Literal["sgd", "adamw", "lamb"], momentum: float) -> None:
    section, model = Optimizer(name=name, momentum=momentum), torch.nn.Linear(100, 100, bias=False)
    optimizer = build_optimizer(section, model)
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    kept = sum(value.numel() for state in optimizer.state.values() for value in state.values() if value is not None)
    assert state_floats(section) == pytest.approx(1 + kept / 10_000, abs=0.01)


SLOW = 4.0
"""Samples per second of each of two trainers: a step takes thirty seconds."""
THIN = Link(up_bytes_per_s=4e5, down_bytes_per_s=4e5)
"""The state, 3.6 MB, takes nine seconds, and what a step made three."""
HIDDEN = 4000


def run_with_newcomer(directory: Path, comes_s: float) -> tuple[SimSwarm, SimPeer]:
    adamw = "{name: adamw, learning_rate: 0.001}"
    swarm = SimSwarm(directory, until=1000, target=240, optimizer=adamw, hidden=HIDDEN)
    swarm.add_backbone()
    for _ in range(2):
        swarm.add_trainer(samples_per_s=SLOW, microbatch_size=1)
    newcomers: list[SimPeer] = []
    swarm.world.call_at(comes_s, lambda: newcomers.append(swarm.add_trainer(samples_per_s=SLOW, link=THIN)))
    with swarm.world:
        swarm.world.run(until_s=comes_s + 60.0)
    return swarm, newcomers[0]


def times_of(swarm: SimSwarm, peer: SimPeer, kind: type[Event]) -> list[float]:
    return [event.at_s - EPOCH_S for event in swarm.events(peer, kind)]


def test_a_newcomer_that_comes_just_before_a_step_takes_the_state_after_it_and_is_there_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, _ = run_with_newcomer(tmp_path / "a", 95.0)
    steps = times_of(early, early.world.peers[1], EpochFinished)
    step_s = next(at_s for at_s in steps if at_s > 60.0)
    comes_s = step_s - 4.0  # it finds out first what its link carries
    swarm, newcomer = run_with_newcomer(tmp_path / "b", comes_s)
    monkeypatch.setattr(fresh_epoch, "worth_waiting_s", lambda **_: 0.0)
    hasty_swarm, hasty = run_with_newcomer(tmp_path / "c", comes_s)

    fetched, too_early = swarm.events(newcomer, StateFetched)[0], hasty_swarm.events(hasty, StateFetched)[0]
    assert fetched.epoch == too_early.epoch + 1
    assert times_of(swarm, newcomer, MicrobatchDone)[0] < times_of(hasty_swarm, hasty, MicrobatchDone)[0]
