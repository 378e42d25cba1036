"""One backbone's side of the publishing lease: it says in the directory what it claims, and reads what others say."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from collab.errors import BadMessage, NetworkError
from collab.metrics.records import LeaseChanged
from collab.net.base import record_end
from collab.ports import Ports
from collab.swarm.backbone_records import BackboneRecord, pack_backbone, unpack_backbone
from collab.swarm.identity import Identity
from collab.swarm.lease import LEASE_S, MARGIN_S, RENEW_S, Lease, Now, Tenure
from collab.types import PeerId

logger = logging.getLogger(__name__)

LIFE_S = LEASE_S + 3 * MARGIN_S
"""Of a record in the directory: as long as its claim may count for anybody, whatever their clocks say."""
AT_ONCE = 4
"""Turns without a pause: to claim, and to hear that nobody else does."""


class Speaker(Protocol):
    """Whoever the lease is for."""

    def backbone_record(self, term: int, seen: Tenure) -> BackboneRecord:
        """Our word as of now."""
        ...

    async def remember(self, seen: Tenure) -> bool:
        """Keep the highest tenure that we have heard of for our next life; False: the disk does not take it."""
        ...


Vouched = Callable[[PeerId], bool]
"""Whether a peer's word about the lease counts."""


async def read_backbones(
    ports: Ports, fingerprint: str, *, now: float, vouched: Vouched = lambda _: True
) -> Mapping[PeerId, BackboneRecord]:
    """Of all backbones of a run whose word is fresh.

    Raises:
        NetworkError: the directory does not answer.
    """
    records: dict[PeerId, BackboneRecord] = {}
    with ports.lookups.asking() as limit_s:
        found = await ports.directory.get(_key(fingerprint), timeout_s=limit_s)
    for subkey, entry in found.items():
        try:
            record = unpack_backbone(entry.value, PeerId(subkey))
        except BadMessage as error:
            logger.debug("backbone record refused peer=%s reason=%s", subkey, error)
            continue
        if record.fingerprint == fingerprint and abs(now - record.claim.said_at) <= LIFE_S and vouched(record.peer):
            records[record.peer] = record
    return records


def _key(fingerprint: str) -> str:
    return f"{fingerprint[:32]}.backbones"


class LeaseKeeper:
    """Of one backbone."""

    def __init__(
        self, ports: Ports, identity: Identity, fingerprint: str, speaker: Speaker, vouched: Vouched = lambda _: True
    ) -> None:
        """
        Args:
            vouched: see ``Vouched``; in an open run everybody's does.
        """
        self._ports, self._identity, self._fingerprint = ports, identity, fingerprint
        self._speaker, self._vouched = speaker, vouched
        self._lease = Lease(ports.transport.peer_id)
        self._records: Mapping[PeerId, BackboneRecord] = {}
        self._said_term, self._said_s = 0, -RENEW_S
        self._last_end = 0.0
        """See ``record_end``."""
        self._remembered = self._lease.seen
        self._held: Tenure | None = None
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, seen: Tenure) -> None:
        """
        Args:
            seen: the highest tenure that earlier lives have heard of.
        """
        self._lease.seen = self._remembered = seen
        self._loop = asyncio.get_running_loop()

    @property
    def records(self) -> Mapping[PeerId, BackboneRecord]:
        """All backbones as last read, ourselves included."""
        return self._records

    @property
    def seen(self) -> Tenure:
        """The highest tenure that we have heard of."""
        return self._lease.seen

    def tenure(self) -> Tenure | None:
        """Under which we may publish at this very moment; None: not at all. Any thread may ask."""
        return self._lease.tenure(self._now())

    def holder(self) -> BackboneRecord | None:
        """The other backbone that holds the lease, as far as we see; of several the one with the highest tenure."""
        me, now = self._ports.transport.peer_id, self._now()
        holders = [one for one in self._records.values() if one.peer != me and one.claim.counts_at(now)]
        return max(holders, key=lambda record: record.claim.tenure, default=None)

    def speak(self) -> None:
        """What we say of ourselves has changed."""
        self._news.set()

    async def run(self) -> None:
        """Hold the lease when it is our turn, until cancelled."""
        while True:
            await self.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._news.wait()

    async def turn(self) -> None:
        """Say what is due, read, and act on it; to the end, when that means to claim the lease."""
        for _ in range(AT_ONCE):
            before = self._lease.term
            is_due = self._now().own_s >= self._said_s + RENEW_S
            if is_due or self._news.is_set() or self._said_term != self._lease.term:
                await self._say()
            await self._look()
            if self._lease.term == before == self._said_term and (not before or self.tenure() is not None):
                return

    async def leave(self) -> None:
        """Free the lease for others, and be a backbone no more."""
        self._lease.give_up()
        await self._say()
        self._tell()

    def give_up(self) -> None:
        """Free the lease for others, since we cannot publish."""
        self._lease.give_up()
        self._tell()
        self._news.set()

    async def _say(self) -> None:
        self._news.clear()
        if self._lease.seen != self._remembered:
            if not await self._speaker.remember(self._lease.seen):
                self._lease.give_up()  # a life that forgot its terms would use them again
            self._remembered = self._lease.seen
        began = self._now()
        record = self._speaker.backbone_record(self._lease.term, self._lease.seen)
        self._said_s = began.own_s
        ends_at = record_end(record.claim.said_at, LIFE_S, self._last_end)
        self._last_end = max(self._last_end, ends_at)
        try:
            with self._ports.lookups.asking() as limit_s:
                is_taken = await self._ports.directory.store(
                    _key(self._fingerprint),
                    record.peer,
                    pack_backbone(record, self._identity),
                    expires_at=ends_at,
                    timeout_s=limit_s,
                )
        except NetworkError as error:
            logger.warning("other backbones do not hear us: %s", error)
            return
        if is_taken:
            self._said_term = record.claim.term
            self._lease.said(record.claim.term, began, self._now())

    async def _look(self) -> None:
        began = self._now()
        try:
            self._records = await read_backbones(
                self._ports, self._fingerprint, now=began.swarm_s, vouched=self._vouched
            )
        except NetworkError as error:
            logger.warning("other backbones cannot be heard: %s", error)
        else:
            ours = self._speaker.backbone_record(self._lease.term, self._lease.seen).claim
            claims = [record.claim for record in self._records.values()]
            self._lease.read(claims, ours, began, self._now())
        self._tell()

    def _tell(self) -> None:
        """Of a lease that we got or lost."""
        tenure = self.tenure()
        if tenure != self._held:
            self._held = tenure
            term = tenure.term if tenure is not None else 0
            logger.info("publishing lease term=%d seen=%d", term, self._lease.seen.term)
            self._ports.observer.observe(LeaseChanged(at_s=self._ports.clock.now(), term=term))

    def _now(self) -> Now:
        """By the loop's own time, since a worker thread asks, too."""
        own_s = self._loop.time() if self._loop is not None else self._ports.clock.monotonic()
        return Now(self._ports.clock.now(), own_s)
