"""The exchange of one round: every contributor sends each reducer its span, and gets the mean of that span back.

Both directions of every link are busy from the first part to the last: a part is reduced and returned as soon as all
contributors' copies of it have come, and all peers go through their spans at the same pace, so that nobody waits for a
phase to end. What leaves a peer is one queue (``uplink``), in the order of the parts' places in their spans.
Source: butterfly all-reduce as in Moshpit SGD (Ryabinin et al., NeurIPS 2021) and DeDLOC (Diskin et al., 2021).
"""

import asyncio
from dataclasses import dataclass

from collab.averaging.buffers import Buffers
from collab.averaging.encodings import Encodings
from collab.averaging.exchange import Exchange, SpanFlow
from collab.averaging.flow import Inflow, Links, Outflow, kept_alive
from collab.averaging.messages import PARTS_PROTOCOL, Group
from collab.averaging.plan import Span
from collab.averaging.reducer import Hosted, Reducer
from collab.averaging.reduction import SenderFailed
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed, TimedOut
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import AnyVector, PeerId


class ExchangeFailed(Exception):
    """The exchange cannot be completed with this group.

    ``culprits`` names the peers to go on without: they were silent, gone, or sent what cannot be used.
    """

    def __init__(self, culprits: tuple[PeerId, ...], reason: str, text: str) -> None:
        super().__init__(text)
        self.culprits = culprits
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a member holds after the exchange."""

    mean: AnyVector | None
    """[num_elements] of the type of the peer's vector; None on a member that only reduces."""
    digests: tuple[str | None, ...]
    """Of the encoded result of each span, in order; None for spans that this member did not receive."""


