"""The auxiliary role: lends bandwidth to rounds, holds no model."""

import asyncio
from dataclasses import dataclass

from collab.averaging.assistant import Assistant, assisting_engine
from collab.concurrency import run_until_first
from collab.ports import Ports
from collab.swarm.bundle import Bundle, serve_bundle
from collab.swarm.identity import Identity
from collab.swarm.membership import Membership
from collab.swarm.progress import ProgressBoard
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.time_sync import serve_time
from collab.types import Role


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
        self.membership = Membership(ProgressBoard(ports, identity, bundle.fingerprint), ports.clock, self.record)
        self.assistant = Assistant(self.membership.knows)
        self._engine = assisting_engine(ports, bundle, self.membership, self.assistant)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` or until the run is finished."""
        await serve_time(self._ports.transport, self._ports.clock)
        await serve_bundle(self._ports.transport, self._bundle)
        await self._engine.serve()
        await self.membership.report()
        await run_until_first(
            self.membership.keep_alive(), self.assistant.run(self._engine), self._finished(), stop.wait()
        )
        self._free_from = self._engine.retire()
        self._state = PeerState.LEAVING if self._free_from is None else PeerState.LEFT
        await self.membership.report()

    async def _finished(self) -> None:
        """Returns when the run has reached its last epoch."""
        until = self._bundle.run.until_epoch
        while True:
            if until is not None and self.membership.view.is_over(until):
                return
            await asyncio.sleep(1.0)

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
