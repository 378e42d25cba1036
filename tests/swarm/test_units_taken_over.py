"""Who takes over handing out units knows all that the store has, or hands out nothing."""

import pytest

from collab.data.work_units import Unit
from collab.errors import PeerUnreachable, StateError
from collab.ports import Ports
from collab.swarm.parameter_store.base import Push, Verdict
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
