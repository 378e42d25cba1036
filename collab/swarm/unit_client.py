"""A client's questions to whoever hands out units, and to the parameter servers."""


from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from collab.averaging.flow import kept_alive
from collab.averaging.timeouts import MeasuredTimeouts
from collab.data.work_units import Unit
from collab.errors import BadMessage, NetworkError, PeerUnreachable
from collab.net.base import Stream
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.parameter_store.base import Assimilated, Stored, Verdict
from collab.swarm.unit_leases import LARGEST_NUMBER, PARAMETERS_PROTOCOL, UNITS_PROTOCOL
from collab.types import PeerId, Vector

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A unit that is ours."""

    unit: Unit
    lease: str
    seconds: float
    """Until others get it, unless we ask for longer."""
    permit: bytes
    scheduler: PeerId
    era: str
    """Mark of the last rollback that both knew of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingNow:
    """There is no unit for us."""

    is_over: bool
    """And there never will be: the run is."""
    again_s: float


class UnitClient:
    """Asks the backbones, one after the other until one answers."""

    def __init__(
        self,
        ports: Ports,
        fingerprint: str,
        num_elements: int,
        servers: Callable[[], Sequence[PeerId]],
        timeouts: MeasuredTimeouts,
        era: Callable[[], str] = lambda: "",
    ) -> None:
        """
        Args:
            era: mark of the last rollback that we know of.
        """
        self._ports, self._fingerprint, self._num_elements = ports, fingerprint, num_elements
        self._servers, self._timeouts, self.era = servers, timeouts, era
        self._chief: PeerId | None = None
        """Who handed out the last unit."""

    # -- units -------------------------------------------------------------------------------------------------------

    async def take(self) -> Granted | NothingNow:
        """A unit to work on.

        Raises:
            NetworkError: nobody who hands out units answers.
        """
        era = self.era()
        scheduler, answer = await self._ask("take", era)
        if answer.kind == "nothing":
            again_s = min(max(answer.get("again_s", float), 0.1), 60.0)
            return NothingNow(is_over=answer.get("is_over", bool), again_s=again_s)
        if answer.kind != "unit":
            raise BadMessage(f"{scheduler} answers {answer.kind}, and not with a unit")
        unit = Unit(answer.get("pass", int), answer.get("shard", int))
        if not (1 <= unit.pass_number <= LARGEST_NUMBER and 0 <= unit.shard <= LARGEST_NUMBER):
            raise BadMessage(f"{scheduler} hands out {unit}")
        return Granted(
            unit=unit,
            lease=answer.get("lease", str),
            seconds=answer.get("seconds", float),
            permit=answer.get("permit", bytes),
            scheduler=scheduler,
            era=era,
        )

    async def give_back(self, granted: Granted) -> None:
        """Somebody else may have it at once. Raises ``NetworkError`` as ``take`` does."""
        await self._ask("return", granted.era, lease=granted.lease)

    async def extend(self, granted: Granted) -> float:
        """Seconds for which it is still ours; 0: it is not any more. Raises ``NetworkError`` as ``take`` does."""
        _, answer = await self._ask("extend", granted.era, lease=granted.lease)
        return answer.get("seconds", float)

    async def _ask(self, kind: str, era: str, **fields: str) -> tuple[PeerId, Message]:
        """The answer of whoever is in charge, and who that is."""
        reasons, asked = ["no backbone is there"], set[PeerId]()
        wanted = [*([self._chief] if self._chief is not None else []), *self._shuffled()]
        while wanted:
            peer = wanted.pop(0)
            if peer in asked:
                continue
            asked.add(peer)
            try:
                question = Message(kind, {"fingerprint": self._fingerprint, "era": era, **fields})
                with self._timeouts.asking(peer) as limit_s:
                    async with self._stream(peer, UNITS_PROTOCOL) as stream:
                        await stream.send(question, timeout_s=limit_s)
                        answer = await stream.receive(timeout_s=limit_s)
            except NetworkError as error:
                reasons.append(f"{peer}: {error.message}")
                continue
            if answer.kind == "elsewhere":
                reasons.append(f"{peer} is not in charge")
                if chief := answer.get("peer", str):
                    wanted.insert(0, PeerId(chief))
            elif answer.kind == "refused":
                reasons.append(f"{peer}: {answer.get('text', str)}")
            else:
                self._chief = peer
                return peer, answer
        self._chief = None
        raise PeerUnreachable("nobody hands out units: " + "; ".join(reasons[1:] or reasons))

    # -- parameters --------------------------------------------------------------------------------------------------

    async def pull(self, known: int | None, era: str) -> Stored | None:
        """The servers' parameters since the rollback of this mark; None: they are still of version ``known``.

        Raises:
            NetworkError: no server gives them.
        """

        async def ask(stream: Stream) -> Stored | None:
            which = {"era": era, "known": -1 if known is None else known}
            await self._send(stream, Message("pull", {"fingerprint": self._fingerprint, **which}))
            answer = await self._answer(stream)
            if answer.kind == "unchanged":
                return None
            version, num_bytes = answer.get("version", int), answer.get("num_bytes", int)
            if num_bytes != 4 * self._num_elements or not 0 <= version <= LARGEST_NUMBER:
                raise BadMessage(f"version {version} of {num_bytes} bytes for {self._num_elements} parameters")
            async with kept_alive(stream, self._timeouts):
                data = await receive_bytes(stream, num_bytes, timeout_s=self._timeouts.part_s)
            values = np.frombuffer(data, "<f4")
            if not np.isfinite(values).all():
                raise BadMessage(f"the parameters of {stream.remote} have NaN or Inf")
            return Stored(version, values)

        return await self._of_a_server(ask)

    async def push(self, granted: Granted, values: Vector, based_on: int) -> Assimilated:
        """Bring what a unit has come to; may be repeated as often as need be.

        Raises:
            NetworkError: no server takes it, or it is not known whether one has.
        """

        async def ask(stream: Stream) -> Assimilated:
            about = {"scheduler": granted.scheduler, "permit": granted.permit, "based_on": based_on}
            await self._send(stream, Message("push", {"fingerprint": self._fingerprint, **about}))
            answer = await self._answer(stream)
            if answer.kind == "send":
                data = memoryview(np.ascontiguousarray(values, "<f4").data).cast("B")
                await send_bytes(stream, data, timeout_s=self._timeouts.part_s)
                answer = await self._answer(stream)
            try:
                verdict = Verdict(answer.get("verdict", str))
            except ValueError as error:
                raise BadMessage(f"{stream.remote} answers a push: {error}") from error
            return Assimilated(verdict, answer.get("version", int), answer.get("staleness", int))

        return await self._of_a_server(ask)

    async def _of_a_server(self, ask: Callable[[Stream], Awaitable[T]]) -> T:
        reasons: list[str] = []
        for peer in self._shuffled():
            try:
                async with self._stream(peer, PARAMETERS_PROTOCOL) as stream:
                    return await ask(stream)
            except NetworkError as error:
                reasons.append(f"{peer}: {error.message}")
        raise PeerUnreachable("no parameter server: " + ("; ".join(reasons) or "no backbone is there"))

    async def _answer(self, stream: Stream) -> Message:
        while (answer := await stream.receive(timeout_s=self._timeouts.part_s)).kind == "wait":
            pass
        if answer.kind == "refused":
            raise PeerUnreachable(answer.get("text", str))
        return answer

    # -- both --------------------------------------------------------------------------------------------------------

    def _shuffled(self) -> list[PeerId]:
        """So that clients spread over the servers."""
        servers = list(self._servers())
        self._ports.rng.shuffle(servers)
        return servers

    async def _send(self, stream: Stream, message: Message) -> None:
        await stream.send(message, timeout_s=self._timeouts.answer_s(stream.remote))

    @asynccontextmanager
    async def _stream(self, peer: PeerId, protocol: str) -> AsyncIterator[Stream]:
        stream = await self._ports.transport.open(peer, protocol, timeout_s=self._timeouts.answer_s(peer))
        try:
            yield stream
        finally:
            stream.close()
