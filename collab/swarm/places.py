"""Whom a peer serves at once: a few in all, and fewer of each other peer. More wait their turn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from collab.types import PeerId


class Places:
    """Taken by whoever is served, in the order of asking; one peer that asks for many leaves most to the others."""

    def __init__(self, most: int, most_each: int) -> None:
        """
        Args:
            most: served at once.
            most_each: of these for one peer.
        """
        self._most_each = most_each
        self._free = asyncio.Semaphore(most)
        self._free_of: WeakValueDictionary[PeerId, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken_by(self, peer: PeerId) -> AsyncIterator[None]:
        """Waits for a place, however long, and gives it back at the end."""
        free_of_theirs = self._free_of.setdefault(peer, asyncio.Semaphore(self._most_each))
        async with free_of_theirs, self._free:
            yield
