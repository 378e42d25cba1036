"""How a trainer takes over the swarm's state."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from collab.averaging.base import Committed
from collab.averaging.donor import kept_streams
from collab.averaging.history import KEPT_ROUNDS
from collab.averaging.round import RoundEngine
from collab.errors import CorruptState, NoDonor, ShapeMismatch
from collab.metrics.records import Notice, Phase, PhaseReached, StateFetched
from collab.ports import Ports
from collab.strategies.base import NOTHING, Spans, Strategy
from collab.swarm.fitting import Brought, fetch_fitting
from collab.swarm.last_seen import NEWER_WAIT_S, LastSeen
from collab.swarm.membership import Membership
from collab.swarm.order_exchange import OrderExchange
from collab.swarm.partial import Partial
from collab.swarm.snapshots import Manifest, Snapshot
from collab.swarm.state_transfer import MOST_FLOATS, MOST_MORE, Wanted, fetch_state
from collab.swarm.vouching import who_has_contributed
from collab.training.gone_on import who_has_gone_on
from collab.training.pursuit import MISFIT_PAUSE_S, Pursuit
from collab.training.replica import Replica
from collab.training.shared_state import unpack_for
from collab.training.update import Update
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

Fetched = tuple[Snapshot, Manifest, Mapping[PeerId, int]]
SYNC_PAUSE_S = 1.0
"""Between two attempts to find somebody who has the run's state."""
ATTEMPTS_PER_LOOK = 3
"""At everybody. Who says to hold a newer state than ours and never gives it is doubted, and we go on with ours."""
ATTEMPTS_BEFORE_WORDS = (5, 60)
"""After so many failed attempts a person is told."""


