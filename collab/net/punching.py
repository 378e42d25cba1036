"""Finding out whether this machine's router lets another hidden peer through: hole punching.

Two peers that nobody can dial meet through a relay; then both dial each other at the same moment, so that each router
takes what comes for an answer (libp2p's DCUtR, which the daemons speak by themselves when a circuit begins). Both must
know by then where they are seen, which a daemon does once four peers outside, at four addresses, have told it the same.

What a router lets out for one end opens the way for the other end's next packets, for about two minutes. If those come
while nobody at the first end is dialling any more, its listener answers, the router does not recognise the answer, and
the pair of ports is blocked for a minute. So nobody may dial a hidden peer at its public address but in that moment:
hidden peers tell nobody that address (``fitting_network``), one end alone begins circuits, and a circuit is made anew
only once what the last attempt left behind is forgotten.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from collab.errors import NetworkError
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Reaching, hole_punched
from collab.types import PeerId, Reachability

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""A daemon notices no later that four peers have seen it; two looks in a row are enough to know that it has."""
OUTSIDE_HOSTS = 4
"""That must see us at the same address before the daemon believes them."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 1800.0
"""Between two attempts, doubled by each: most routers that do not let the first few through never will."""
FORGOTTEN_S = 150.0
"""After an attempt: routers forget in 120 s what left a connection that came to nothing, the daemons addresses, too."""
RENEWALS = 3
"""Of a circuit that is there, and may carry something."""
MEET_TIMEOUT_S = 5.0
"""For two peers to agree over their relay on a moment to dial: ten round trips of 300 ms, and two busy machines."""
HIDDEN = (Reachability.RELAYED, Reachability.HOLE_PUNCHED)


class Burrow(Protocol):
    """What finding a hole needs of the network: see ``HivemindTransport``."""

    async def hosts_outside(self) -> frozenset[str]:
        """Public addresses of those with whom we have a direct connection."""
        ...

    async def through_holes(self) -> frozenset[PeerId]:
        """Peers that we met through a relay, and now have a direct connection with."""
        ...

    async def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a connection of any kind."""
        ...

    async def is_punching(self, peer: PeerId, *, timeout_s: float) -> bool:
        """Whether ``peer``, which we are connected to, knows where it is seen; False also when it does not answer."""
        ...

    async def meet(self, peer: PeerId, *, timeout_s: float) -> None:
        """Connect through a relay; what connection there was ends. Raises ``NetworkError`` when none does."""
        ...


async def find_hole(
    network: Burrow, look: Callable[[], Awaitable[SwarmView]], me: PeerId, rng: random.Random, reaching: Reaching
) -> None:
    """Meet hidden peers through our relays, one after the other, until one of them is met directly.

    Args:
        look: reads who is in the swarm.
    """
    search = _Search(network, rng)
    while reaching.verdict.reach is not Reachability.HOLE_PUNCHED:
        await asyncio.sleep(LOOK_S)
        try:
            if await network.through_holes():
                reaching.change(hole_punched(reaching.verdict))
            elif await search.knows_where_we_are_seen():
                hidden = {record.peer for record in (await look()).records if record.reach in HIDDEN}
                await search.go_on({peer for peer in hidden if peer > me})
        except NetworkError as error:  # no daemon any more, or a mute directory
            logger.info("no hole looked for reason=%s", error)


class _Search:
    """Whom to meet, and when."""

    def __init__(self, network: Burrow, rng: random.Random) -> None:
        self._network = network
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._looks_seen = 0
        self._next_s, self._pause_s = self._clock(), FIRST_PAUSE_S
        self._tries: Counter[PeerId] = Counter()
        self._again_s: dict[PeerId, float] = {}
        """When the next circuit to somebody whom we have had one with may begin."""

    async def knows_where_we_are_seen(self) -> bool:
        """Whether our own daemon does; called once for each look."""
        is_seen = len(await self._network.hosts_outside()) >= OUTSIDE_HOSTS
        self._looks_seen = self._looks_seen + 1 if is_seen else 0
        return self._looks_seen >= 2

    async def go_on(self, hidden: Collection[PeerId]) -> None:
        """Meet one of ``hidden``, when it is time to."""
        connected = await self._network.connected_peers() & frozenset(hidden)
        is_first = self._looks_seen == 2
        for peer in connected - self._again_s.keys():  # others begin circuits, too, when they have something to say
            is_tried = not is_first and await self._is_punching(peer)
            self._again_s[peer] = self._clock() + (FORGOTTEN_S if is_tried else 0.0)
        if self._clock() < self._next_s:
            return
        for peer in sorted(hidden, key=lambda peer: (self._tries[peer], self._rng.random())):
            if self._clock() < self._again_s.get(peer, 0.0):
                continue
            if peer not in connected or (self._tries[peer] < RENEWALS and await self._is_punching(peer)):
                await self._meet(peer)
                return

    async def _is_punching(self, peer: PeerId) -> bool:
        return await self._network.is_punching(peer, timeout_s=MEET_TIMEOUT_S)

    async def _meet(self, peer: PeerId) -> None:
        """Nothing comes of a circuit whose other end does not know yet where it is seen; so it does not count."""
        self._next_s = self._clock() + self._pause_s
        try:
            await self._network.meet(peer, timeout_s=MEET_TIMEOUT_S)
            if not await self._is_punching(peer):
                self._again_s[peer] = self._clock()
                return
        except NetworkError as error:
            logger.info("not met peer=%s reason=%s", peer, error)
        self._tries[peer] += 1
        self._again_s[peer] = self._clock() + FORGOTTEN_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
