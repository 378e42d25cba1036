"""The exchange of one round: every contributor sends each reducer its span, and gets the mean of that span back.

Sending and receiving overlap: a reducer returns a part as soon as all contributors' copies of it have come.
Source: butterfly all-reduce as in Moshpit SGD (Ryabinin et al., NeurIPS 2021) and DeDLOC (Diskin et al., 2021).
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass

import numpy as np

from collab.averaging.messages import PARTS_PROTOCOL, Group
from collab.averaging.plan import Span
from collab.averaging.reduction import Reduction, part_edges
from collab.averaging.timeouts import RoundTimeouts
from collab.compression.base import Codec
from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed, TimedOut
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId, Vector

logger = logging.getLogger(__name__)


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

    mean: Vector | None
    """[num_elements] float32; None on a member that only reduces."""
    digests: tuple[str | None, ...]
    """SHA-256 of the encoded result of each span, in order; None for spans that this member did not receive."""


class Butterfly:
    """Both sides of the exchange on one peer: member of any round, reducer of its own span."""

    def __init__(self, transport: Transport, codec: Codec, timeouts: RoundTimeouts) -> None:
        self._transport, self._codec, self._timeouts = transport, codec, timeouts
        self._reductions: dict[str, asyncio.Future[Reduction]] = {}

    async def serve(self) -> None:
        """Begin to answer contributors."""
        await self._transport.serve(PARTS_PROTOCOL, self._serve_contributor)

    async def exchange(self, group: Group, vector: Vector | None) -> Exchanged:
        """Take part in ``group`` until every span that concerns this peer is whole.

        Args:
            vector: [group.num_elements] float32 of a contributor; None: reduce only. Not changed.

        Raises:
            ExchangeFailed: with whom to leave out next time.
        """
        me = self._transport.peer_id
        own_span = group.span_of(me)
        watching: asyncio.Task[None] | None = None
        if own_span is not None:
            watching = asyncio.create_task(self._watch_senders(self._open_reduction(group, own_span, vector)))
        try:
            async with asyncio.TaskGroup() as tasks:
                pieces = [tasks.create_task(self._fetch(group, span, vector)) for span in group.spans]
        except* ExchangeFailed as failures:
            raise _merge(failures) from failures
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        means, digests = zip(*(piece.result() for piece in pieces), strict=True)
        return Exchanged(None if vector is None else np.concatenate(means), tuple(digests))

    def forget(self, round_id: str) -> None:
        """Drop what is left of a round: it was committed or aborted."""
        reduction = self._reductions.pop(round_id, None)
        if reduction is None:
            return
        if reduction.done() and not reduction.cancelled():
            reduction.result().fail(BadPart("over", "the round is over"))
        else:
            reduction.cancel()

    # -- member side -------------------------------------------------------------------------------------------------

    async def _fetch(self, group: Group, span: Span, vector: Vector | None) -> tuple[Vector | None, str | None]:
        """The mean of one span and its digest, from wherever it is reduced."""
        if span.reducer == self._transport.peer_id:
            reduction = self._reductions[group.round_id].result()
            try:
                return await reduction.finished_span(), await reduction.digest()
            except BadPart as error:
                culprits = (error.culprit,) if isinstance(error, SenderFailed) else ()
                raise ExchangeFailed(culprits, error.reason, str(error)) from error
        if vector is None:
            return None, None
        try:
            return await self._fetch_remote(group, span, vector)
        except (NetworkError, BadPart) as error:
            text = f"reducer {span.reducer}: {error}"
            raise ExchangeFailed((span.reducer,), type(error).__name__, text) from error

    async def _fetch_remote(self, group: Group, span: Span, vector: Vector) -> tuple[Vector, str]:
        stream = await self._transport.open(span.reducer, PARTS_PROTOCOL, timeout_s=self._timeouts.open_s)
        sending: asyncio.Task[None] | None = None
        try:
            await stream.send(Message("parts", {"round_id": group.round_id}), timeout_s=self._timeouts.reply_s)
            sending = asyncio.create_task(self._send_parts(stream, vector[span.start : span.stop]))
            mean = np.empty(span.num_elements, np.float32)
            digest = hashlib.sha256()
            for index, (start, stop) in enumerate(part_edges(span.num_elements)):
                payload = await self._receive_result(stream, index)
                mean[start:stop] = self._codec.decode(payload, stop - start)
                digest.update(payload)
            if not np.isfinite(mean).all():
                raise BadPart("not_finite", "the result has NaN or Inf")
            await sending
            return mean, digest.hexdigest()
        finally:
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            stream.close()

    async def _send_parts(self, stream: Stream, values: Vector) -> None:
        for index, (start, stop) in enumerate(part_edges(len(values))):
            part = Message("part", {"index": index}, self._codec.encode(values[start:stop]))
            try:
                await stream.send(part, timeout_s=self._timeouts.part_s)
            except (StreamClosed, TimedOut):
                return  # the receiving side of this stream sees the same, and knows why

    async def _receive_result(self, stream: Stream, index: int) -> bytes | bytearray | memoryview:
        message = await stream.receive(timeout_s=self._timeouts.part_s)
        if message.kind == "failed":
            culprit = message.get("culprit", str)
            raise ExchangeFailed(
                (PeerId(culprit),) if culprit else (), message.get("reason", str), message.get("text", str)
            )
        if message.kind != "result" or message.get("index", int) != index:
            raise BadMessage(f"expected result {index}, got {message.kind} {message.fields.get('index')}")
        return message.payload

    # -- reducer side ------------------------------------------------------------------------------------------------

    def _open_reduction(self, group: Group, span: Span, vector: Vector | None) -> Reduction:
        weights = {member.peer: member.weight for member in group.contributors}
        reduction = Reduction(span.num_elements, weights, self._codec)
        if vector is not None:
            reduction.add_own(self._transport.peer_id, vector[span.start : span.stop])
        self._announced(group.round_id).set_result(reduction)
        return reduction

    async def _watch_senders(self, reduction: Reduction) -> None:
        """Fail the reduction because of a contributor that says nothing, also one that never came."""
        look_every_s = self._timeouts.sender_s / 4
        num_added, quiet_s = reduction.num_added, 0.0
        while missing := reduction.missing():
            if quiet_s >= self._timeouts.sender_s:
                text = f"no part from {missing[0]} within {quiet_s:.0f} s"
                await self._blame(reduction, missing[0], BadPart("silent", text))
                return
            await asyncio.sleep(look_every_s)
            quiet_s = quiet_s + look_every_s if reduction.num_added == num_added else 0.0
            num_added = reduction.num_added

    def _announced(self, round_id: str) -> asyncio.Future[Reduction]:
        """Resolved when this peer has begun the round; contributors may be faster than the leader's BEGIN."""
        if round_id not in self._reductions:
            self._reductions[round_id] = asyncio.get_running_loop().create_future()
        return self._reductions[round_id]

    async def _serve_contributor(self, stream: Stream) -> None:
        round_id = (await stream.receive(timeout_s=self._timeouts.reply_s)).get("round_id", str)
        announced = self._announced(round_id)
        try:
            async with asyncio.timeout(self._timeouts.reply_s):
                reduction = await asyncio.shield(announced)
        except TimeoutError:
            if not announced.done():
                self._reductions.pop(round_id, None)
            await self._refuse(stream, BadPart("unknown_round", f"no round {round_id} here"), culprit="")
            return
        if not reduction.expects(stream.remote):
            stranger = BadPart("not_a_contributor", f"{stream.remote} is no contributor of round {round_id}")
            await self._refuse(stream, stranger, culprit=stream.remote)
            return
        returning = asyncio.create_task(self._return_results(stream, reduction))
        try:
            for _ in range(reduction.num_parts):
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                reduction.add(stream.remote, message.get("index", int), message.payload)
            await returning
        except BadPart as error:
            await self._blame(reduction, stream.remote, error)
            await self._refuse(stream, error, culprit=stream.remote)
        except NetworkError as error:
            if not returning.done() or returning.cancelled():
                await self._blame(reduction, stream.remote, BadPart("sender_lost", f"{stream.remote}: {error}"))
        finally:
            returning.cancel()
            await asyncio.gather(returning, return_exceptions=True)

    async def _return_results(self, stream: Stream, reduction: Reduction) -> None:
        for index in range(reduction.num_parts):
            try:
                data = await reduction.result(index)
            except BadPart as error:
                culprit = error.culprit if isinstance(error, SenderFailed) else PeerId("")
                await self._refuse(stream, error, culprit=culprit)
                return
            await stream.send(Message("result", {"index": index}, data), timeout_s=self._timeouts.part_s)

    async def _blame(self, reduction: Reduction, culprit: PeerId, error: BadPart) -> None:
        logger.info("sender leaves the round peer=%s reason=%s", culprit, error.reason)
        reduction.fail(SenderFailed(culprit, error))

    async def _refuse(self, stream: Stream, error: BadPart, *, culprit: str) -> None:
        fields = {"reason": error.reason, "text": str(error), "culprit": culprit}
        await stream.send(Message("failed", fields), timeout_s=self._timeouts.reply_s)


class SenderFailed(BadPart):
    """A reduction failed because of one contributor, ``culprit``."""

    def __init__(self, culprit: PeerId, error: BadPart) -> None:
        super().__init__(error.reason, str(error))
        self.culprit = culprit


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
