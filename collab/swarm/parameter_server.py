"""Giving parameters to clients, and taking what they have come to; any backbone with the store does."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from collab.averaging.flow import kept_alive
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadMessage, NetworkError, StateError
from collab.net.base import Stream
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.parameter_store.base import Assimilated, ParameterStore, Push, Verdict
from collab.swarm.parameter_store.calls import StoreCalls
from collab.swarm.places import Places
from collab.swarm.unit_leases import LARGEST_NUMBER, OTHER_ERA, PARAMETERS_PROTOCOL, Permit, unpack_permit
from collab.types import PeerId

MOST_PUSHES = 4
"""That come in at once; each has a vector in memory. More wait their turn, and hear that we are there."""
MOST_PULLS = 8
"""That go out at once, likewise. So many divide the uplink: each gets a piece within its time from 40 kB/s in all."""
MOST_EACH = 2
"""Of either, for one client: one that is begun anew, and the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a run makes of pushes."""

    fingerprint: str
    era: Callable[[], str]
    """Mark of the last rollback that we know of."""
    alpha: Callable[[int], float]
    """What is kept of what is stored, by pass."""
    max_staleness: int | None
    is_scheduler: Callable[[PeerId], bool]
    """Whose permits count."""


class ParameterServer:
    """Of one backbone."""

    def __init__(
        self,
        ports: Ports,
        rules: Rules,
        calls: StoreCalls,
        timeouts: MeasuredTimeouts,
        on_taken: Callable[[PeerId], None] = lambda _: None,
    ) -> None:
        """
        Args:
            on_taken: hears whose push counts.
        """
        self._on_taken = on_taken
        self._ports, self._rules, self._calls, self._timeouts = ports, rules, calls, timeouts
        self._pushes, self._pulls = Places(MOST_PUSHES, MOST_EACH), Places(MOST_PULLS, MOST_EACH)
        self._bytes = 0
        self.taken = 0
        """Pushes that this server has mixed in."""

    async def serve(self) -> None:
        """Begin to answer clients."""
        await self._ports.transport.serve(PARAMETERS_PROTOCOL, self._answer)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=self._timeouts.answer_s())
        if request.get("fingerprint", str) != self._rules.fingerprint:
            await self._refuse(stream, f"this run's fingerprint is {self._rules.fingerprint}")
            return
        try:
            if request.kind == "pull":
                store = await self._store_of(request.get("era", str))
                await self._give(stream, store, request.get("known", int))
            elif request.kind == "push":
                async with kept_alive(stream, self._timeouts), self._pushes.taken_by(stream.remote):
                    await self._take(stream, request)
            else:
                raise BadMessage(f"neither a pull nor a push: {request.kind}")
        except StateError as error:
            await self._refuse(stream, error.message)

    async def _store_of(self, era: str) -> ParameterStore:
        """That of an era. What comes late goes into the one that it was begun with, also after a rollback.

        Raises:
            StateError: it is not the present one, as far as we know; or it does not answer.
        """
        if era != self._rules.era():
            raise StateError(OTHER_ERA)
        return await self._calls.ask(partial(self._calls.of, era))

    async def _give(self, stream: Stream, store: ParameterStore, known: int) -> None:
        """A pull, which has its place until the client has everything, and closes the stream."""
        version = await self._calls.ask(store.version)
        if version is None or version <= known:
            await self._unchanged(stream)
            return
        async with AsyncExitStack() as until_theirs:
            async with kept_alive(stream, self._timeouts):  # until the first piece: no word may be between them
                await until_theirs.enter_async_context(self._pulls.taken_by(stream.remote))
                stored = await self._calls.ask(partial(store.read, known if known >= 0 else None))
            if stored is None:  # the store has been put back while we waited
                await self._unchanged(stream)
                return
            data = memoryview(np.ascontiguousarray(stored.values, "<f4").data).cast("B")
            about = {"version": stored.version, "num_bytes": len(data)}
            await stream.send(Message("parameters", about), timeout_s=self._timeouts.answer_s())
            await send_bytes(stream, data, timeout_s=self._timeouts.part_s)
            with suppress(NetworkError, TimeoutError):  # what has left us may lie in buffers, but not for ever
                async with asyncio.timeout(self._timeouts.fixed.stalled_s):
                    while (await stream.receive(timeout_s=self._timeouts.part_s)).kind == "wait":
                        pass

    async def _unchanged(self, stream: Stream) -> None:
        await stream.send(Message("unchanged"), timeout_s=self._timeouts.answer_s())

    async def _take(self, stream: Stream, request: Message) -> None:
        """A push. Whether it would count is seen before it is sent."""
        permit, based_on = self._permit(request, stream.remote), request.get("based_on", int)
        if not 0 <= based_on <= LARGEST_NUMBER:
            raise BadMessage(f"a push based on version {based_on}")
        store = await self._store_of(permit.era)
        done = await self._calls.ask(partial(store.done, permit.unit.pass_number))
        if done is None or permit.unit.shard in done:
            is_again = done is not None and done[permit.unit.shard] == permit.lease
            verdict = Verdict.AGAIN if is_again else Verdict.DONE
            version = await self._calls.ask(store.version)
            await self._tell(stream, Assimilated(verdict, version or 0, 0))
            return
        if not self._rules.is_scheduler(PeerId(request.get("scheduler", str))):  # it may have left before we came
            await self._tell(stream, Assimilated(Verdict.REFUSED, 0, 0))
            return
        num_bytes = await self._num_bytes(store)
        await stream.send(Message("send", {"num_bytes": num_bytes}), timeout_s=self._timeouts.answer_s())
        data = await receive_bytes(stream, num_bytes, timeout_s=self._timeouts.part_s)
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            await self._tell(stream, Assimilated(Verdict.REFUSED, 0, 0))
            return
        push = Push(
            unit=permit.unit,
            lease=permit.lease,
            values=values,
            based_on=based_on,
            alpha=self._rules.alpha(permit.unit.pass_number),
            max_staleness=self._rules.max_staleness,
        )
        answer = await self._calls.ask(partial(store.assimilate, push))
        if answer.verdict is Verdict.TAKEN:
            self.taken += 1
            self._on_taken(permit.client)
        await self._tell(stream, answer)

    async def _num_bytes(self, store: ParameterStore) -> int:
        """Of the vector, which never changes.

        Raises:
            StateError: there is nothing yet.
        """
        if not self._bytes:
            stored = await self._calls.ask(store.read)
            if stored is None:
                raise StateError("no parameters yet")
            self._bytes = stored.values.nbytes
        return self._bytes

    def _permit(self, request: Message, client: PeerId) -> Permit:
        scheduler = PeerId(request.get("scheduler", str))
        permit = unpack_permit(request.get("permit", bytes), scheduler)
        if permit.fingerprint != self._rules.fingerprint or permit.client != client:
            raise BadMessage(f"the unit lease is of {permit.client}, in the run {permit.fingerprint}")
        return permit

    async def _tell(self, stream: Stream, answer: Assimilated) -> None:
        fields = {"verdict": answer.verdict.value, "version": answer.version, "staleness": answer.staleness}
        await stream.send(Message("answer", fields), timeout_s=self._timeouts.answer_s())

    async def _refuse(self, stream: Stream, text: str) -> None:
        await stream.send(Message("refused", {"text": text}), timeout_s=self._timeouts.answer_s())
