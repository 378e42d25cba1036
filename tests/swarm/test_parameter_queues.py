"""Many clients at one parameter server: who waits, for how long, and what those cost who never end."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from collab.averaging.timeouts import FIRST
from collab.errors import StreamClosed
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.links import Link
from collab.swarm.parameter_server import MOST_EACH, MOST_PULLS, MOST_PUSHES
from collab.swarm.parameter_store.base import Stored, Verdict
from collab.swarm.unit_client import UnitClient
from collab.swarm.unit_leases import PARAMETERS_PROTOCOL
from tests.swarm.parameter_lab import LINK, RUN, START, Lab, a_unit


def test_a_push_waits_for_its_turn_however_long_and_is_sent_once() -> None:
    lab = Lab(shards=8)

    async def work(_: Ports, client: UnitClient) -> Verdict:
        return (await client.push(await a_unit(client), START, 0)).verdict

    slow = replace(LINK, up_bytes_per_s=10e3)  # 20 s for one, longer than a silent server is waited for
    for _ in range(2 * MOST_PUSHES):
        lab.add(work, link=slow)
    assert lab.run() == [Verdict.TAKEN] * 2 * MOST_PUSHES


SLOW_SERVER, SLOW_CLIENTS = replace(LINK, up_bytes_per_s=100e3), replace(LINK, down_bytes_per_s=10e3)
"""With all of one uplink a vector takes 2 s; at one client 20 s, longer than anybody is waited for in silence."""


@pytest.mark.parametrize(
    ("server", "client", "at_s", "gone"), [(SLOW_SERVER, LINK, 7.0, 3), (LINK, SLOW_CLIENTS, 19.0, 0)]
)
def test_pulls_that_cannot_be_given_at_once_wait_their_turn_and_all_get_theirs(
    server: Link, client: Link, at_s: float, gone: int
) -> None:
    lab = Lab(link=server)
    read, begun = lab.store.read, 0

    def counting(known: int | None = None) -> Stored | None:
        nonlocal begun
        begun += 1
        return read(known)

    lab.store.read = counting  # type: ignore[method-assign]
    begun_by_then: list[int] = []
    lab.world.call_at(at_s, lambda: begun_by_then.append(begun))

    async def work(_: Ports, client: UnitClient) -> bool:
        pulled = await client.pull(None, "")
        assert pulled is not None
        return bool(np.array_equal(pulled.values, START))

    for _ in range(5 * MOST_PULLS):
        lab.add(work, link=client)
    assert lab.run() == [True] * 5 * MOST_PULLS
    assert MOST_PULLS <= begun_by_then[0] <= MOST_PULLS + gone, "no vector is read before one has gone"


async def hoard(ports: Ports, lab: Lab, pulls: int, *, says_so: bool) -> None:
    """Ask for the parameters so often, and never end.

    Args:
        says_so: tells the server that it is there, as one does that still receives.
    """
    ask = Message("pull", {"fingerprint": RUN, "era": "", "known": -1})
    streams = []
    for _ in range(pulls):
        streams.append(await ports.transport.open(lab.server.peer_id, PARAMETERS_PROTOCOL, timeout_s=3.0))
        await streams[-1].send(ask, timeout_s=3.0)
    while True:
        await asyncio.sleep(FIRST.alive_s)
        for stream in streams if says_so else []:
            with suppress(StreamClosed):
                await stream.send(Message("wait"), timeout_s=3.0)


def test_a_client_that_pulls_often_and_ends_nothing_leaves_places_to_others() -> None:
    lab = Lab()

    async def greedy(ports: Ports, _: UnitClient) -> None:
        await hoard(ports, lab, MOST_PULLS, says_so=False)

    async def work(ports: Ports, client: UnitClient) -> float:
        await asyncio.sleep(2.0)
        assert await client.pull(None, "") is not None
        return ports.clock.monotonic()

    lab.add(greedy)
    lab.add(work)
    seconds = lab.run(for_s=20.0)[1]
    assert seconds < 3.0


def test_nothing_new_needs_no_place_and_places_that_are_never_given_back_are_taken() -> None:
    lab = Lab()

    async def greedy(ports: Ports, _: UnitClient) -> None:
        await hoard(ports, lab, MOST_EACH, says_so=True)

    async def work(ports: Ports, client: UnitClient) -> tuple[float, float]:
        await asyncio.sleep(5.0)
        assert await client.pull(0, "") is None
        unchanged_s = ports.clock.monotonic()
        assert await client.pull(None, "") is not None
        return unchanged_s, ports.clock.monotonic()

    for _ in range(MOST_PULLS // MOST_EACH):
        lab.add(greedy)
    lab.add(work)
    unchanged_s, pulled_s = lab.run()[-1]
    assert unchanged_s < 6.0
    assert FIRST.stalled_s < pulled_s < FIRST.stalled_s + 5.0
