"""The clocks of a trainer's and of the first backbone's machines are set while they take part."""

from pathlib import Path

import pytest

import collab.simulation.world
from collab.clock import SystemClock
from collab.metrics.records import EpochFinished
from collab.simulation.virtual_time import EPOCH_S, VirtualLoop
from tests.simulation.swarm import SimSwarm

SET_S, END_S = 20.0, 90.0


class MachineClock(SystemClock):
    """A real peer's clock, on a machine whose own clock the test sets."""

    def __init__(self, loop: VirtualLoop, *, error_s: float = 0.0) -> None:
        self.set_by_s = 0.0
        super().__init__(error_s=error_s, wall=lambda: EPOCH_S + loop.time() + self.set_by_s, elapsed=loop.time)


@pytest.mark.parametrize("set_by_s", [-600.0, 600.0])
@pytest.mark.parametrize("who", ["backbone", "trainer"])
def test_they_train_together_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, set_by_s: float
) -> None:
    monkeypatch.setattr(collab.simulation.world, "VirtualClock", MachineClock)
    swarm = SimSwarm(tmp_path, until=100_000)
    backbone, *trainers = swarm.add_backbone(), swarm.add_trainer(), swarm.add_trainer()
    clock = (backbone if who == "backbone" else trainers[0]).clock
    assert isinstance(clock, MachineClock)
    swarm.world.call_at(SET_S, lambda: setattr(clock, "set_by_s", set_by_s))
    with swarm.world:
        swarm.world.run(until_s=END_S)
        seen = {record.peer for record in swarm.backbones[backbone.index].membership.view.records}
        assert {trainer.peer_id for trainer in trainers} <= seen
    for trainer in trainers:
        late = [event for event in swarm.events(trainer, EpochFinished) if event.at_s > EPOCH_S + SET_S + 30.0]
        assert late
        assert all(event.contributors == 2 for event in late)
