"""How a trainer leaves: its votes closed, its state in safe hands, its goodbye said."""

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.round import RoundEngine
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.handover import Offer, offer_state
from collab.swarm.mandate import Mandate
from collab.swarm.membership import REFRESH_S, Membership
from collab.swarm.records import PeerState
from collab.training.disk_copy import DiskCopy
from collab.training.replica import Replica
from collab.training.teller import Teller
from collab.types import PeerId

URGENT_HANDOVER_S = 2.0
"""For the last trainer to hand its state to a backbone when it is asked to leave."""
FINAL_HANDOVER_S = 120.0
"""The same when the run is finished and nobody is in a hurry."""


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
                await self._see_off((give_up_s - clock.monotonic()) / 2)  # a goodbye and our own copy follow
        vitals.state = farewell
        with suppress(TimeoutError):
            async with asyncio.timeout((give_up_s - clock.monotonic()) / 2):
                await self.membership.report()
        if not is_finished and self.membership.is_last_trainer():
            await self._hand_over(give_up_s - clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(give_up_s - clock.monotonic()):
                await self.copy.save()

    async def _hand_over(self, timeout_s: float) -> bool:
        """Our state to a backbone that is behind it, unless the swarm has gone on without us; whether one has it."""
        epoch, backbones = self.replica.epoch, self.membership.backbones()
        if not self.replica.lineage or self.membership.is_out_of_step():
            return True
        vitals = self.teller.vitals
        behind = [record.peer for record in backbones if record.checkpoint_epoch < epoch]
        eval_loss = vitals.evaluation.loss if vitals.eval_epoch == epoch else math.nan
        offer = Offer(self.engine.fingerprint, epoch, eval_loss)
        if not behind or await self._is_taken(behind, offer, timeout_s):
            return bool(backbones)
        text = f"no backbone took our state of epoch {epoch} in time"
        hint = f"the run will go on from epoch {max(record.checkpoint_epoch for record in backbones)}"
        self.ports.observer.observe(Notice(at_s=self.ports.clock.now(), text=text, hint=hint, is_problem=True))
        return False

    async def _is_taken(self, backbones: list[PeerId], offer: Offer, timeout_s: float) -> bool:
        return await offer_state(self.ports.transport, self.engine.links.timeouts, backbones, offer, timeout_s)

    def _is_at_the_end(self) -> bool:
        """Of the run; a trainer may also have reached an end of its own."""
        until = self.mandate.until_epoch
        return until is not None and self.replica.epoch >= until

    async def _see_off(self, timeout_s: float) -> None:
        """Wait for those that have missed the last step: once all who took it are gone, nobody can give it to them."""
        epoch, membership, is_told = self.replica.epoch, self.membership, False
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await membership.report()
                while behind := membership.view.number_behind(epoch):
                    if not is_told:
                        text = f"the run is over; trainers that still need its last step from us: {behind}"
                        hint = f"no backbone is there that could give it; this takes {timeout_s:.0f} s at most"
                        self.ports.observer.observe(Notice(at_s=self.ports.clock.now(), text=text, hint=hint))
                        is_told = True
                    await asyncio.sleep(REFRESH_S)
                    await membership.look()
