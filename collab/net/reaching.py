"""Finding out how others can reach this machine, at join and later: those who can be dialled are asked to dial it.

Where they cannot, places at the relays of bootstrap peers let others meet it that nobody can dial either. Who can be
dialled needs no relay: such a peer is dialled by those who cannot, and calls them back over that connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from collab.errors import NetworkError
from collab.net.dial_back import ask_to_dial_back
from collab.net.hivemind_net import HivemindTransport
from collab.net.listening import host_in, tcp_port_in
from collab.ports import Ports
from collab.swarm.board import ProgressBoard
from collab.swarm.identity import Identity
from collab.swarm.reachability import Answer, Reaching, Verdict, decide, gained, lost
from collab.types import PeerId, Reachability, Role

logger = logging.getLogger(__name__)

PATIENCE_S = 2.5
"""For everybody's answers together: a dial that gets no answer takes 1.5 s. Joining never waits longer for this."""
RESERVE_TIMEOUT_S = 3.0
"""For a place at a relay: ten round trips of 300 ms; another relay is asked after it."""
RENEW_S = 30.0
"""A place ends with its hour, or with the connection to the relay; asking again costs two small messages."""
LOOK_AGAIN_S, MAKE_SURE_S = 900.0, 60.0
"""Between two looks whether others reach us, of five questions each; and between what is found and the look that
confirms it: longer than a router takes to start."""
MOST_ASKED = 5
"""Two liars decide nothing among five."""


async def find_reach(ports: Ports, identity: Identity, bootstrap: Sequence[PeerId], fingerprint: str) -> Verdict:
    """Ask the bootstrap peers and a few others of the swarm to dial us.

    Args:
        bootstrap: connected; the run's owner vouches for them.
        fingerprint: of the run, whose other peers are found by it; empty: only ``bootstrap`` are asked.
    """
    addresses = await ports.transport.addresses()
    port = next((port for address in addresses if (port := tcp_port_in(address))), 0)
    answers: list[Answer] = []
    asked = list(dict.fromkeys(bootstrap))[:MOST_ASKED]  # several addresses may be of one peer

    async def ask(helper: PeerId) -> None:
        try:
            answers.append(await ask_to_dial_back(ports.transport, helper, port))
        except NetworkError as error:
            logger.info("not dialled back helper=%s reason=%s", helper, error)

    async def ask_others(tasks: asyncio.TaskGroup) -> None:
        board = ProgressBoard(ports, identity, fingerprint)
        able = [record for record in (await board.refresh()).records if record.can_be_dialled]
        others = [record for record in able if record.peer not in {*bootstrap, ports.transport.peer_id}]
        ports.rng.shuffle(others)
        others.sort(key=lambda record: record.role is not Role.BACKBONE)
        for record in others[: MOST_ASKED - len(asked)]:
            asked.append(record.peer)
            tasks.create_task(ask(record.peer))

    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for helper in asked[:]:
                tasks.create_task(ask(helper))
            if fingerprint:
                tasks.create_task(ask_others(tasks))
    own_hosts = {host_in(address) for address in addresses}
    return decide(answers, own_hosts=own_hosts, port=port, trusted=bootstrap, num_asked=len(asked))


async def watch_reach(look: Callable[[], Awaitable[Verdict]], reaching: Reaching) -> None:
    """Look every so often whether others still reach us, or do now, and tell what has changed, until cancelled.

    A router forwards a port later, or forgets it. What was found twice in a row is believed; nobody's answer changes
    nothing. A machine that was started as one that nobody can dial stays one: it announces nowhere where it is.

    Args:
        look: asks others to dial us, as at join.
        reaching: with the verdict of the join.
    """
    joined = reaching.verdict
    was_reached = joined.reach is Reachability.DIRECT
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        if not _differs(await _found(look), was_reached):
            continue
        await asyncio.sleep(MAKE_SURE_S)
        found = await _found(look)
        if found is None or not _differs(found, was_reached):
            continue
        was_reached = not was_reached
        if joined.reach is Reachability.DIRECT:
            reaching.change(found if was_reached else lost(found))
        elif was_reached:
            reaching.change(gained(reaching.verdict, found))
        else:
            reaching.change(replace(joined, reach=reaching.verdict.reach))


async def _found(look: Callable[[], Awaitable[Verdict]]) -> Verdict | None:
    """What those say who tried; None: nobody could."""
    try:
        verdict = await look()
    except NetworkError as error:  # no daemon any more
        logger.info("not looked how we are reached reason=%s", error)
        return None
    return verdict if verdict.num_answered else None


def _differs(found: Verdict | None, was_reached: bool) -> bool:
    return found is not None and (found.reach is Reachability.DIRECT) != was_reached


async def reserve_places(daemon: HivemindTransport, relays: Iterable[PeerId]) -> int:
    """Ask for a place at each of ``relays``; how many gave one that is of use."""

    async def ask(relay: PeerId) -> bool:
        try:
            await daemon.reserve(relay, timeout_s=RESERVE_TIMEOUT_S)
        except NetworkError as error:
            logger.info("no place at relay=%s reason=%s", relay, error)
            return False
        return True

    return sum(await asyncio.gather(*(ask(relay) for relay in dict.fromkeys(relays))))


async def keep_places(daemon: HivemindTransport, relays: Sequence[PeerId]) -> None:
    """Ask again for ever: a relay that was started again has forgotten who had a place."""
    while True:
        await asyncio.sleep(RENEW_S)
        await reserve_places(daemon, relays)
