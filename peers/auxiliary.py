"""The auxiliary role: lends bandwidth to rounds, holds no model."""

import asyncio
import math
from dataclasses import dataclass

from collab.averaging.assistant import Assistant, assisting_engine
from collab.concurrency import run_until_first
from collab.errors import Dismissed
from collab.ports import Ports
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.order_exchange import OrderExchange
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.swarm.time_sync import serve_time
from collab.training.dismissal import LOOK_S, dismissal, tell_of_end
from collab.types import Role
from peers.credible import Credible
from peers.reporting import Reporter


@dataclass(frozen=True, slots=True)
class AuxiliarySettings:
    """What is this machine's own business."""

    name: str


class Auxiliary:
    """One auxiliary peer over the ports."""

    def __init__(self, ports: Ports, identity: Identity, bundle: Bundle, settings: AuxiliarySettings) -> None:
        self._ports, self._bundle, self._settings = ports, bundle, settings
        self._state = PeerState.SERVING
        self._free_from: int | None = None
        self.dismissed: Dismissed | None = None
        """Why we stop by ourselves."""
        self.statutes = Statutes(ports, bundle)
        board = ProgressBoard(ports, identity, bundle.fingerprint, self.statutes)
        self.membership = Membership(board, ports.clock, self.record)
        self.assistant = Assistant(self.membership.knows)
        self._engine = assisting_engine(ports, self.statutes, self.membership, self.assistant)
        mandate, rounds, trusts = self.statutes.mandate, self._engine.known_records, self.statutes.trusts_backbone
        credible = Credible(bundle.run, lambda: mandate.era, rounds, trusts=trusts)
        self.reporter = Reporter(ports.observer, mandate, self.membership, credible)
        self._orders = OrderExchange(ports, self.statutes.mandate, lambda: self.membership.view, None)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` or until the run is finished.

        Raises:
            Dismissed: we are banned, not invited any more, or too old, or nobody runs the run any more.
        """
        await self._orders.serve()
        await serve_time(self._ports.transport, self._ports.clock)
        await serve_bundle(self._ports.transport, self._bundle)
        await self._engine.serve()
        await self.membership.report()
        await run_until_first(
            self.membership.keep_alive(),
            self.assistant.run(self._engine),
            self._orders.run(),
            self._watch(),
            stop.wait(),
        )
        self._free_from = self._engine.retire()
        self._state = PeerState.LEAVING if self._free_from is None else PeerState.LEFT
        await self.membership.report()
        if self.dismissed is not None:
            raise self.dismissed

    async def _watch(self) -> None:
        """Report where the swarm stands; returns when the run has reached its last epoch, or wants us no more."""
        told_at = -math.inf
        while True:
            until, history = self.statutes.mandate.until_epoch, self.reporter.report(self.membership.view)
            if until is not None and self.membership.view.is_over(until):
                return
            epoch = history[0] if history is not None else 0
            self.dismissed = dismissal(self._ports, self.statutes, self.membership, epoch)
            if self.dismissed is not None:
                return
            told_at = tell_of_end(self._ports, self.statutes, told_at)
            await asyncio.sleep(LOOK_S)

    def record(self) -> PeerRecord:
        """Our word to the swarm, as of now."""
        return PeerRecord(
            peer=self._ports.transport.peer_id,
            fingerprint=self._bundle.fingerprint,
            name=self._settings.name,
            role=Role.AUXILIARY,
            state=self._state,
            can_be_dialled=True,
            epoch=self._free_from or 0,
            said_at=self._ports.clock.now(),
            has_seat=self._engine.has_any_seat,
        )
