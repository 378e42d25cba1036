"""What a client has computed waits until it is taken, or somebody else has done its unit."""

import asyncio
from collections.abc import Callable

import numpy as np

from collab.data.work_units import Unit
from collab.ports import Ports
from collab.strategies.base import HandedOver
from collab.swarm.parameter_store.base import Push, Verdict
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.unit_client import UnitClient
from collab.training.unit_desk import UnitDesk
from collab.types import Vector
from tests.simulation.mortal_store import Way
from tests.swarm.parameter_lab import START, Lab

LONG_S = 2000.0


def pushed(
    lab: Lab, before: Callable[[], None], later: Callable[[], object], copy: Vector = START
) -> tuple[Verdict, float, str]:
    """What becomes of a client's first unit, after how long, and what a person has read.

    Args:
        before: what happens when it is computed.
        later: and what much later.
    """
    told: list[str] = []

    async def work(ports: Ports, client: UnitClient) -> tuple[Verdict, float]:
        desk = UnitDesk(client, ports.clock, lambda: True, at_once=1, say=told.append)
        run = asyncio.create_task(desk.run())
        await desk.next()
        before()
        began_s = ports.clock.monotonic()
        desk.push(HandedOver(copy, 1))
        answer = await desk.answer(waits=True)
        assert answer is not None
        seconds = ports.clock.monotonic() - began_s
        await desk.next()  # it is let in as before
        run.cancel()
        return answer[1], seconds

    lab.world.call_at(LONG_S, later)
    lab.add(work)
    ((verdict, seconds),) = lab.run(for_s=2 * LONG_S)
    return verdict, seconds, "; ".join(told)


def full(lab: Lab) -> Way:
    way = Way(lab.store)
    lab.stores = EraStores(lambda _era: way)
    return way


def set_full(way: Way, now: bool) -> None:
    way.is_full = now


def test_a_push_waits_for_a_store_that_takes_none_for_however_long() -> None:
    lab = Lab()
    way = full(lab)
    verdict, seconds, told = pushed(lab, lambda: set_full(way, True), lambda: set_full(way, False))
    assert verdict is Verdict.TAKEN
    assert seconds > LONG_S - 60.0
    assert told.startswith("what we computed waits, and is pushed again until it is taken: ")
    assert lab.store.version() == 1


def test_a_push_that_waits_ends_when_somebody_else_has_done_its_unit() -> None:
    lab = Lab()
    way = full(lab)
    other = Push(unit=Unit(1, 0), lease="another", values=START, based_on=0, alpha=0.5)
    verdict, seconds, _ = pushed(lab, lambda: set_full(way, True), lambda: lab.store.assimilate(other))
    assert verdict is Verdict.DONE
    assert seconds > LONG_S - 60.0


def test_a_unit_of_a_backbone_that_the_server_does_not_know_is_no_offence_and_waits_for_one_that_does() -> None:
    """Ten minutes: the scheduler has gone home, and what it had handed out is handed out anew."""

    def forget(lab: Lab) -> None:
        lab.is_known = False

    verdict, seconds, told = pushed(lab := Lab(), lambda: forget(lab), lambda: None)
    assert verdict is Verdict.REFUSED
    assert 600.0 <= seconds < 610.0
    assert "refused" in told
    assert lab.store.version() == 0


def test_what_is_done_already_is_said_so_though_its_backbone_has_gone_home() -> None:
    """An answer that was lost, or somebody else who was faster: the client does not offer it for ten minutes."""
    lab = Lab()
    other = Push(unit=Unit(1, 0), lease="another", values=START, based_on=0, alpha=0.5)

    def gone() -> None:
        lab.is_known = False
        lab.store.assimilate(other)

    verdict, seconds, _ = pushed(lab, gone, lambda: None)
    assert verdict is Verdict.DONE
    assert seconds < 60.0


def test_a_copy_that_is_not_finite_is_not_offered_for_ever() -> None:
    verdict, seconds, _ = pushed(Lab(), lambda: None, lambda: None, START * np.nan)
    assert verdict is Verdict.REFUSED
    assert seconds < 610.0
