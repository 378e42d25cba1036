"""The directory in memory: one table with hivemind's expiry semantics. Kademlia is not simulated."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from collab.errors import TimedOut
from collab.net.base import LONGEST_RECORD_S, Entry, owner_of
from collab.simulation.virtual_time import EPOCH_S
from collab.types import PeerId

if TYPE_CHECKING:
    from collab.net.memory_net import MemoryNetwork, MemoryTransport

LOOKUP_S = 0.02
"""Cost of finding a peer or a record beyond the caller's own round trip; hivemind's DHT took 11-25 ms on loopback."""


class MemoryDirectory:
    """The directory port of one peer.

    There is one table, and in a partition one for each part, which begins with all records: every part is taken to have
    a keeper of every key, as in a real DHT of few nodes. Where else a record lives is not simulated.
    """

    def __init__(self, network: "MemoryNetwork", endpoint: "MemoryTransport", me: PeerId | None = None) -> None:
        """
        Args:
            me: whose key signs what is stored; None: the endpoint's.
        """
        self._network = network
        self._endpoint = endpoint
        self.me = me or endpoint.peer_id

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        """See ``Directory``; refused when it is another's, when it has expired or would be kept for too long by swarm
        time, or when something else is there that expires no earlier.
        """
        await self._reach_keeper(timeout_s)
        now = EPOCH_S + self._network.loop.time()
        records = self._network.table_of(self._endpoint).setdefault(key, {})
        known = records.get(subkey)
        if owner_of(subkey) != self.me or expires_at > now + LONGEST_RECORD_S:
            return False
        entry = Entry(bytes(value), expires_at)
        is_newer = known is None or known.expires_at <= now or known.expires_at < expires_at or known == entry
        if expires_at <= now or not is_newer:
            return False
        records[subkey] = entry
        return True

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        """See ``Directory``."""
        await self._reach_keeper(timeout_s)
        now = EPOCH_S + self._network.loop.time()
        records = self._network.table_of(self._endpoint).get(key, {})
        expired = [subkey for subkey, entry in records.items() if entry.expires_at <= now]
        for subkey in expired:
            del records[subkey]
        return dict(records)

    async def _reach_keeper(self, timeout_s: float) -> None:
        if self._endpoint.is_frozen:
            await asyncio.sleep(0)
        needed_s = LOOKUP_S + 2 * self._endpoint.access.link.latency_s
        is_alone = self._network.is_isolated(self._endpoint)
        if self._endpoint.is_alive and not is_alone and needed_s <= timeout_s:
            await asyncio.sleep(needed_s)
            is_alone = self._network.is_isolated(self._endpoint)
            timeout_s -= needed_s
            needed_s = 0.0
        if self._endpoint.is_alive and (is_alone or needed_s):
            await asyncio.sleep(max(0.0, timeout_s))
        if not self._endpoint.is_alive or is_alone or needed_s:
            raise TimedOut("no keeper of the key answered in time")