class StateSync:
    """Keeps one replica in step with the swarm."""

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        strategy: Strategy,
        membership: Membership,
        engine: RoundEngine,
        root: Path | None = None,
    ) -> None:
        """
        Args:
            root: where what comes is kept until all of it is here, and how far the swarm was; None: nowhere.
        """
        self._partial = Partial(root / "download", ports.compute) if root is not None else None
        self._last_seen = LastSeen(root and root / "last-seen.json", ports.compute)
        self._seen_epoch = self._last_seen.read()
        """How far an earlier life of ours saw the swarm."""
        self._ports, self._replica, self._strategy = ports, replica, strategy
        self._membership, self._engine, self._fingerprint = membership, engine, engine.fingerprint
        self._began_s = ports.clock.monotonic()
        self._has_come = False
        """Whether we have had the swarm's state in this life."""
        self.orders: OrderExchange | None = None
        """Fetches the organiser's orders that missed rounds were taken under."""
        self.tell: Callable[[int, int], None] = lambda _here, _whole: None
        """Hears how far a download is, in bytes."""
        self.pursuit = Pursuit(ports.clock, replica, lambda: len(membership.donors()))

    async def gather(self) -> Update:
        """Fetch what takes us to the swarm's state: the rounds that we missed, else the state as a whole.

        Tries until it has it; after a while it says what is missing. The replica stays as it is. When the others wait
        for us, what would be too old is given up for the state of that moment.
        """
        return await self.pursuit.run(lambda is_awaited: self._gather(is_awaited=is_awaited))

    async def _gather(self, *, is_awaited: bool) -> Update:
        """``is_awaited``: by the others, with the state that they have now."""
        self._ports.observer.observe(
            PhaseReached(at_s=self._ports.clock.now(), phase=Phase.FETCH_STATE, epoch=self._replica.epoch)
        )
        attempts = 0
        if self._was_told_what_followed and not is_awaited and (update := await self.missed()).rounds:
            return update
        await self._membership.report()
        if self.orders is not None:
            await self.orders.level()
        if self._is_rolled_back():
            await self._ports.compute.run(self._replica.forget)
        while is_awaited or not (update := await self.missed()).rounds:
            if self._waits_for_newer():
                await asyncio.sleep(SYNC_PAUSE_S)
                await self._membership.report(again=self._waits_for_newer())
                continue
            if self._is_level():
                await self._engine.learn_maker(self._membership.donors(), self._replica.lineage)
                return Update()
            if not is_awaited and not attempts and self.pursuit.fresh is not None and not await self._has_begun():
                await self.pursuit.fresh.wait()
            try:
                used, round_id = await self._used_of_ours()
                snapshot = await self._fetch(goes_on=not is_awaited)
                return Update(used, round_id, snapshot, await self._rounds_after(snapshot.epoch, snapshot.lineage))
            except (NoDonor, CorruptState, ShapeMismatch) as error:
                attempts, is_awaited, is_misfit = attempts + 1, False, isinstance(error, ShapeMismatch)
                self.pursuit.failed(error)
                if attempts % ATTEMPTS_PER_LOOK == 0:
                    await self._membership.report()  # of everybody, as they are now
                    is_vain = self.pursuit.is_vain and bool(self._replica.lineage) and not is_misfit
                    if is_vain and (self._membership.is_at_rest() or self._membership.keepers()):
                        self._membership.doubt()
                if attempts in ATTEMPTS_BEFORE_WORDS:
                    notice = Notice(at_s=self._ports.clock.now(), text=error.message, hint=error.hint, is_problem=True)
                    self._ports.observer.observe(notice)
                await asyncio.sleep(MISFIT_PAUSE_S if is_misfit else SYNC_PAUSE_S)
                await self._membership.report(again=True)
        return update

    def _is_rolled_back(self) -> bool:
        return bool(self._replica.lineage) and self._replica.era != self._membership.era

    def _waits_for_newer(self) -> bool:
        """Whether somebody may come back soon with a newer state than ours, and nobody is here who has one."""
        held, newest = (self._replica.epoch, self._replica.lineage), self._membership.newest_of_others()
        is_old = bool(held[1]) and held[0] < self._seen_epoch and (newest is None or newest <= held)
        is_soon = self._ports.clock.monotonic() < self._began_s + NEWER_WAIT_S
        return is_old and is_soon and self._membership.is_at_rest()

    def _is_level(self) -> bool:
        """Whether nobody has anything newer than what we hold, perhaps from an earlier life."""
        if self._replica.lineage and self._membership.is_at_rest():
            newest = self._membership.newest_of_others()
            return newest is None or newest <= (self._replica.epoch, self._replica.lineage)
        others = self._membership.consensus_of_others()
        if self._membership.keepers():
            return False
        if not self._replica.lineage or others is not None:
            return bool(self._replica.lineage) and others == (self._replica.epoch, self._replica.lineage)
        return all(backbone.checkpoint_epoch <= self._replica.epoch for backbone in self._membership.backbones())

    async def note_progress(self) -> None:
        """Remember for our next life how far the swarm is, until cancelled."""
        await self._last_seen.follow(self._swarm_epoch)

    def _swarm_epoch(self) -> int:
        consensus = self._membership.consensus_of_others()
        return max(self._replica.epoch if self._replica.lineage else -1, consensus[0] if consensus is not None else -1)

    async def missed(self, *, waits: bool = True) -> Update:
        """The rounds that followed our state, as far as others still have them.

        Args:
            waits: for one that goes on. Where one follows the other without a pause, who waits for every one is in
                none.
        """
        if not self._replica.lineage:
            return Update()
        return Update(rounds=await self._rounds_after(self._replica.epoch, self._replica.lineage, waits=waits))

    async def apply(self, update: Update) -> None:
        """Take over what was gathered. No microbatch may be computed meanwhile."""
        await self._ports.compute.run(lambda: self._apply(update))
        self._has_come = True

    def _apply(self, update: Update) -> None:
        replica = self._replica
        if update.used:
            replica.disown(update.used, update.round_id)
        if update.snapshot is not None:
            replica.load(update.snapshot)
        for missed in update.rounds:
            replica.disown(missed.record.used_of(self._ports.transport.peer_id), missed.record.round_id)
            self._strategy.apply(replica, missed)

    async def _rounds_after(self, epoch: int, lineage: Lineage, *, waits: bool = True) -> tuple[Committed, ...]:
        """The rounds that continued a history, one after the other, up to one that had to be waited for."""
        rounds: list[Committed] = []
        num_elements, how = self._replica.exchanged_elements, {"waits": waits, "joins": self._is_in_rounds}
        with kept_streams() as kept:
            while True:
                self.pursuit.reached(epoch, is_whole=False)
                peers = self._who_has_gone_on(epoch, lineage)
                committed = await self._engine.history.fetch(peers, (epoch, lineage), num_elements, **how, kept=kept)
                if committed is None or not await self._knows_terms(committed.record.terms, peers):
                    return tuple(rounds)
                rounds.append(committed)
                epoch, lineage = epoch + 1, committed.lineage
                if committed.was_awaited or (committed.is_newest and self._is_newest(epoch)):
                    return tuple(rounds)

    @property
    def _was_told_what_followed(self) -> bool:
        """Whether we know who was in the round after our history, so that nobody need be looked for."""
        ours, records = (self._replica.epoch, self._replica.lineage), self._engine.known_records()
        is_known = any((record.epoch, record.lineage) == ours for record in records)
        return is_known and self._is_in_rounds and not self._is_rolled_back()

    def _is_newest(self, epoch: int) -> bool:
        """Whether nobody says to be beyond ``epoch``: what follows may be put off until we are there."""
        newest = self._membership.newest_of_others()
        return self._is_in_rounds and (newest is None or newest[0] <= epoch)

    @property
    def _is_in_rounds(self) -> bool:
        """Whether we can join some, where trainers do not wait for them; a newcomer waits for those of others."""
        return not self._strategy.is_synchronous and self._has_come

    def _who_has_gone_on(self, epoch: int, lineage: Lineage) -> list[PeerId]:
        ahead = self._membership.trainers_ahead(epoch)
        if not self._is_in_rounds:
            return ahead
        me, records = self._ports.transport.peer_id, self._engine.known_records()
        return who_has_gone_on((epoch, lineage), records, ahead, me=me, knows=self._membership.knows)

    async def _knows_terms(self, mark: str, peers: list[PeerId]) -> bool:
        return self.orders is None or await self.orders.knows(mark, peers)

    async def _used_of_ours(self) -> tuple[Spans, str]:
        """Before we leave our history for another state: what the round after it has used of what we still hold."""
        replica = self._replica
        peers = self._membership.trainers_ahead(replica.epoch)
        if replica.lineage and replica.samples and peers:
            record = await self._engine.what_followed(peers, replica.epoch, replica.lineage)
            if record is not None:
                return record.used_of(self._ports.transport.peer_id), record.round_id
        return NOTHING, ""

    async def _has_begun(self) -> bool:
        """Whether a download of an earlier life can go on."""
        return self._partial is not None and await self._partial.manifest() is not None

    async def _fetch(self, *, goes_on: bool) -> Snapshot:
        """The swarm's present state, from whoever has it.

        Args:
            goes_on: what was begun in an earlier life is of use.
        """
        started_s = self._ports.clock.monotonic()
        self.pursuit.reached(self._swarm_epoch(), is_whole=True)
        snapshot, manifest, donors = await self._fetch_newest(goes_on=goes_on)
        if snapshot.era != self._membership.era:
            raise NoDonor(f"the state of epoch {snapshot.epoch} was rolled back", hint="whoever has another is asked")
        now, seconds = self._ports.clock.now(), self._ports.clock.monotonic() - started_s
        epoch, num_bytes = manifest.epoch, manifest.num_bytes
        told = StateFetched(at_s=now, donors=donors, epoch=epoch, num_bytes=num_bytes, seconds=seconds)
        self._ports.observer.observe(told)
        if snapshot.epoch > 0:
            await self._engine.learn_maker(list(donors), snapshot.lineage)
        return snapshot

    async def _fetch_newest(self, *, goes_on: bool) -> Fetched:
        """First what was begun in an earlier life, if rounds lead on from there; else the newest."""
        donors, most_bytes = self._membership.donors(), MOST_FLOATS * 4 * self._replica.layout.num_elements + MOST_MORE
        trainers = frozenset(donors) - {record.peer for record in self._membership.backbones()}
        named = self._membership.vouched_backbones()
        steady = await who_has_contributed(self._ports.transport, self._ports.errands, named)
        donors.sort(key=lambda peer: peer in trainers and peer not in steady)
        newest = Wanted(
            voices=frozenset(self._membership.keepers()) or trainers & steady or trainers,
            voice_of=self._membership.voice_of,
            most_bytes=most_bytes,
            tell=self.tell,
            least_epoch=self._least_epoch() if goes_on else max(self._least_epoch(), self.pursuit.reached_epoch),
            held=None if self._is_rolled_back() else self._replica.lineage or None,
        )
        begun = await self._partial.manifest() if goes_on and self._partial is not None else None
        consensus = self._membership.consensus_of_others()
        if begun is not None and consensus is not None and 0 <= consensus[0] - begun.epoch <= KEPT_ROUNDS // 2:
            with suppress(NoDonor, ShapeMismatch):
                return await self._fetch_from(donors, replace(newest, epoch=begun.epoch, lineage=begun.lineage))
        return await self._fetch_from(donors, newest)

    def _least_epoch(self) -> int:
        """What is older than ours is of no use, unless the swarm is: a backbone's checkpoint may be all that is seen of
        it, when a link that was cut is back.
        """
        consensus = self._membership.consensus_of_others()
        is_behind_us = consensus is not None and consensus[0] < self._replica.epoch
        is_kept = bool(self._replica.lineage) and (self._membership.is_at_rest() or not is_behind_us)
        return self._replica.epoch + bool(self._membership.keepers()) if is_kept else 0

    async def _fetch_from(self, donors: list[PeerId], wanted: Wanted) -> Fetched:
        async def fetch(left: list[PeerId], wanted: Wanted) -> Brought:
            transport, links, partial = self._ports.transport, self._engine.links, self._partial
            brought = await fetch_state(
                transport, links, left, fingerprint=self._fingerprint, wanted=wanted, partial=partial
            )
            if partial is not None:
                await partial.remove()
            return brought

        model = self._replica.model
        return await fetch_fitting(self._ports, donors, wanted, fetch, lambda packed: unpack_for(model, packed))
