"""Who takes over handing out units knows all that the store has, or hands out nothing."""

import asyncio

import pytest

from collab.data.work_units import Unit
from collab.errors import PeerUnreachable, StateError
from collab.ports import Ports
from collab.swarm.parameter_store.base import Out, ParameterStore, Push, Verdict
from collab.swarm.parameter_store.calls import STORE_FAILS
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.unit_client import Granted, UnitClient
from tests.simulation.mortal_store import COMPLAINT, Way
from tests.swarm.parameter_lab import START, Lab, a_unit


def test_what_was_done_far_ahead_is_not_handed_out_again_by_whoever_takes_over() -> None:
    """Clients that hold many units have left a few early ones undone, and the one in charge dies."""
    lab = Lab(shards=1, last=7)
    lab.store.assimilate(Push(unit=Unit(5, 0), lease="before", values=START, based_on=0, alpha=0.5))

    async def work(_: Ports, client: UnitClient) -> list[tuple[int, Verdict]]:
        pushed = []
        while isinstance(granted := await client.take(), Granted):
            pushed.append((granted.unit.pass_number, (await client.push(granted, START, 0)).verdict))
        return pushed

    lab.add(work)
    assert lab.run() == [[(number, Verdict.TAKEN) for number in (1, 2, 3, 4, 6, 7)]]


def test_nobody_computes_what_another_one_is_at_when_who_hands_it_out_is_started_again() -> None:
    """Each client has a unit, the server forgets what it had in memory, and each brings its own and takes the next."""
    lab = Lab(shards=8, last=16)

    async def work(ports: Ports, client: UnitClient) -> list[Verdict]:
        held, verdicts = [await a_unit(client), await a_unit(client)], list[Verdict]()
        await client.give_back(held.pop())
        await asyncio.sleep(1.0 + ports.rng.random())
        lab.restart()
        while isinstance(granted := await client.take(), Granted):
            held.append(granted)
            await asyncio.sleep(0.5 + ports.rng.random())
            assert await client.extend(held[0]) > 10.0
            verdicts.append((await client.push(held.pop(0), START, 0)).verdict)
        return [*verdicts, *[(await client.push(granted, START, 0)).verdict for granted in held]]

    for _ in range(3):
        lab.add(work)
    verdicts = [verdict for each in lab.run() for verdict in each]
    assert verdicts == 16 * [Verdict.TAKEN]


def test_who_has_died_loses_its_unit_in_time_whoever_hands_it_out_then() -> None:
    lab = Lab(shards=1, last=1)

    async def die(_: Ports, client: UnitClient) -> None:
        await a_unit(client)
        lab.restart()

    async def wait(ports: Ports, client: UnitClient) -> float:
        await asyncio.sleep(1.0)
        while not isinstance(await client.take(), Granted):
            await asyncio.sleep(1.0)
        return ports.clock.monotonic()

    lab.add(die)
    lab.add(wait)
    assert 20.0 <= lab.run()[1] < 23.0, "a lease lasts 20 s"


def test_a_unit_is_nobodys_where_it_could_not_be_noted() -> None:
    lab = Lab(shards=1, last=1)
    way = Full(lab.store)
    lab.stores = EraStores(lambda _era: way)

    async def work(_: Ports, client: UnitClient) -> Verdict:
        with pytest.raises(PeerUnreachable, match=STORE_FAILS):
            await client.take()
        way.is_full = False
        return (await client.push(await a_unit(client), START, 0)).verdict

    lab.add(work)
    assert lab.run() == [Verdict.TAKEN]
    assert len(lab.complaints) == 1


def test_a_push_for_a_settled_pass_is_done_and_its_vector_is_not_sent() -> None:
    lab = Lab(shards=1, last=3)

    async def work(ports: Ports, client: UnitClient) -> tuple[Verdict, float, int]:
        granted = await a_unit(client)
        lab.store.settle(2)
        began_s = ports.clock.monotonic()
        verdict = (await client.push(granted, START, 0)).verdict
        return verdict, ports.clock.monotonic() - began_s, (await a_unit(client)).unit.pass_number

    lab.add(work)
    ((verdict, seconds, following),) = lab.run()
    assert (verdict, following) == (Verdict.DONE, 2)
    assert seconds < 0.17, "two round trips; the vector takes 0.08 s more on the link, and a third"


class Full(Way):
    """Takes no note."""

    def __init__(self, store: ParameterStore) -> None:
        super().__init__(store)
        self.is_full = True

    def note_out(self, out: Out) -> None:
        if self.is_full:
            raise StateError(COMPLAINT)
        super().note_out(out)


class FailsOnce(Way):
    """Does not tell what is done, once."""

    has_failed = False

    def done(self, pass_number: int) -> dict[int, str] | None:
        if not self.has_failed:
            self.has_failed = True
            raise StateError(COMPLAINT)
        return super().done(pass_number)


def test_a_store_that_fails_while_it_is_asked_what_is_done_is_asked_again() -> None:
    lab = Lab(shards=1, last=3)
    lab.store.assimilate(Push(unit=Unit(1, 0), lease="before", values=START, based_on=0, alpha=0.5))
    way = FailsOnce(lab.store)
    lab.stores = EraStores(lambda _era: way)

    async def work(_: Ports, client: UnitClient) -> int:
        with pytest.raises(PeerUnreachable, match=STORE_FAILS):
            await client.take()
        return (await a_unit(client)).unit.pass_number

    lab.add(work)
    assert lab.run() == [2]
