"""What an organiser's command makes of what it sees of the swarm."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collab.swarm.crowd import CROWD_FROM, notice_s
from collab.swarm.progress import SwarmView
from collab.types import PeerId
from peers.owner import FOUND_S, Session
from tests.fakes import NOW, run
from tests.swarm.people import backbone, record

TARGET = 120
ESTATE = cast(Any, SimpleNamespace(bundle=SimpleNamespace(run=SimpleNamespace(strategy=None))))


@pytest.mark.parametrize(("samples_per_s", "epochs"), [(240.0, 20), (2.0, 1), (0.0, 1)])
def test_so_many_steps_a_swarm_takes_in_ten_seconds(samples_per_s: float, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    swarm = SwarmView((record(0, samples_per_s=samples_per_s, said_at=time.time()),), NOW)
    session = Session(estate=ESTATE, mandate=mandate, view=swarm)
    assert run(session.epochs_in(10.0)) == epochs


@pytest.mark.parametrize(("seen", "epochs"), [(0, 5), (4, 25), (1000, 2000)])
def test_where_rounds_take_most_of_the_time_twice_the_steps_that_are_seen_count(seen: int, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    before, after = (SwarmView((record(0, samples_per_s=24_000.0, epoch=epoch),), NOW) for epoch in (7, 7 + seen))

    class Board:
        async def refresh(self) -> SwarmView:
            return after

    session = Session(estate=ESTATE, mandate=mandate, view=before, board=cast(Any, Board()))
    assert run(session.epochs_in(10.0)) == epochs
    assert session.epoch() == 7 + seen


@pytest.mark.parametrize(("trainers", "watched_s", "notice"), [(2, 4.0, 10.0), (CROWD_FROM, 8.0, 34.0)])
def test_a_crowd_is_watched_for_longer_and_told_earlier(trainers: int, watched_s: float, notice: float) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))

    def swarm(epoch: int) -> SwarmView:
        one = record(0, samples_per_s=24_000.0, epoch=epoch)
        return SwarmView(tuple(replace(one, peer=PeerId(f"peer {number}")) for number in range(trainers)), NOW)

    class Board:
        async def refresh(self) -> SwarmView:
            return swarm(10)

    async def main() -> tuple[int, float]:
        session = Session(estate=ESTATE, mandate=mandate, view=swarm(7), board=cast(Any, Board()))
        began_s = asyncio.get_running_loop().time()
        return await session.epochs_in(notice_s(session.trainers)), asyncio.get_running_loop().time() - began_s

    assert notice_s(trainers) == notice
    assert run(main()) == (2 * 4 * notice / watched_s, watched_s)


@pytest.mark.parametrize(("samples", "epochs"), [(0.0, 1), (110.0, 2), (1000.0, 2)])
def test_a_long_step_that_may_be_under_way_counts(samples: float, epochs: int) -> None:
    mandate = cast(Any, SimpleNamespace(target_batch_size=lambda _: TARGET))
    swarm = SwarmView((record(0, samples_per_s=2.0, samples=samples, said_at=time.time()),), NOW)
    session = Session(estate=ESTATE, mandate=mandate, view=swarm)
    assert run(session.epochs_in(10.0)) == epochs


class Returning:
    """The board of a backbone that was started again: trainers come back to it one look after the other."""

    def __init__(self, *views: SwarmView) -> None:
        self.views = list(views)

    async def refresh(self) -> SwarmView:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]


def session_after_a_restart(seen_epoch: int, *later: SwarmView) -> Session:
    """The backbone holds its checkpoint of epoch 5, and knows of no trainer yet."""
    here = SwarmView((backbone(7, epoch=5),), NOW)
    board = cast(Any, Returning(*later or (here,)))
    return Session(ESTATE, cast(Any, None), here, board=board, seen_epoch=seen_epoch)


def test_after_a_restart_the_epoch_is_that_of_the_trainers_and_not_of_the_checkpoint() -> None:
    nobody = SwarmView((backbone(7, epoch=5),), NOW)
    there = SwarmView((backbone(7, epoch=5), record(0, epoch=9), record(1, epoch=9)), NOW)
    session = session_after_a_restart(8, nobody, nobody, there)
    run(session.find_trainers())
    assert session.epoch() == 9


def test_when_none_of_them_comes_back_what_was_seen_last_counts_and_the_wait_ends() -> None:
    async def wait() -> tuple[float, int]:
        session, loop = session_after_a_restart(8), asyncio.get_running_loop()
        began_s = loop.time()
        await session.find_trainers()
        return loop.time() - began_s, session.epoch()

    waited_s, epoch = run(wait())
    assert waited_s == pytest.approx(FOUND_S, abs=1.0)
    assert epoch == 8


@pytest.mark.parametrize("seen_epoch", [-1, 5])
def test_nobody_waits_for_trainers_of_which_nothing_newer_was_seen(seen_epoch: int) -> None:
    async def wait() -> float:
        session, loop = session_after_a_restart(seen_epoch), asyncio.get_running_loop()
        began_s = loop.time()
        await session.find_trainers()
        return loop.time() - began_s

    assert run(wait()) == 0.0
