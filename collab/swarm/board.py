"""The progress board: publishes our record, and reads everybody's, or what a backbone tells of all."""

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from collab.errors import BadMessage, NetworkError
from collab.net.base import Entry, owner_of, record_end
from collab.ports import Ports
from collab.swarm.crowd import (
    CROWD_BELOW,
    CROWD_FROM,
    LIFE_HEARTBEATS,
    Crowd,
    copy_key,
    copy_keys,
    heartbeat_s,
    level_for,
    pack_crowd,
    page_key,
    page_keys,
    unpack_crowd,
)
from collab.swarm.double import Double
from collab.swarm.identity import Identity
from collab.swarm.page import CROWD_SUBKEY, Known, looked_at
from collab.swarm.progress import HEARTBEAT_S, RECORD_LIFE_S, REFRESH_S, SwarmView, is_fresh
from collab.swarm.records import LONGEST_LIFE_S, PeerRecord, PeerState, pack_record, unpack_record
from collab.swarm.statutes import Statutes
from collab.swarm.summing_up import sum_up
from collab.types import PeerId, Role, one_peer_id

logger = logging.getLogger(__name__)

Words = list[tuple[str, bytes]]
"""Subkeys, which are peers, and what is under them; a peer may be on two pages."""
ALONE_BYTES_PER_S = 4096.0
"""What may be read in a large swarm without a backbone that tells of all."""
LINGER_HEARTBEATS = 1.5
"""After its end a summary still says who may lead: as long as some have not looked since, and go by it."""


