"""Finding out whether this machine's router lets another hidden peer through: hole punching.

Two peers that nobody can dial meet through a relay; then both dial each other at the same moment, so that each router
takes what comes for an answer (libp2p's DCUtR, which the daemon speaks by itself on each circuit that is opened to it).
It does so as soon as four peers outside, at four addresses, have told it the same about where they see it.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from collab.errors import NetworkError
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Reaching, hole_punched
from collab.types import PeerId, Reachability

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""The daemon's three attempts at one peer take about as long."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 1800.0
"""Between two attempts, doubled by each: most routers that do not let the first three through never will."""
RENEWALS = 3
"""Of a circuit that is there; who does it is the same for both ends."""
MEET_TIMEOUT_S = 5.0
HIDDEN = (Reachability.RELAYED, Reachability.HOLE_PUNCHED)


class Burrow(Protocol):
    """What finding a hole needs of the network: see ``HivemindTransport``."""

    async def is_seen_outside(self) -> bool:
        """Whether we know at which public address others see us; without it nobody could be told where to dial."""
        ...

    async def through_holes(self) -> frozenset[PeerId]:
        """Peers that we met through a relay, and now have a direct connection with."""
        ...

    async def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a connection of any kind."""
        ...

    async def meet(self, peer: PeerId, *, timeout_s: float) -> None:
        """Connect through a relay; what connection there was ends. Raises ``NetworkError`` when none does."""
        ...


async def find_hole(
    network: Burrow, look: Callable[[], Awaitable[SwarmView]], me: PeerId, rng: random.Random, reaching: Reaching
) -> None:
    """Meet hidden peers through our relays, one after the other, until one of them is met directly.

    With whom there is a circuit already it is made anew, three times at most, since it may carry something: the daemon
    looks for a hole when a circuit begins, and this one may have begun before anybody knew where we are seen.

    Args:
        look: reads who is in the swarm.
    """
    tries: Counter[PeerId] = Counter()
    loop = asyncio.get_running_loop()
    next_s, pause_s = loop.time(), FIRST_PAUSE_S
    while reaching.verdict.reach is not Reachability.HOLE_PUNCHED:
        await asyncio.sleep(LOOK_S)
        try:
            if await network.through_holes():
                reaching.change(hole_punched(reaching.verdict))
            elif loop.time() >= next_s and await network.is_seen_outside():
                connected = await network.connected_peers()
                hidden = {record.peer for record in (await look()).records if record.reach in HIDDEN} - {me}
                renewed = {peer for peer in connected & hidden if me < peer and tries[peer] < RENEWALS}
                if others := sorted(hidden - connected | renewed):
                    await _meet(network, min(others, key=lambda peer: (tries[peer], rng.random())), tries)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                next_s = loop.time() + pause_s
        except NetworkError as error:  # no daemon any more, or a mute directory
            logger.info("no hole looked for reason=%s", error)


async def _meet(network: Burrow, peer: PeerId, tries: Counter[PeerId]) -> None:
    tries[peer] += 1
    try:
        await network.meet(peer, timeout_s=MEET_TIMEOUT_S)
    except NetworkError as error:
        logger.info("not met peer=%s reason=%s", peer, error)