class Butterfly:
    """Both sides of the exchange on one peer: member of any round, reducer of its own span."""

    def __init__(self, ports: Ports, links: Links, timeouts: RoundTimeouts) -> None:
        self._transport, self._links, self._timeouts = ports.transport, links, timeouts
        self._reducer = Reducer(ports.transport, links, timeouts)
        self._idle: dict[PeerId, Stream] = {}
        self._buffers = Buffers()

    async def serve(self) -> None:
        """Begin to answer members."""
        await self._reducer.serve()

    async def exchange(self, group: Group, vector: AnyVector | None, encodings: Encodings) -> Exchanged:
        """Take part in ``group`` until every span that concerns this peer is whole.

        Memory beyond ``vector``: the mean, of the same type; parts that wait for slower contributors; what lossy
        codecs owe.

        Args:
            vector: [group.num_elements] float32 or float16 of a contributor, or of a member that only wants the
                result (then its values are not used); None: reduce only. Not changed.
            encodings: to be settled by the caller when the round is.

        Raises:
            ExchangeFailed: with whom to leave out next time.
        """
        exchange = Exchange(group, self._transport.peer_id, vector, encodings, self._buffers)
        own_span = group.span_of(self._transport.peer_id)
        try:
            async with asyncio.TaskGroup() as tasks:
                work = {
                    span: tasks.create_task((self._reduce if span == own_span else self._fetch)(exchange, span))
                    for span in group.spans
                }
        except* ExchangeFailed as failures:
            raise _merge(failures) from failures
        return Exchanged(exchange.mean, tuple(work[span].result() for span in group.spans))

    def forget(self, round_id: str) -> None:
        """Drop what is left of a round: it was committed or aborted."""
        self._reducer.forget(round_id)

    async def _reduce(self, exchange: Exchange, span: Span) -> str | None:
        """Reduce our own span; its digest."""
        reduction = exchange.reduction(span)
        hosted = Hosted(exchange.group.round_id, reduction, exchange.receivers, exchange.result_bytes(span))
        self._reducer.begin(hosted)
        watching = asyncio.create_task(self._reducer.watch(reduction))
        try:
            await reduction.finished()
        except BadPart as error:
            culprits = (error.culprit,) if isinstance(error, SenderFailed) else ()
            raise ExchangeFailed(culprits, error.reason, str(error)) from error
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return reduction.digest()

    async def _fetch(self, exchange: Exchange, span: Span) -> str | None:
        """Bring our part of a span to its reducer and the mean back; its digest."""
        if exchange.vector is None:
            return None
        idle = self._idle.pop(span.reducer, None)
        try:
            try:
                if idle is not None:
                    return await self._fetch_over(idle, exchange, span)
            except StreamClosed:
                pass  # closed since the last round; whether its reducer is gone shows now
            stream = await self._transport.open(span.reducer, PARTS_PROTOCOL, timeout_s=self._timeouts.open_s)
            return await self._fetch_over(stream, exchange, span)
        except (NetworkError, BadPart) as error:
            text = f"reducer {span.reducer}: {error}"
            raise ExchangeFailed((span.reducer,), type(error).__name__, text) from error

    async def _fetch_over(self, stream: Stream, exchange: Exchange, span: Span) -> str:
        """The same over a stream, which is kept for the next round if all goes well."""
        flow, outflow = SpanFlow(exchange, span), Outflow(stream, self._links)
        sending: asyncio.Task[None] | None = None
        is_whole = False
        self._links.downlink.begin()
        try:
            async with kept_alive(stream, self._timeouts.pulse_s, timeout_s=self._timeouts.reply_s):
                opening = {"round_id": exchange.group.round_id, "sent_s": self._links.clock(), "queue_s": 0.0}
                await stream.send(Message("round", opening), timeout_s=self._timeouts.reply_s)
                if exchange.contributes:
                    sending = asyncio.create_task(self._send_parts(flow, outflow))
                await self._receive_results(stream, flow, outflow)
                if sending is not None:
                    await sending
            is_whole = True
            return flow.digest()
        finally:
            self._links.downlink.end()
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            outflow.settle()
            if is_whole:
                self._idle[span.reducer] = stream
            else:
                stream.close()

    async def _send_parts(self, flow: SpanFlow, outflow: Outflow) -> None:
        for index in range(len(flow.edges)):
            await flow.may_send(index)
            try:
                await outflow.send(flow.part(index), timeout_s=self._timeouts.part_s)
            except (StreamClosed, TimedOut):
                return  # the receiving side of this stream sees the same, and knows why

    async def _receive_results(self, stream: Stream, flow: SpanFlow, outflow: Outflow) -> None:
        moved_s = self._links.clock()
        async with Inflow(stream, self._links, timeout_s=self._timeouts.part_s) as inflow:
            while flow.num_received < len(flow.edges) or outflow.is_busy:
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                if message.kind == "wait":
                    if self._links.clock() - moved_s > self._timeouts.stalled_s:
                        raise TimedOut(
                            f"{stream.remote} is there, but brought nothing for {self._timeouts.stalled_s:.0f} s"
                        )
                    continue
                moved_s = self._links.clock()
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "ready":
                    inflow.opened(message)
                elif message.kind == "result":
                    flow.take_result(message.get("index", int), message.payload)
                    inflow.took(message)
                elif message.kind == "failed":
                    culprit, reason, text = (message.get(name, str) for name in ("culprit", "reason", "text"))
                    raise ExchangeFailed((PeerId(culprit),) if culprit else (), reason, text)
                else:
                    raise BadMessage(f"reducer {stream.remote} sends {message.kind} instead of a result")


def _merge(failures: BaseExceptionGroup[ExchangeFailed]) -> ExchangeFailed:
    """One failure that names every culprit; several spans can fail at once."""
    leaves: list[ExchangeFailed] = []

    def collect(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                collect(inner)
        elif isinstance(error, ExchangeFailed):
            leaves.append(error)

    collect(failures)
    culprits = tuple(dict.fromkeys(peer for leaf in leaves for peer in leaf.culprits))
    return ExchangeFailed(culprits, leaves[0].reason, "; ".join(str(leaf) for leaf in leaves))