class ProgressBoard:
    """What one peer knows of a run's peers."""

    def __init__(self, ports: Ports, identity: Identity, fingerprint: str, statutes: Statutes | None = None) -> None:
        """
        Args:
            statutes: whose word counts; None: everybody's, as for one who only looks.
        """
        self._ports, self._identity, self._fingerprint, self._statutes = ports, identity, fingerprint, statutes
        self._front = f"{fingerprint[:32]}.peers"
        self._latest: PeerRecord | None = None
        self._published_s, self._heard_s = -math.inf, ports.clock.monotonic()
        self._max_share = statutes.bundle.run.averaging.max_share if statutes is not None else 1.0
        self._view, self._double = SwarmView((), 0.0), Double(identity.peer_id, ports)
        self._crowds: dict[PeerId, Crowd] = {}
        """Newest summary of each backbone."""
        self._told: Crowd | None = None
        """The newest summary that was ever believed."""
        self._raw: dict[PeerId, bytes] = {}
        """Signed records of the view."""
        self._last_end: dict[tuple[str, str], float] = {}
        """See ``record_end``."""
        self._levels: dict[int, float] = {}
        """How trainers' pages were cut lately, and when (swarm time) a backbone said so last."""
        self.is_heard = True  # our newest word
        self._read_bytes = 0
        """By the newest look."""

    @property
    def view(self) -> SwarmView:
        """What the last refresh saw, our own newest word included."""
        return self._view

    @property
    def since_published_s(self) -> float:
        """Seconds since our record was last stored."""
        return self._ports.clock.monotonic() - self._published_s

    @property
    def unheard_s(self) -> float:
        """Seconds since the directory answered."""
        return self._ports.clock.monotonic() - self._heard_s

    @property
    def crowd(self) -> Crowd | None:
        """The newest summary that is believed; None: the swarm is small, or nobody who may tell of it does."""
        now = self._ports.clock.now()
        told = [crowd for peer, crowd in self._crowds.items() if crowd.is_fresh(now) and self.is_vouched_backbone(peer)]
        return max(told, key=lambda crowd: crowd.said_at, default=None)

    @property
    def heartbeat_s(self) -> float:
        """How often we should speak."""
        crowd = self.crowd
        return heartbeat_s(crowd.trainers) if crowd is not None else HEARTBEAT_S

    @property
    def due_s(self) -> float:
        """Until everybody's words should be read anew."""
        crowd = self.crowd
        rest_s = self.heartbeat_s if crowd and not crowd.is_at_rest else self._read_bytes / ALONE_BYTES_PER_S
        return max(rest_s, REFRESH_S) - (self._ports.clock.now() - self._view.at_s)

    @property
    def _level(self) -> int:
        """Where trainers write."""
        crowd = self.crowd
        return crowd.level if crowd is not None else 0

    # -- our word ------------------------------------------------------------------------------------------------------

    async def publish(self, record: PeerRecord) -> None:
        """Store our record; a directory that does not answer is logged, and the next heartbeat tries again."""
        record = self._statutes.stamped(record) if self._statutes is not None else record
        self._latest = record = replace(record, life_s=RECORD_LIFE_S * self.heartbeat_s / HEARTBEAT_S)
        self._double.said(record)
        self._published_s = self._ports.clock.monotonic()
        self._raw[record.peer] = data = pack_record(record, self._identity)
        key = page_key(self._front, self._level, record.peer) if record.role is Role.TRAINER else self._front
        self.is_heard = await self._store(key, record.peer, data, record.life_s)

    async def sum_up(self) -> None:
        """Tell of all, unless the swarm is small or another backbone does so already.

        Of the backbones that the owner has named the first one by name speaks, while it does.
        """
        crowd, now, me = self.crowd, self._ports.clock.now(), self._identity.peer_id
        trainers = len(self._view.all_trainers())
        if not self.is_vouched_backbone(me) or trainers < (CROWD_BELOW if crowd is not None else CROWD_FROM):
            return
        beat_s = heartbeat_s(trainers)
        others = [peer for peer, told in self._crowds.items() if told.is_fresh(now)]
        if any(peer < me and self.is_vouched_backbone(peer) for peer in others):
            return
        ours = self._crowds.get(me)
        if ours is not None and ours.level == level_for(trainers) and now - ours.said_at < beat_s / 2:
            return
        life_s = LIFE_HEARTBEATS * beat_s
        summary = sum_up(self._view, self._raw, fingerprint=self._fingerprint, now=now, life_s=life_s)
        self._crowds[me], self._levels[summary.level] = summary, now
        data, keys = pack_crowd(summary, self._identity), [self._front, *copy_keys(self._front, summary.level)]
        await asyncio.gather(*(self._store(key, f"{CROWD_SUBKEY}{me}", data, life_s) for key in keys))

    async def _store(self, key: str, subkey: str, data: bytes, life_s: float) -> bool:
        last_end = self._last_end.get((key, subkey), 0.0)
        expires_at = record_end(self._ports.clock.now(), life_s, last_end)
        self._last_end[key, subkey] = max(last_end, expires_at)
        try:
            with self._ports.lookups.asking() as limit_s:
                return await self._ports.directory.store(key, subkey, data, expires_at=expires_at, timeout_s=limit_s)
        except NetworkError as error:
            logger.warning("the swarm does not hear us: %s", error)
            return False

    # -- others' words -------------------------------------------------------------------------------------------------

    async def refresh(self, *, brief: bool = False) -> SwarmView:
        """Read everybody's records; keeps the previous view when the directory does not answer.

        Args:
            brief: in a crowd what a backbone tells of all is enough.
        """
        crowd: Crowd | None = None
        entries: Words = []
        try:
            if brief and (before := self.crowd) is not None:
                copy = copy_key(self._front, before.level, self._identity.peer_id)
                self._hear_crowds(await self._read([copy], LIFE_HEARTBEATS))
            crowd = self.crowd if brief else None
            if crowd is None or crowd.is_at_rest:
                entries = await self._read_records([self._front])
                self._hear_crowds(entries)
                crowd = self.crowd if brief else None
            if crowd is not None and not crowd.is_at_rest:
                entries = list(crowd.sample)
            else:
                crowd, entries = None, entries + await self._read_records(self._pages())
            self._heard_s = self._ports.clock.monotonic()
        except NetworkError as error:
            logger.warning("the swarm's records cannot be read: %s", error)
        now = self._ports.clock.now()
        self._read_bytes = sum(len(data) for _, data in entries)
        self._view = self._seen(entries, now, crowd)
        return self._view

    async def _read_records(self, keys: list[str]) -> Words:
        """The records under these keys. Of several pages one keeper's word is enough, if it is recent.

        Not of one page: among few nodes whoever comes, we as well, is one of its keepers at once, and lacks what was
        said before, a goodbye for good.
        """
        return await self._read(keys, RECORD_LIFE_S / HEARTBEAT_S if self._level > 1 else None)

    async def _read(self, keys: list[str], life: float | None) -> Words:
        """``life``: of words, in heartbeats; one keeper's are enough if one is of the last two. None: never."""
        fresh_until = None if life is None else self._ports.clock.now() + (life - 2) * self.heartbeat_s
        found = await asyncio.gather(*(self._get(key, fresh_until) for key in keys))
        for key, entries in zip(keys, found, strict=True):
            for subkey in (name for name in entries if owner_of(name) == self._identity.peer_id):
                # of our life before, perhaps: what we say next must end later to take its place
                self._last_end[key, subkey] = max(self._last_end.get((key, subkey), 0.0), entries[subkey].expires_at)
        helpers = {record.peer for record in self._view.records if record.role is not Role.TRAINER}
        named = {peer for peer in helpers if self.is_vouched_backbone(peer)}
        known = Known(peers=set(self._raw), backbones=named, helpers=helpers - named, authors=set(self._crowds))
        chosen = [looked_at(entries, known, self._ports.rng) for entries in found]
        return [(name, entries[name].value) for entries, names in zip(found, chosen, strict=True) for name in names]

    async def _get(self, key: str, fresh_until: float | None) -> Mapping[str, Entry]:
        with self._ports.lookups.asking() as limit_s:
            return await self._ports.directory.get(key, timeout_s=limit_s, fresh_until=fresh_until)

    def _hear_crowds(self, words: Words) -> None:
        """Take note of the summaries on a page."""
        now, own = self._ports.clock.now(), dict(words)
        for subkey, data in [word for word in words if word[0].startswith(CROWD_SUBKEY)]:
            peer = PeerId(subkey.removeprefix(CROWD_SUBKEY))
            try:
                crowd = unpack_crowd(data, peer)
            except BadMessage as error:
                logger.debug("summary refused peer=%s reason=%s", peer, error)
                continue
            known = self._crowds.get(peer)
            if crowd.fingerprint == self._fingerprint and crowd.is_fresh(now) and self._may_tell(peer, own):
                if known is None or crowd.said_at > known.said_at:
                    self._crowds[peer] = crowd
                self._levels[crowd.level] = now
        self._crowds = {peer: crowd for peer, crowd in self._crowds.items() if crowd.is_fresh(now)}

    def _may_tell(self, peer: PeerId, own: Mapping[str, bytes]) -> bool:
        """Whose summaries count; a backbone's own record, which is on the same page, shows whether it is named."""
        if self._statutes is not None and peer in own:
            with suppress(BadMessage):
                self._counts(unpack_record(own[peer], peer))
        return self._statutes is None or self.is_vouched_backbone(peer)

    def _pages(self) -> list[str]:
        """Where trainers may have written in the last minutes."""
        now = self._ports.clock.now()
        self._levels = {level: at_s for level, at_s in self._levels.items() if now - at_s < LONGEST_LIFE_S}
        return [key for level in sorted(self._levels) for key in page_keys(self._front, level)]

    def _seen(self, entries: Words, now: float, crowd: Crowd | None) -> SwarmView:
        """What these words say of the swarm; without any, and after one keeper's word, together with what we knew."""
        is_kept = not entries or (bool(self._levels) and crowd is None)
        records = {record.peer: record for record in self._view.records if is_fresh(record, now)} if is_kept else {}
        left = dict(self._view.left) if is_kept else {}
        newest_s = {peer: record.said_at for peer, record in records.items()}
        raw = {peer: self._raw[peer] for peer in records if peer in self._raw}
        for subkey, data in entries:
            if subkey.startswith(CROWD_SUBKEY):
                continue
            try:
                record = unpack_record(data, one_peer_id(subkey))
            except BadMessage as error:
                logger.debug("record refused peer=%s reason=%s", subkey, error)
                continue
            self._double.heard(record)
            is_told = crowd is not None or is_fresh(record, now)  # what a summary holds lives as long as it does
            if record.fingerprint != self._fingerprint or not is_told or not self._counts(record):
                continue
            if newest_s.get(record.peer, 0.0) > record.said_at:
                continue
            newest_s[record.peer] = record.said_at
            if record.state is PeerState.LEFT:
                left[record.peer] = record.epoch
                records.pop(record.peer, None)
            else:
                records[record.peer], raw[record.peer] = record, data
        if self._latest is not None and self._latest.state is not PeerState.LEFT:
            records[self._latest.peer], raw[self._latest.peer] = self._latest, self._raw[self._latest.peer]
        self._raw = raw
        left = {peer: epoch for peer, epoch in left.items() if peer not in records}
        self._told = told = self.crowd or self._told
        known_to_all = None
        linger_s = LINGER_HEARTBEATS * told.beat_s if told is not None else 0.0
        if told is not None and not told.is_at_rest and now <= told.said_at + told.life_s + linger_s:
            known_to_all = frozenset(peer for peer, _ in told.sample)
        ordered = tuple(records[peer] for peer in sorted(records))
        return SwarmView(ordered, now, left, crowd, self._max_share, known_to_all)

    def voice_of(self, peer: PeerId) -> PeerId:
        """Under which a peer counts where identities are counted: its invite, else itself."""
        return self._statutes.admission.voice_of(peer) if self._statutes is not None else peer

    def is_vouched_backbone(self, peer: PeerId) -> bool:
        """Whether the owner has said that this is a backbone of the run."""
        return self._statutes is not None and self._statutes.admission.is_vouched_backbone(peer)

    @property
    def era(self) -> str:
        """Of the states that count."""
        return self._statutes.mandate.era if self._statutes is not None else ""

    def _counts(self, record: PeerRecord) -> bool:
        return self._statutes is None or self._statutes.counts(record)
