"""What an organiser's command makes of what it sees of the swarm."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from collab.swarm.progress import SwarmView
from peers.owner import Session
from tests.fakes import NOW
from tests.swarm.people import record

TARGET = 120


@pytest.mark.parametrize(("samples_per_s", "epochs"), [(240.0, 20), (6.0, 1), (0.0, 1)])
def test_so_many_steps_a_swarm_takes_in_ten_seconds(samples_per_s: float, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    swarm = SwarmView((record(0, samples_per_s=samples_per_s),), NOW)
    session = Session(estate=cast(Any, None), mandate=mandate, view=swarm, started=None)
    assert session.epochs_in(10.0) == epochs
