"""Who asks too much of us, or the wrong thing, is refused at once and counted: for every protocol in one place.

The guard wraps a transport. A stream that one peer has too many of, or opens too soon, is closed before its handler
runs; a handler that a peer's message ends is counted against that peer. Nobody else notices any of it.
"""

import logging
import math
from collections import OrderedDict
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed, TooMany, VersionMismatch
from collab.metrics.records import Event, PeerRefused
from collab.net.around import AroundStream, AroundTransport
from collab.net.base import Handler, Stream, Transport
from collab.net.buckets import Bucket
from collab.net.greeting import GREETING, barred_message, credential_in
from collab.net.quotas import FOR_GUESTS, LIMITS, SMALL_BYTES, Limits, Quota
from collab.net.wire import Message
from collab.ports import Clock, Entrance, Observer
from collab.swarm.order_exchange import ORDERS_PROTOCOL
from collab.swarm.time_sync import PROTOCOL as TIME_PROTOCOL
from collab.types import PeerId

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""For a peer's first word, where nobody comes in without one."""
EXCEPTIONS = frozenset(
    {("banned", ORDERS_PROTOCOL), ("pass_expired", TIME_PROTOCOL), *(("guest", protocol) for protocol in FOR_GUESTS)}
)
"""What the banned may still ask for: the organiser's word that they are. Whose clock is wrong: the time. And guests."""
ASKED_AGAIN_S = 30.0
"""So often the door is asked about a peer whose stream stays open."""
SAME_S = 5.0
"""A round tells of what it refuses before the handler ends, by no more than an answer takes: one offence, not two."""
UNKNOWN_EPOCH = -1


class _Use:
    """What one peer does under one protocol."""

    __slots__ = ("messages", "num_open", "streams")

    def __init__(self, quota: Quota, now_s: float) -> None:
        self.num_open = 0
        self.streams, self.messages = Bucket(quota.streams, now_s), Bucket(quota.messages, now_s)


@dataclass(slots=True, eq=False)
class _Visitor:
    """One peer."""

    offences: Bucket
    uses: dict[str, _Use] = field(default_factory=dict)
    num_open: int = 0
    shut_out_until_s: float = -math.inf
    quiet_since_s: float = -math.inf


@dataclass(slots=True, eq=False)
class _Visit:
    """One stream that is being served."""

    peer: PeerId
    told_s: float = -math.inf
    """When whoever serves it last told of a refusal of this peer."""


_visit: ContextVar[_Visit | None] = ContextVar("visit", default=None)


