"""Units and parameters over the wire: who gets what, and what liars get."""

import asyncio
from functools import partial

import numpy as np
import pytest

from collab.errors import NetworkError, PeerUnreachable
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.parameter_store.base import Kept, Verdict
from collab.swarm.parameter_store.calls import STORE_FAILS
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.unit_client import Granted, NothingNow, UnitClient
from collab.swarm.unit_leases import PARAMETERS_PROTOCOL, Permit
from collab.types import PeerId
from tests.simulation.mortal_store import COMPLAINT, FULL, Way
from tests.swarm.parameter_lab import RUN, START, Lab, a_unit


def test_a_client_takes_pulls_pushes_until_nothing_is_left() -> None:
    lab = Lab()

    async def work(_: Ports, client: UnitClient) -> list[Verdict]:
        verdicts = []
        known = None
        while isinstance(granted := await client.take(), Granted):
            pulled = await client.pull(known, "")
            assert pulled is not None
            known = pulled.version
            assert await client.pull(known, "") is None, "nothing travels while nothing is new"
            verdicts.append((await client.push(granted, pulled.values * 2, known)).verdict)
        assert granted == NothingNow(is_over=True, again_s=1.0)
        return verdicts

    lab.add(work)
    (verdicts,) = lab.run()
    assert verdicts == [Verdict.TAKEN] * 8
    now = lab.store.read()
    assert now is not None
    np.testing.assert_allclose(now.values, np.float32(1.5) ** 8)


def test_a_push_that_comes_again_counts_once_and_is_not_sent_again() -> None:
    lab = Lab()

    async def work(ports: Ports, client: UnitClient) -> tuple[Verdict, Verdict, float]:
        granted = await a_unit(client)
        first = await client.push(granted, START, 0)
        began_s = ports.clock.monotonic()
        again = await client.push(granted, START, 0)
        return first.verdict, again.verdict, ports.clock.monotonic() - began_s

    lab.add(work)
    ((first, again, seconds),) = lab.run()
    assert (first, again) == (Verdict.TAKEN, Verdict.AGAIN)
    assert seconds < 0.17, "two round trips; the vector takes 0.08 s more on the link, and a third"
    assert lab.store.version() == 1


def test_a_unit_whose_deadline_has_passed_is_somebody_elses_and_the_first_push_counts() -> None:
    lab = Lab(shards=1, last=1)

    async def slow(_: Ports, client: UnitClient) -> Verdict:
        granted = await a_unit(client)
        await asyncio.sleep(30.0)
        return (await client.push(granted, START * 3, 0)).verdict

    async def quick(_: Ports, client: UnitClient) -> Verdict:
        await asyncio.sleep(5.0)
        while not isinstance(granted := await client.take(), Granted):
            assert not granted.is_over
            await asyncio.sleep(granted.again_s)
        return (await client.push(granted, START * 2, 0)).verdict

    lab.add(slow)
    lab.add(quick)
    assert lab.run() == [Verdict.DONE, Verdict.TAKEN]


def test_who_was_at_work_before_a_restart_counts_as_one_that_brings_units() -> None:
    """Others, who bring nothing, have taken all that these may have at once."""
    lab = Lab(shards=8, last=1000)

    async def hoard(_: Ports, client: UnitClient) -> None:
        await asyncio.sleep(2.0)
        for _ in range(20):
            await client.take()

    async def work(_: Ports, client: UnitClient) -> tuple[bool, bool]:
        granted = await a_unit(client)
        await asyncio.sleep(1.0)
        lab.restart()
        await asyncio.sleep(8.0)
        before = await client.take()
        await client.push(granted, START, 0)
        await a_unit(client)  # in the place of the one that is done
        return isinstance(before, Granted), isinstance(await client.take(), Granted)

    lab.add(work)
    for _ in range(4):
        lab.add(hoard)
    assert lab.run()[0] == (False, True)


def test_a_lease_lasts_as_long_as_its_client_asks_for_more_and_ends_when_it_gives_it_back() -> None:
    lab = Lab(shards=1)

    async def work(_: Ports, client: UnitClient) -> tuple[float, ...]:
        granted = await a_unit(client)
        left = []
        for _ in range(3):
            await asyncio.sleep(15.0)
            left.append(await client.extend(granted))
        await client.give_back(granted)
        return (*left, await client.extend(granted))

    lab.add(work)
    (left,) = lab.run()
    assert left == pytest.approx((20.0, 20.0, 20.0, 0.0))


def test_a_client_that_takes_everything_and_brings_nothing_does_not_keep_a_run_from_its_end() -> None:
    lab = Lab()

    async def hoard(_: Ports, client: UnitClient) -> None:
        held: list[Granted] = []
        while True:
            if isinstance(granted := await client.take(), Granted):
                held.append(granted)
            else:
                await asyncio.sleep(0.3)
            for each in held[:]:
                if not await client.extend(each):
                    held.remove(each)

    async def work(_: Ports, client: UnitClient) -> bool:
        while not (isinstance(granted := await client.take(), NothingNow) and granted.is_over):
            if isinstance(granted, Granted):
                await client.push(granted, START, 0)
            else:
                await asyncio.sleep(granted.again_s)
        return True

    lab.add(hoard)
    lab.add(work)
    assert lab.run(for_s=600.0) == [None, True]


def test_what_is_too_stale_does_not_count() -> None:
    lab = Lab(max_staleness=0)

    async def work(_: Ports, client: UnitClient) -> list[Verdict]:
        units = [await a_unit(client) for _ in range(2)]
        return [(await client.push(granted, START, 0)).verdict for granted in units]

    lab.add(work)
    assert lab.run() == [[Verdict.TAKEN, Verdict.STALE]]


