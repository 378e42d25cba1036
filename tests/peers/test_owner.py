"""What an organiser's command makes of what it sees of the swarm."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collab.swarm.progress import SwarmView
from peers.owner import Session
from tests.fakes import NOW, run
from tests.swarm.people import record

TARGET = 120


@pytest.mark.parametrize(("samples_per_s", "epochs"), [(240.0, 20), (2.0, 1), (0.0, 1)])
def test_so_many_steps_a_swarm_takes_in_ten_seconds(samples_per_s: float, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    swarm = SwarmView((record(0, samples_per_s=samples_per_s, said_at=time.time()),), NOW)
    session = Session(estate=cast(Any, None), mandate=mandate, view=swarm)
    assert run(session.epochs_in(10.0)) == epochs


@pytest.mark.parametrize(("seen", "epochs"), [(0, 5), (4, 25), (1000, 2000)])
def test_where_rounds_take_most_of_the_time_twice_the_steps_that_are_seen_count(seen: int, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    before, after = (SwarmView((record(0, samples_per_s=24_000.0, epoch=epoch),), NOW) for epoch in (7, 7 + seen))

    class Board:
        async def refresh(self) -> SwarmView:
            return after

    session = Session(estate=cast(Any, None), mandate=mandate, view=before, board=cast(Any, Board()))
    assert run(session.epochs_in(10.0)) == epochs
    assert session.epoch() == 7 + seen


@pytest.mark.parametrize(("samples", "epochs"), [(0.0, 1), (110.0, 2), (1000.0, 2)])
def test_a_long_step_that_may_be_under_way_counts(samples: float, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    swarm = SwarmView((record(0, samples_per_s=2.0, samples=samples, said_at=time.time()),), NOW)
    session = Session(estate=cast(Any, None), mandate=mandate, view=swarm)
    assert run(session.epochs_in(10.0)) == epochs