class Guard:
    """Keeps one peer's visitors within their quotas; implements ``Observer``, so that it knows what others refuse."""

    def __init__(
        self, clock: Clock, observer: Observer, limits: Limits = LIMITS, entrance: Entrance | None = None
    ) -> None:
        """
        Args:
            observer: is told of every refusal, and of all else that happens.
            entrance: says who may come in at all; None: everybody.
        """
        self._clock, self._observer, self._limits = clock, observer, limits
        self._entrance = entrance or Entrance()
        self._refill_s = limits.refill_s()
        self._here: dict[PeerId, _Visitor] = {}
        """With open streams: no more than there are streams."""
        self._quiet: OrderedDict[PeerId, _Visitor] = OrderedDict()

    @property
    def num_known(self) -> int:
        """Peers of which something is remembered."""
        return len(self._here) + len(self._quiet)

    def observe(self, event: Event) -> None:
        """Pass ``event`` on, and note who is refused by whom we serve."""
        visit = _visit.get()
        if isinstance(event, PeerRefused) and visit is not None and visit.peer == event.peer:
            visit.told_s = self._clock.monotonic()
        self._observer.observe(event)

    async def attend(self, protocol: str, handler: Handler, stream: Stream) -> None:
        """Serve ``stream`` with ``handler``, if its peer keeps within its quota; else return at once."""
        peer, quota = stream.remote, self._limits.of(protocol)
        visitor = self._visitor(peer)
        use = visitor.uses.get(protocol)
        if use is None:
            use = visitor.uses[protocol] = _Use(quota, self._clock.monotonic())
        refusal = self._refusal(visitor, use, quota)
        if refusal:
            self._refuse(peer, refusal, f"a stream of {protocol} is refused")
            if refusal != "shut_out":
                self._offended(peer, visitor, refusal)
            return
        self._enter(peer, visitor, use)
        visit = _Visit(peer)
        _visit.set(visit)  # in this stream's own task, and in all that it starts
        counted = _CountedStream(stream, protocol, use, self._clock, self._entrance)
        try:
            if not await self._is_barred(protocol, counted):
                await handler(counted)
        except Exception as error:
            self._note(visit, visitor, protocol, error)
            raise
        finally:
            self._leave(peer, visitor, use)

    # -- who is here -------------------------------------------------------------------------------------------------

    def _visitor(self, peer: PeerId) -> _Visitor:
        visitor = self._here.get(peer) or self._quiet.get(peer)
        if visitor is None:
            visitor = _Visitor(Bucket(self._limits.offences, self._clock.monotonic()))
        if not visitor.num_open:
            self._keep(peer, visitor)
        return visitor

    def _keep(self, peer: PeerId, visitor: _Visitor) -> None:
        """Remember one without open streams, instead of who has been quiet for longest, and of whom may do everything
        again as if it had never been here.
        """
        visitor.quiet_since_s = now_s = self._clock.monotonic()
        self._quiet[peer] = visitor
        self._quiet.move_to_end(peer)
        while len(self._quiet) > self._limits.quiet_peers or self._is_as_new(next(iter(self._quiet.values())), now_s):
            self._quiet.popitem(last=False)

    def _is_as_new(self, visitor: _Visitor, now_s: float) -> bool:
        """Whether all its buckets are full again, and nothing else is held against it."""
        return now_s - visitor.quiet_since_s > self._refill_s and now_s >= visitor.shut_out_until_s

    def _enter(self, peer: PeerId, visitor: _Visitor, use: _Use) -> None:
        use.num_open += 1
        visitor.num_open += 1
        self._quiet.pop(peer, None)
        self._here[peer] = visitor

    def _leave(self, peer: PeerId, visitor: _Visitor, use: _Use) -> None:
        use.num_open -= 1
        visitor.num_open -= 1
        if not visitor.num_open:
            del self._here[peer]
            self._keep(peer, visitor)

    # -- refusing ----------------------------------------------------------------------------------------------------

    async def _is_barred(self, protocol: str, stream: "_CountedStream") -> bool:
        """Ask the door, where it is closed with what the peer says first; whoever is barred is told why."""
        door = self._entrance.door
        if door is None:
            return False
        if door.is_closed:
            await stream.listen(timeout_s=GREETING_S)
        barred = door.barred(stream.remote, stream.credential)
        if barred is None or (barred.reason, protocol) in EXCEPTIONS:
            return False
        self._refuse(stream.remote, barred.reason, f"a stream of {protocol} is refused: {barred.text}")
        with suppress(NetworkError):
            await stream.send(barred_message(barred), timeout_s=GREETING_S)
            await stream.receive(timeout_s=GREETING_S)  # it has heard, and closes
        return True

    def _refusal(self, visitor: _Visitor, use: _Use, quota: Quota) -> str:
        """Why one more stream is too many; empty: it is not."""
        now_s = self._clock.monotonic()
        if now_s < visitor.shut_out_until_s:
            return "shut_out"
        if use.num_open >= quota.open_streams:
            return "too_many_streams"
        return "" if use.streams.take(now_s) else "streams_too_often"

    def _note(self, visit: _Visit, visitor: _Visitor, protocol: str, error: Exception) -> None:
        """Count what ended a handler, unless it is nobody's fault or has been told of."""
        reason = reason_of(error)
        if not reason:
            return
        if self._clock.monotonic() - visit.told_s > SAME_S:
            self._refuse(visit.peer, reason, f"over {protocol}: {error}")
        if not isinstance(error, VersionMismatch):  # it comes again until somebody has upgraded, and is to be told
            self._offended(visit.peer, visitor, reason)

    def _offended(self, peer: PeerId, visitor: _Visitor, reason: str) -> None:
        """Hear nothing new for a while from a peer that keeps on."""
        now_s = self._clock.monotonic()
        if visitor.offences.take(now_s) or now_s < visitor.shut_out_until_s:
            return
        visitor.shut_out_until_s = now_s + self._limits.shut_out_s
        text = f"nothing new is heard from it for {self._limits.shut_out_s:.0f} s; its last offence: {reason}"
        self._refuse(peer, "shut_out", text)
        visitor.offences = Bucket(self._limits.offences, visitor.shut_out_until_s)

    def _refuse(self, peer: PeerId, reason: str, text: str) -> None:
        refused = PeerRefused(at_s=self._clock.now(), epoch=UNKNOWN_EPOCH, peer=peer, reason=reason, text=text)
        self._observer.observe(refused)


