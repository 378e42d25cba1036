"""How a trainer leaves: its votes closed, its state in safe hands, its goodbye said."""

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.round import RoundEngine
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.duties import PUBLISHING
from collab.swarm.handover import FINAL_HANDOVER_S, Offer, offer_state
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.progress import REFRESH_S
from collab.swarm.records import PeerState
from collab.training.disk_copy import DiskCopy
from collab.training.replica import Replica
from collab.training.teller import Teller
from collab.types import PeerId

URGENT_HANDOVER_S = 2.0
"""For the last trainer to hand its state to a backbone when it is asked to leave."""
GOODBYES = 3
"""A directory that did not answer has twice as long the next time (``Lookups``)."""
BACKBONE_STARTS_S = 30.0
"""At the end of a run: for a backbone to be back, if it has only been started again."""
BACKBONE_AWAY_S = 180.0
"""One that is away for longer is not about to be back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Of one trainer."""

    ports: Ports
    replica: Replica
    teller: Teller
    membership: Membership
    engine: RoundEngine
    copy: DiskCopy
    mandate: Mandate

    async def leave(self, *, is_finished: bool, is_urgent: bool) -> None:
        """Say goodbye, and let a backbone take the newest state when it would leave with us. Leaving twice is fine.

        Of several that leave at once each says so before it looks who stays: one at least sees that nobody does.
        """
        vitals, clock = self.teller.vitals, self.ports.clock
        if vitals.state in (PeerState.LEAVING, PeerState.LEFT):
            return
        give_up_s = clock.monotonic() + (URGENT_HANDOVER_S if is_urgent else FINAL_HANDOVER_S)
        self.teller.free_from = self.engine.retire()
        farewell = PeerState.LEAVING if self.teller.free_from is None else PeerState.LEFT
        if is_finished:
            is_safe = await self._hand_over(give_up_s - clock.monotonic())
            if not is_safe and self._is_at_the_end():
                is_safe = await self._see_off((give_up_s - clock.monotonic()) / 2)  # a goodbye and our own copy follow
            if not is_safe:
                self._tell_unsafe()
        vitals.state = farewell
        with suppress(TimeoutError):
            async with asyncio.timeout((give_up_s - clock.monotonic()) / 2):
                await self._say_goodbye()
        is_last = not is_finished and self.membership.is_last_trainer()
        if is_last and not await self._hand_over(give_up_s - clock.monotonic()):
            self._tell_unsafe()
        with suppress(TimeoutError):
            async with asyncio.timeout(give_up_s - clock.monotonic()):
                await self.copy.save()

    async def _say_goodbye(self) -> None:
        """Again, where nobody has taken it: all who decide with us would wait for us, some of them for minutes."""
        for _ in range(GOODBYES):
            await self.membership.report()
            if self.membership.is_heard():
                return

    async def _hand_over(self, timeout_s: float) -> bool:
        """Our state to a backbone that is behind it, unless the swarm has gone on without us; whether one has it."""
        epoch, backbones = self.replica.epoch, self.membership.view.backbones(*PUBLISHING)
        if not self.replica.lineage or self.membership.is_out_of_step():
            return True
        vitals = self.teller.vitals
        behind = [record.peer for record in backbones if record.checkpoint_epoch < epoch]
        eval_epoch, found = vitals.evaluation_in(self.replica.era)
        eval_loss = found.loss if eval_epoch == epoch else math.nan
        offer = Offer(self.engine.fingerprint, epoch, eval_loss)
        return bool(backbones) and (not behind or await self._is_taken(behind, offer, timeout_s))

    def _tell_unsafe(self) -> None:
        """A backbone is there, and did not take what it should have."""
        if backbones := self.membership.view.backbones(*PUBLISHING):
            text = f"no backbone took our state of epoch {self.replica.epoch} in time"
            hint = f"the run will go on from epoch {max(record.checkpoint_epoch for record in backbones)}"
            self.ports.observer.observe(Notice(at_s=self.ports.clock.now(), text=text, hint=hint, is_problem=True))

    async def _is_taken(self, backbones: list[PeerId], offer: Offer, timeout_s: float) -> bool:
        return await offer_state(self.ports.transport, self.engine.links.timeouts, backbones, offer, timeout_s)

    def _is_at_the_end(self) -> bool:
        """Of the run; a trainer may also have reached an end of its own."""
        until = self.mandate.until_epoch
        return until is not None and self.replica.epoch >= until

    async def _see_off(self, timeout_s: float) -> bool:
        """Wait for those that have missed the last step, and for a backbone that may be about to start: once all who
        took the step are gone, nobody can give it to them. Whether a backbone has it.
        """
        epoch, membership, clock = self.replica.epoch, self.membership, self.ports.clock
        is_near = membership.without_backbone_s() <= BACKBONE_AWAY_S
        back_s = clock.monotonic() + (BACKBONE_STARTS_S if is_near else 0.0)
        is_safe, told = False, set[str]()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await membership.report()
                while (behind := membership.view.number_behind(epoch)) or (not is_safe and clock.monotonic() < back_s):
                    self._tell_once(behind, timeout_s if behind else BACKBONE_STARTS_S, told)
                    await asyncio.sleep(REFRESH_S)
                    await membership.look()
                    if not is_safe and clock.monotonic() < back_s:
                        is_safe = await self._hand_over(back_s - clock.monotonic())
        return is_safe

    def _tell_once(self, behind: int, limit_s: float, told: set[str]) -> None:
        """What is waited for, unless it is in ``told``."""
        text, hint = "the run is over, and no backbone has its end", "one may be about to start"
        if behind:
            text = f"the run is over; trainers that still need its last step from us: {behind}"
            hint = "no backbone is there that could give it"
        if (kind := "behind" if behind else "backbone") not in told:
            told.add(kind)
            hint = f"{hint}; this takes {limit_s:.0f} s at most"
            self.ports.observer.observe(Notice(at_s=self.ports.clock.now(), text=text, hint=hint))
