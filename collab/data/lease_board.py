"""Pages of blocks in the directory: reading what all say of one, and saying what we hold and have trained."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from collab.data.blocks import BlockPlan
from collab.data.holders import PageKey
from collab.data.lease_records import EntryReader, Page, PageEntry, pack_entry
from collab.errors import BadMessage, NetworkError
from collab.net.base import record_end
from collab.ports import Ports
from collab.types import PeerId

logger = logging.getLogger(__name__)

KEPT_S = 7200.0
"""An entry stays so long in the directory: what its author has trained counts when the author has gone."""
LATELY_S = 60.0
"""What one keeper knows of a page may be so old, where one is enough."""
MAX_ENTRIES = 2048
"""Of one page that are looked at: 0.5 MB, and more than any page of an honest swarm has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What we say of one page."""

    held: int
    trained: int
    life_s: float


class LeaseBoard:
    """All pages of one dataset, for one peer."""

    def __init__(self, ports: Ports, fingerprint: str, plan: BlockPlan) -> None:
        self._ports, self._fingerprint, self.plan = ports, fingerprint, plan
        self._reader = EntryReader(ports.keys)
        self._last_end = 0.0
        """See ``record_end``."""

    @property
    def me(self) -> PeerId:
        """Who speaks."""
        return self._ports.transport.peer_id

    def now(self) -> float:
        """Swarm time."""
        return self._ports.clock.now()

    def monotonic(self) -> float:
        """For durations."""
        return self._ports.clock.monotonic()

    def random(self) -> float:
        """From 0 to 1."""
        return self._ports.rng.random()

    async def read(self, key: PageKey, *, roughly: bool = False) -> dict[PeerId, PageEntry]:
        """Everybody's word about a page; what is malformed or forged is passed over.

        Args:
            roughly: one keeper's answer is enough, if anybody has said anything lately. Before a claim it is: who makes
                one reads again after it.

        Raises:
            NetworkError: the directory does not answer.
        """
        page = self._page(key)
        fresh_until = self.now() + KEPT_S - LATELY_S if roughly else None
        with self._ports.lookups.asking() as limit_s:
            found = await self._ports.directory.get(page.key, timeout_s=limit_s, fresh_until=fresh_until)
        entries = {}
        for subkey in self._looked_at(found):
            try:
                entries[PeerId(subkey)] = self._reader.read(found[subkey].value, PeerId(subkey), page)
            except BadMessage as error:
                logger.debug("lease entry refused peer=%s reason=%s", subkey, error)
        return entries

    def _looked_at(self, found: Mapping[str, object]) -> list[str]:
        """Ours, and not more of the others than there can be."""
        others = sorted(subkey for subkey in found if subkey != self.me)
        return [*(subkey for subkey in found if subkey == self.me), *others[:MAX_ENTRIES]]

    async def say(self, key: PageKey, said: Said) -> None:
        """Say what we hold and have trained of a page.

        Raises:
            NetworkError: the directory does not answer, or nobody took it.
        """
        now = self.now()
        page = self._page(key)
        entry = PageEntry(page=page, said_at=now, life_s=said.life_s, held=said.held, trained=said.trained)
        data = pack_entry(entry, self._ports.keys)
        ends_at = record_end(now, KEPT_S, self._last_end)
        self._last_end = max(self._last_end, ends_at)
        with self._ports.lookups.asking() as limit_s:
            is_taken = await self._ports.directory.store(page.key, self.me, data, expires_at=ends_at, timeout_s=limit_s)
        if not is_taken:
            raise NetworkError(f"no keeper took our word about {page.key}")

    def _page(self, key: PageKey) -> Page:
        return Page(fingerprint=self._fingerprint, data=self.plan.data, pass_number=key[0], page=key[1])