def reason_of(error: BaseException) -> str:
    """One word for counters; empty for what happens to honest peers: streams that break, and time that runs out."""
    if isinstance(error, VersionMismatch):
        return "version_mismatch"
    if isinstance(error, BadMessage | BadPart):
        return str(getattr(error, "reason", "bad_message"))
    return "" if isinstance(error, NetworkError) else "handler_failed"


class _CountedStream(AroundStream):
    """Implements ``Stream``: small messages of one peer, of which there can be too many, after its greeting."""

    def __init__(self, stream: Stream, protocol: str, use: _Use, clock: Clock, entrance: Entrance) -> None:
        super().__init__(stream)
        self._protocol = protocol
        self._use, self._clock, self._entrance = use, clock, entrance
        self._asked = entrance.changes, clock.monotonic()
        self._first: Message | None = None
        """Heard before the handler asks for it."""
        self._is_greeted = False
        self.credential = b""
        """What the peer has shown on this stream."""

    async def listen(self, *, timeout_s: float) -> None:
        """Hear the peer's first word; if that is a greeting, only that."""
        message = await self._receive(timeout_s=timeout_s)
        self._is_greeted = True
        if message.kind == GREETING:
            self.credential = credential_in(message)
        else:
            self._first = message

    async def receive(self, *, timeout_s: float) -> Message:
        if not self._is_greeted:
            await self.listen(timeout_s=timeout_s)
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._receive(timeout_s=timeout_s)

    async def _receive(self, *, timeout_s: float) -> Message:
        message = await super().receive(timeout_s=timeout_s)
        if len(message.payload) < SMALL_BYTES and not self._use.messages.take(self._clock.monotonic()):
            self.close()
            raise TooMany(f"{self.remote} sends more small messages than any honest peer")
        await self._ask_again()
        return message

    async def _ask_again(self) -> None:
        """Whether the peer may still be here: it may have been banned, and its invite may have ended."""
        changes, asked_s = self._asked
        now_s, door = self._clock.monotonic(), self._entrance.door
        if door is None or (changes == self._entrance.changes and now_s - asked_s < ASKED_AGAIN_S):
            return
        self._asked = self._entrance.changes, now_s
        barred = door.barred(self.remote, b"")
        if barred is not None and (barred.reason, self._protocol) not in EXCEPTIONS:
            with suppress(NetworkError):
                await self.send(barred_message(barred), timeout_s=GREETING_S)
            self.close()
            raise StreamClosed(f"{self.remote} may not be here any more: {barred.text}")


class GuardedTransport(AroundTransport):
    """Implements ``Transport``: another one, whose visitors a guard attends to; streams that we open are our own."""

    def __init__(self, outer: Transport, guard: Guard) -> None:
        super().__init__(outer)
        self._guard = guard

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def guarded(stream: Stream) -> None:
            if stream.remote == self.peer_id:
                await handler(stream)
            else:
                await self._guard.attend(protocol, handler, stream)

        await super().serve(protocol, guarded)
