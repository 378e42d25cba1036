"""Handing out units of work to clients: one backbone does, whichever holds the publishing lease."""

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from collab.averaging.timeouts import MeasuredTimeouts
from collab.data.work_units import UnitLease, WorkUnits
from collab.errors import StateError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.parameter_store.base import Out, ParameterStore
from collab.swarm.parameter_store.calls import StoreCalls
from collab.swarm.unit_leases import OTHER_ERA, UNITS_PROTOCOL, Permit
from collab.types import PeerId

ASK_AGAIN_S = 1.0
"""A client for whom there is nothing now comes again after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run's units are."""

    fingerprint: str
    era: Callable[[], str]
    """Mark of the last rollback that we know of."""
    shards: int
    first_lease_s: float
    last_version: Callable[[], int | None]
    """Pushes after which the run is over; None: never."""


class UnitScheduler:
    """Of one backbone; it hands out units while it ``is_in_charge``, and else says who is."""

    def __init__(
        self,
        ports: Ports,
        plan: Plan,
        calls: StoreCalls,
        timeouts: MeasuredTimeouts,
        in_charge: Callable[[], PeerId | None],
    ) -> None:
        """
        Args:
            in_charge: who hands out units now; None: nobody.
        """
        self._ports, self._plan, self._calls, self._timeouts = ports, plan, calls, timeouts
        self._in_charge = in_charge
        self._looking = asyncio.Lock()
        self._units: WorkUnits | None = None
        """None: somebody else is in charge."""
        self._units_era = ""
        """Of these."""

    async def serve(self) -> None:
        """Begin to answer clients."""
        await self._ports.transport.serve(UNITS_PROTOCOL, self._answer)

    def forget(self) -> None:
        """What is done is not what it was: the store has begun anew, or has lost something."""
        self._units = None

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=self._timeouts.answer_s())
        try:
            answer = await self._answer_to(request, stream.remote)
        except StateError as error:
            answer = Message("refused", {"text": error.message})
        await stream.send(answer, timeout_s=self._timeouts.answer_s())

    async def _answer_to(self, request: Message, client: PeerId) -> Message:
        theirs = request.get("fingerprint", str)
        if theirs != self._plan.fingerprint:
            text = f"your run's fingerprint is {theirs}, this run's is {self._plan.fingerprint}"
            return Message("refused", {"text": text})
        chief = self._in_charge()
        if chief != self._ports.transport.peer_id:
            self._units = None  # whoever comes after us begins with what is done
            return Message("elsewhere", {"peer": chief or ""})
        async with self._looking:  # one after the other: until it is known what is done, nothing is handed out
            return await self._answer_of(request, client)

    async def _answer_of(self, request: Message, client: PeerId) -> Message:
        """Ours, who are in charge. What it promises is in the store before."""
        era = self._plan.era()
        if request.get("era", str) != era:
            return Message("refused", {"text": OTHER_ERA})
        store, version = await self._calls.ask(partial(self._opened, era))
        if version is None:
            return Message("refused", {"text": "no parameters yet"})
        if era != self._units_era:
            self._units, self._units_era = None, era
        units = await self._current(store)
        now_s = self._ports.clock.monotonic()
        if request.kind == "return":
            if (unit := units.give_back(request.get("lease", str), client)) is not None:
                await self._calls.ask(partial(store.note_back, unit))
        elif request.kind == "extend":
            longer = units.extend(request.get("lease", str), client, now_s)
            if longer is not None:
                await self._note_out(longer, store, now_s)
            return Message("extended", {"seconds": longer.until_s - now_s if longer else 0.0})
        elif not self._is_over(version):
            lease = units.take(client, now_s)
            if lease is not None:
                try:
                    await self._note_out(lease, store, now_s)
                except BaseException:
                    units.give_back(lease.lease, client)
                    raise
                return self._told(lease, era, now_s)
            if units.is_all_out:
                self.forget()  # all is done as far as we know, and it is not: see ``_current``
        return Message("nothing", {"is_over": self._is_over(version), "again_s": ASK_AGAIN_S})

    async def _note_out(self, lease: UnitLease, store: ParameterStore, now_s: float) -> None:
        """For whoever is in charge after us: our clock is not theirs, that of the swarm is."""
        at_s = self._ports.clock.now() - now_s
        out = Out(
            unit=lease.unit,
            lease=lease.lease,
            client=lease.client,
            began_at_s=at_s + lease.began_s,
            until_at_s=at_s + lease.until_s,
        )
        await self._calls.ask(partial(store.note_out, out))

    def _lease_of(self, out: Out) -> UnitLease:
        """That which somebody else has noted, or we have before we were started again."""
        at_s = self._ports.clock.now() - self._ports.clock.monotonic()
        return UnitLease(
            unit=out.unit,
            lease=out.lease,
            client=out.client,
            began_s=out.began_at_s - at_s,
            until_s=out.until_at_s - at_s,
        )

    def _is_over(self, version: int) -> bool:
        last = self._plan.last_version()
        return last is not None and version >= last

    def _opened(self, era: str) -> tuple[ParameterStore, int | None]:
        store = self._calls.of(era)
        return store, store.version()

    def _told(self, lease: UnitLease, era: str, now_s: float) -> Message:
        permit = Permit(self._plan.fingerprint, era, lease.unit, lease.lease, lease.client)
        return Message(
            "unit",
            {
                "pass": lease.unit.pass_number,
                "shard": lease.unit.shard,
                "lease": lease.lease,
                "seconds": lease.until_s - now_s,
                "permit": permit.packed(self._ports.keys),
            },
        )

    async def _current(self, store: ParameterStore) -> WorkUnits:
        """The units, with all that is done noted.

        A store that has come back without its last pushes has fewer of them than units that we know to be done: what
        is lost goes out again.
        """
        units = await self._noted(store)
        present = await self._calls.ask(store.version)
        if present is not None and units.num_done > present:
            self.forget()
            units = await self._noted(store)
        return units

    async def _noted(self, store: ParameterStore) -> WorkUnits:
        """The units as the store has them: what is done, and what is out, whoever has handed it out."""
        if (units := self._units) is not None:
            await self._note(units, store, {lease.unit.pass_number for lease in units.out()})
            return units
        plan = self._plan
        units = WorkUnits(shards=plan.shards, passes=self._passes(), first_s=plan.first_lease_s, name=self._name)
        self._units = units
        try:
            passes = await self._calls.ask(store.passes)
            units.note_settled(passes.start)
            await self._note(units, store, passes)
            for out in await self._calls.ask(store.out):
                units.note_out(self._lease_of(out))
        except BaseException:
            self.forget()  # the next question begins with what is done, too
            raise
        return units  # if they were forgotten meanwhile: what goes out of them may be done twice, and counts once

    async def _note(self, units: WorkUnits, store: ParameterStore, passes: Collection[int]) -> None:
        for number in sorted(number for number in passes if number <= self._passes()):
            done = await self._calls.ask(partial(store.done, number))
            if done is None:
                units.note_settled(number + 1)
            else:
                units.note_all_done(number, done, self._ports.clock.monotonic())

    def note_brought(self, client: PeerId) -> None:
        """A push of this client counts; one who was at work before we were in charge is known by that."""
        if self._units is not None:
            self._units.note_brought(client, self._ports.clock.monotonic())

    def _passes(self) -> int:
        last = self._plan.last_version()
        return 1 << 40 if last is None else max(math.ceil(last / self._plan.shards), 1)

    def _name(self) -> str:
        return f"{self._ports.rng.getrandbits(128):032x}"
