"""Our place in the swarm: what we say of ourselves, when we say it, and what others' words mean for us."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected
from collab.averaging.deadlines import Arrivals
from collab.ports import Clock
from collab.swarm.board import ProgressBoard
from collab.swarm.crowd import idle_s
from collab.swarm.presence import Presence
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Role

SHORTEST_WAIT_S = 0.05
"""For an answer that must be on its way: some round trips of a near swarm."""
FIRST_READING_S = 1.0
"""For reading the directory when a round waits for it, before it is known what that takes: some round trips."""
DOUBT_S = 300.0
"""So long nobody waits for the state of a peer that said to hold the newest one, and did not give it."""
REPORT_S = 0.5
"""Progress is published at most this often before the target is in sight."""
FRESH_S = 0.5
"""So long ago everybody's words may have been read for who is in a group: they are no younger when they are written."""


class Membership:
    """Speaks for one peer. Implements the strategies' ``Progress`` and answers the round engine's questions."""

    def __init__(self, board: ProgressBoard, clock: Clock, our_record: Callable[[], PeerRecord]) -> None:
        """
        Args:
            our_record: makes our record as of now.
        """
        self._board, self._clock, self._our_record = board, clock, our_record
        self.voice_of = board.voice_of
        self.is_heard: Callable[[], bool] = lambda: board.is_heard
        self.known_records: Callable[[], list[CommitRecord]] = list
        self.maker: Callable[[Lineage], CommitRecord | None] = lambda _: None
        """The last committed rounds; and which one made a history, whether we were in it or were told of it."""
        self.is_stuck: Callable[[], bool] = lambda: False
        """Whether we should have taken a step long ago."""
        self.trusts: Callable[[PeerId], bool] = lambda _: True
        """Whether the word of a backbone counts."""
        self._has_news = False
        self._question, self._answer = asyncio.Event(), asyncio.Event()
        """That everybody's words should be read at once, and that this is done."""
        self._wants_all = False
        """Whether the question is about each single peer."""
        self._reading = Arrivals(FIRST_READING_S)
        """How long that takes."""
        self._has_waited_in_vain = False
        """Whether the newest question was not answered in time: until one is, nobody waits for the next one."""
        self._presence = Presence(clock.monotonic, board.is_vouched_backbone)
        self._doubted: dict[PeerId, float] = {}
        """Whose word about what it holds was empty, and until when it does not count."""
        self._looked_s = -math.inf
        """When reading everybody's words began that has succeeded."""
        self._since_s = 0.0
        """Swarm time at which we reached our present epoch."""
        self._backbone_s = clock.monotonic()
        """When a backbone was seen last."""

    @property
    def view(self) -> SwarmView:
        """The swarm as last seen."""
        return self._board.view

    async def report(self, *, again: bool = False) -> SwarmView:
        """Publish our record and read everybody's; ``again``, who tries each second: what it is time for."""
        if not again or self._board.since_published_s >= self._board.heartbeat_s:
            await self._board.publish(self._our_record())
        return await self.look(brief=again) if not again or self._board.due_s <= 0 else self.view

    async def look(self, *, brief: bool = False) -> SwarmView:
        """Read everybody's records, and say nothing; ``brief``: of a crowd as much as trainers need to know."""
        began_s, is_trainer = self._clock.monotonic(), self._our_record().role is Role.TRAINER
        view = await self._board.refresh(brief=brief and is_trainer)
        self._reading.add(self._clock.monotonic() - began_s)
        if (view.crowd is None or not brief) and self._board.unheard_s <= self._clock.monotonic() - began_s:
            self._looked_s = began_s
        if self._our_record().role is Role.BACKBONE:
            await self._board.sum_up()
        if backbones := [record.peer for record in self.backbones()]:
            self._backbone_s = self._clock.monotonic()
        if view.crowd is None:  # else who is not in it is not missing
            seated, seatless = ([r.peer for r in view.records if r.has_seat is has_seat] for has_seat in (True, False))
            self._presence.looked(seated, view.left, backbones, seatless, self._board.era)
        return view

    def vouched_backbones(self) -> list[PeerId]:
        """Those that are here and that the owner has named."""
        return [record.peer for record in self.backbones() if self._board.is_vouched_backbone(record.peer)]

    @property
    def era(self) -> str:
        """Of the states that count: mark of the last rollback that we know of."""
        return self._board.era

    def without_backbone_s(self) -> float:
        """For how long no backbone was seen."""
        return self._clock.monotonic() - self._backbone_s

    def note_step(self) -> None:
        """Our replica has just reached its present epoch."""
        self._since_s = self._clock.now()

    @property
    def unheard_s(self) -> float:
        """Since the directory answered."""
        return self._board.unheard_s

    def ask(self, *, anew: bool = False) -> None:
        """Everybody's words should be read soon; ``anew``: and count, whomever we doubt."""
        self._wants_all, self._doubted = True, {} if anew else self._doubted
        self._question.set()

    def our_record(self) -> PeerRecord:
        """Our word as of now."""
        return self._our_record()

    def speak(self) -> None:
        """Others should hear of our progress soon; nobody waits until they have."""
        self._has_news = True

    async def keep_alive(self) -> None:
        """Heartbeat until cancelled."""
        while True:
            since_s, is_asked = self._board.since_published_s, self._question.is_set()
            self._question.clear()
            is_urgent = self._board.crowd is None and (is_asked or since_s >= REPORT_S)
            if since_s >= self._board.heartbeat_s or (self._has_news and is_urgent):
                self._has_news = False
                await self._board.publish(self._our_record())
            if is_asked or self._board.due_s <= 0:
                wants_all, self._wants_all = self._wants_all, False
                await self.look(brief=not wants_all)
            if is_asked:
                self._answer.set()
                self._has_waited_in_vain = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s()):
                    await self._question.wait()

    def _idle_s(self) -> float:
        due_s = min(self._board.heartbeat_s - self._board.since_published_s, self._board.due_s)
        return idle_s(self._board.crowd, self._clock.now(), due_s, step_s=REPORT_S)

    # -- strategies' Progress ----------------------------------------------------------------------------------------

    async def has_reached(self, target_samples: float) -> bool:
        """As far as the records say. Asks the directory only when the target is in sight, and does not wait for it
        longer than for half a microbatch; the answer is there after the next one, and until one has come, nobody waits
        again. ``keep_alive`` does the asking.
        """
        record = self._our_record()
        self._has_news = True
        if self.view.expected_samples(record, self._clock.now(), self._since_s) < target_samples:
            return False
        if self.view.crowd is not None:
            return True  # nobody knows better
        wait_s = SHORTEST_WAIT_S if self._has_waited_in_vain else max(record.microbatch_s / 2, SHORTEST_WAIT_S)
        view = await self._renewed(wait_s)
        return view.samples(record.epoch, record.lineage) >= target_samples

    async def _renewed(self, limit_s: float, since_s: float = -math.inf) -> SwarmView:
        """As the directory knows the swarm now; as it was last seen if that takes longer than ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(2):  # the first answer may be of a reading that was under way
                    self._answer.clear()
                    self._question.set()
                    await self._answer.wait()
                    if self._looked_s >= since_s:
                        break
        except TimeoutError:
            self._has_waited_in_vain = True
        return self.view

    # -- the round engine's questions --------------------------------------------------------------------------------

    def is_training_at(self, epoch: int, lineage: Lineage) -> bool:
        """Whether a call to the round of (epoch, lineage) is for us."""
        record = self._our_record()
        return record.state is PeerState.TRAINING and (record.epoch, record.lineage) == (epoch, lineage)

    def knows(self, peer: PeerId) -> bool:
        """Whether the swarm has heard of a peer, as far as we saw it last."""
        return any(record.peer == peer for record in self.view.records)

    async def roster(self, epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        """Who should be in the group of (epoch, lineage), as everybody's words were no more than ``FRESH_S`` ago.

        A directory that takes longer than usual (one of its keepers is frozen) holds nobody up: it is then as it was
        last seen.
        """
        view = self.view
        if self._looked_s < max(self._clock.monotonic() - FRESH_S, since_s):
            self._wants_all = True
            view = await self._renewed(self._reading.deadline_s(), since_s)
        return self._presence.expected(view, epoch, lineage)

    def leaders(self, lineage: Lineage, epoch: int) -> list[PeerId]:
        """Whom to ask to lead, best first."""
        maker = self.maker(lineage)
        return self.view.leaders(epoch, lineage, maker.members if maker is not None else ())

    # -- where we stand ----------------------------------------------------------------------------------------------

    def epochs_behind(self) -> int:
        """How far most trainers are ahead of us."""
        consensus = self.view.consensus()
        return max(consensus[0] - self._our_record().epoch, 0) if consensus is not None else 0

    def consensus_of_others(self) -> tuple[int, Lineage] | None:
        """Epoch and lineage of most trainers, ourselves not counted; None when nobody else trains."""
        return self.others().consensus()

    def is_at_rest(self) -> bool:
        """Whether nobody, ourselves included, has gone on since it was started. Then the newest state that anybody
        holds is the run's: what most hold is as old as their copies happen to be.
        """
        return not self._our_record().has_seat and self.others().is_at_rest()

    def newest_of_others(self) -> tuple[int, Lineage] | None:
        """The newest state that another peer holds; None when nobody has any."""
        return self.others().newest()

    def doubt(self) -> None:
        """The newest state of others was not to be had from those who say that they hold it."""
        others, until_s = self.others(), self._clock.monotonic() + DOUBT_S
        newest, kept = others.newest(), others.kept_beyond(self._our_record().epoch, self._board.era)
        for record in others.records:
            if record in kept or ((record.epoch, record.lineage) == newest and record.role is Role.TRAINER):
                self._doubted[record.peer] = until_s

    def others(self) -> SwarmView:
        """The swarm as last seen, without ourselves and without whom we doubt."""
        me, now_s = self._our_record().peer, self._clock.monotonic()
        self._doubted = {peer: until_s for peer, until_s in self._doubted.items() if until_s > now_s}
        records = tuple(r for r in self.view.records if r.peer != me and r.peer not in self._doubted)
        return replace(self.view, records=records, left={})

    def keepers(self) -> list[PeerId]:
        """Backbones that hold what came after our state, if those who made it are gone; else none.

        Whoever trained on from here would make a second history. Their word counts when it is proved that there was
        such a step, or when nothing has gone on here for long anyway.
        """
        ours = self._our_record()
        kept = [r.peer for r in self.others().kept_beyond(ours.epoch, self._board.era) if self.trusts(r.peer)]
        is_proved = any((r.epoch, r.lineage) == (ours.epoch, ours.lineage) for r in self.known_records())
        return kept if kept and (is_proved or self.is_stuck()) else []

    def is_out_of_step(self) -> bool:
        """Whether most trainers are on another history than ours, and not behind it.

        Where nobody has gone on yet, whether anybody holds a newer state. Without other trainers a backbone's
        checkpoint counts: whoever was away for long must not train on from where all others were before they finished.
        """
        record = self._our_record()
        if self.is_at_rest():
            newest = self.newest_of_others()
            return newest is not None and newest > (record.epoch, record.lineage)
        consensus = self.consensus_of_others()
        if consensus is None:
            return any(backbone.checkpoint_epoch > record.epoch for backbone in self.backbones())
        if consensus == (record.epoch, record.lineage):
            return bool(self.keepers())
        supporters, companions = self.view.number_at(*consensus), self.view.companions(record)
        if consensus[0] == record.epoch:
            return (supporters, consensus[1]) > (companions, record.lineage)
        return consensus[0] > record.epoch

    def donors(self) -> list[PeerId]:
        """Whom to ask for state, best first."""
        return self.others().donors(self._board.era, is_at_rest=self.is_at_rest())

    def dialable(self) -> list[PeerId]:
        """Other peers that can be dialled, backbones first."""
        me = self._our_record().peer
        able = [record for record in self.view.records if record.peer != me and record.can_be_dialled]
        return [record.peer for record in sorted(able, key=lambda record: record.role is not Role.BACKBONE)]

    def trainers_ahead(self, epoch: int) -> list[PeerId]:
        """See ``SwarmView``."""
        return self.view.trainers_ahead(epoch, self._our_record().peer)

    def is_last_trainer(self) -> bool:
        """Whether no other trainer is known to hold our history."""
        return self.view.companions(self._our_record()) == 1

    def backbones(self) -> list[PeerRecord]:
        """Backbone peers that are alive."""
        return [record for record in self.view.records if record.role is Role.BACKBONE]