def test_a_server_that_is_not_in_charge_says_who_is() -> None:
    lab = Lab()
    lab.in_charge = PeerId("nobody that can be reached")

    async def work(_: Ports, client: UnitClient) -> str:
        with pytest.raises(PeerUnreachable) as caught:
            await client.take()
        return caught.value.message

    lab.add(work)
    (text,) = lab.run()
    assert "is not in charge" in text


@pytest.mark.parametrize("question", ["take", "pull", "push"])
def test_what_a_store_complains_of_is_for_its_keeper_and_clients_hear_only_that_it_fails(question: str) -> None:
    lab = Lab()
    way = Way(lab.store)
    lab.stores = EraStores(lambda _era: way)

    async def work(_: Ports, client: UnitClient) -> str:
        granted = await a_unit(client)
        way.is_broken, way.is_full = question != "push", True
        asked = {"take": client.take, "pull": lambda: client.pull(None, "")}
        with pytest.raises(PeerUnreachable) as caught:
            await (client.push(granted, START, 0) if question == "push" else asked[question]())
        return caught.value.message

    lab.add(work)
    (text,) = lab.run()
    assert STORE_FAILS in text
    assert "10.1.2.3" not in text
    assert [error.message for error in lab.complaints] == [FULL if question == "push" else COMPLAINT]


@pytest.mark.parametrize("lie", ["run", "forged", "other client", "stranger", "nan", "short", "version", "unknown"])
def test_liars_are_refused_and_change_nothing(lie: str) -> None:
    lab = Lab()

    async def work(ports: Ports, client: UnitClient) -> str:
        granted = await a_unit(client)
        me, scheduler, permit = ports.transport.peer_id, granted.scheduler, granted.permit
        values, fields = START, {"based_on": -1 if lie == "version" else 0}
        if lie == "forged":
            permit = Permit(RUN, "", granted.unit, "of mine", me).packed(ports.keys)
        elif lie == "other client":
            permit = Permit(RUN, "", granted.unit, "of mine", PeerId("another")).packed(lab.server)
        elif lie == "stranger":
            scheduler, permit = me, Permit(RUN, "", granted.unit, "of mine", me).packed(ports.keys)
        elif lie == "nan":
            values = START * np.nan
        stream = await ports.transport.open(lab.server.peer_id, PARAMETERS_PROTOCOL, timeout_s=3.0)
        fingerprint = "0" * 64 if lie == "run" else RUN
        kind = "smuggle" if lie == "unknown" else "push"
        about = {"fingerprint": fingerprint, "scheduler": scheduler, "permit": permit, **fields}
        send = partial(stream.send, timeout_s=3.0)
        try:
            await send(Message(kind, about))
            answer = await stream.receive(timeout_s=10.0)
            if answer.kind == "send":
                data = values.tobytes()[:: 2 if lie == "short" else 1]
                for start in range(0, len(data), 1 << 16):
                    await send(Message("piece", {"start": start}, data[start : start + (1 << 16)]))
                answer = await stream.receive(timeout_s=60.0)
        except NetworkError as error:
            return type(error).__name__
        return str(answer.get("verdict", str)) if answer.kind == "answer" else answer.kind

    lab.add(work)
    (ending,) = lab.run()
    assert ending in ("refused", "StreamClosed", "TimedOut")
    assert lab.store.version() == 0
    assert not lab.store.done(1)


def test_after_a_rollback_units_and_parameters_of_before_it_are_refused_and_nothing_is_mixed_up() -> None:
    """Units have the same names again, and versions the same numbers."""
    lab = Lab()

    async def work(_: Ports, client: UnitClient) -> Granted:
        before = await a_unit(client)
        lab.stores.of("mark").begin(Kept.at_first(START * 5))
        lab.era = "mark"
        late = client.take(), client.pull(None, ""), client.push(before, START * 3, 0), client.extend(before)
        for question in late:
            with pytest.raises(PeerUnreachable, match="has not heard of a rollback"):
                await question
        client.era = lambda: "mark"
        after = await a_unit(client)
        assert after.unit == before.unit
        pulled = await client.pull(None, "mark")
        assert pulled is not None
        assert (pulled.version, pulled.values[0]) == (0, 5.0)
        assert (await client.push(after, START * 7, 0)).verdict == Verdict.TAKEN
        return after

    lab.add(work)
    (after,) = lab.run()
    assert lab.store.version() == 0
    assert lab.stores.of("mark").done(1) == {after.unit.shard: after.lease}
    now = lab.stores.of("mark").read()
    assert now is not None
    np.testing.assert_allclose(now.values, 6.0)


def test_a_push_that_is_on_its_way_at_a_rollback_goes_where_it_was_begun() -> None:
    lab = Lab()

    async def work(_: Ports, client: UnitClient) -> Verdict:
        return (await client.push(await a_unit(client), START * 3, 0)).verdict

    def roll_back() -> None:
        assert lab.store.version() == 0, "the vector is still on its way"
        lab.stores.of("mark").begin(Kept.at_first(START * 5))
        lab.era = "mark"

    lab.add(work)
    lab.world.call_at(0.38, roll_back)
    assert lab.run() == [Verdict.TAKEN]
    assert lab.store.version() == 1
    assert lab.stores.of("mark").version() == 0
    assert not lab.stores.of("mark").done(1)
