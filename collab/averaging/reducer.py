"""The reducer's side of an exchange: takes contributors' parts in, gives every receiver the same results."""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from collab.averaging.flow import Inflow, Links, Outflow, Part, kept_alive
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.reduction import Reduction, SenderFailed
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import BadMessage, BadPart, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

IDLE_S = 3600.0
"""A contributor's stream outlives its round, so that the next one need not open it again."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """One span in one round, as its reducer knows it."""

    round_id: str
    reduction: Reduction
    receivers: frozenset[PeerId]
    """Members that want the result, without the reducer."""
    result_bytes: tuple[int, ...]
    """Length of each encoded result."""


class Reducer:
    """Serves this peer's spans, of any number of rounds."""

    def __init__(self, transport: Transport, links: Links, timeouts: RoundTimeouts) -> None:
        self._transport, self._links, self._timeouts = transport, links, timeouts
        self._hosted: dict[str, asyncio.Future[Hosted]] = {}
        self._heard_s: dict[PeerId, float] = {}
        """When a contributor last said anything, by our clock."""
        self._visitors: Counter[str] = Counter()
        """Streams that wait for a round to begin here."""

    async def serve(self) -> None:
        """Begin to answer members."""
        await self._transport.serve(PARTS_PROTOCOL, self._serve_member)

    def begin(self, hosted: Hosted) -> None:
        """This peer's part in a round is fixed: members may come."""
        self._announced(hosted.round_id).set_result(hosted)

    def forget(self, round_id: str) -> None:
        """Drop what is left of a round: it was committed or aborted."""
        hosted = self._hosted.pop(round_id, None)
        if hosted is None:
            return
        if hosted.done() and not hosted.cancelled():
            hosted.result().reduction.fail(BadPart("over", "the round is over"))
        else:
            hosted.cancel()

    async def watch(self, reduction: Reduction) -> None:
        """Fail the reduction because of a contributor that says nothing, also one that never came.

        One that says it is there may have much to send to others first; but when nothing comes from anybody for long,
        those whose parts are missing hold everybody up.
        """
        look_every_s = self._timeouts.sender_s / 4
        began_s = moved_s = self._links.clock()
        num_added = reduction.num_added
        while missing := reduction.missing():
            now_s = self._links.clock()
            if reduction.num_added != num_added:
                num_added, moved_s = reduction.num_added, now_s
            quiet_s = {peer: now_s - max(self._heard_s.get(peer, began_s), began_s) for peer in missing}
            culprit = max(missing, key=lambda peer: quiet_s[peer])
            if quiet_s[culprit] >= self._timeouts.sender_s:
                text = f"nothing from {culprit} within {quiet_s[culprit]:.0f} s"
                blame(reduction, culprit, BadPart("silent", text))
                return
            if now_s - moved_s >= self._timeouts.stalled_s:
                text = f"{culprit} is there, but no part came within {now_s - moved_s:.0f} s"
                blame(reduction, culprit, BadPart("stalled", text))
                return
            await asyncio.sleep(look_every_s)

    def _announced(self, round_id: str) -> asyncio.Future[Hosted]:
        """Resolved when this peer has begun the round; members may be faster than the leader's BEGIN."""
        if round_id not in self._hosted:
            self._hosted[round_id] = asyncio.get_running_loop().create_future()
        return self._hosted[round_id]

    async def _serve_member(self, stream: Stream) -> None:
        outflow = Outflow(stream, self._links)
        try:
            async with Inflow(stream, self._links, timeout_s=self._timeouts.part_s) as inflow:
                while True:
                    message = await stream.receive(timeout_s=IDLE_S)
                    if message.kind == "wait":
                        continue  # set out when the last round was over
                    hosted = await self._find(stream, message.get("round_id", str))
                    if hosted is None:
                        return
                    async with kept_alive(stream, self._timeouts.pulse_s, timeout_s=self._timeouts.reply_s):
                        await self._serve_round(stream, hosted, outflow, inflow, message)
                    del hosted  # with the round's vectors, which the wait for the next one must not keep
        finally:
            outflow.settle()

    async def _find(self, stream: Stream, round_id: str) -> Hosted | None:
        """What this peer hosts of a round; a stranger is told why not."""
        announced = self._announced(round_id)
        self._visitors[round_id] += 1
        try:
            async with asyncio.timeout(self._timeouts.reply_s):
                hosted = await asyncio.shield(announced)
        except TimeoutError:
            await self._refuse(stream, BadPart("unknown_round", f"no round {round_id} here"), culprit="")
            return None
        finally:
            self._visitors[round_id] -= 1
            if not self._visitors[round_id]:
                del self._visitors[round_id]
                if not announced.done():  # nobody waits for this round any more, and it may never come
                    self._hosted.pop(round_id, None)
        if stream.remote not in hosted.receivers:
            stranger = BadPart("not_a_contributor", f"{stream.remote} is no member of round {round_id}")
            await self._refuse(stream, stranger, culprit=stream.remote)
            return None
        return hosted

    async def _serve_round(
        self, stream: Stream, hosted: Hosted, outflow: Outflow, inflow: Inflow, opening: Message
    ) -> None:
        """Until the member has acknowledged every result, or the stream ends."""
        reduction = hosted.reduction
        parts_left = reduction.num_parts if reduction.expects(stream.remote) else 0
        self._links.downlink.begin()
        inflow.opened(opening)  # small and early: its delay is that of a path without a queue
        opened = {"sent_s": self._links.clock(), "queue_s": 0.0}
        await stream.send(Message("ready", opened), timeout_s=self._timeouts.part_s)
        returning = asyncio.create_task(self._return_results(stream, hosted, outflow))
        try:
            while parts_left or not returning.done() or outflow.is_busy:
                message = await stream.receive(timeout_s=self._timeouts.part_s if parts_left else IDLE_S)
                self._heard_s[stream.remote] = self._links.clock()
                if message.kind == "wait":
                    continue
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "part" and parts_left:
                    reduction.add(stream.remote, message.get("index", int), message.payload)
                    inflow.took(message)
                    parts_left -= 1
                else:
                    raise BadMessage(f"{stream.remote} sends {message.kind} instead of a part")
        except BadPart as error:
            blame(reduction, stream.remote, error)
            await self._refuse(stream, error, culprit=stream.remote)
            raise BadMessage(str(error)) from error
        except NetworkError as error:
            if parts_left or not returning.done():
                blame(reduction, stream.remote, BadPart("sender_lost", f"{stream.remote}: {error}"))
            raise
        finally:
            self._links.downlink.end()
            returning.cancel()
            await asyncio.gather(returning, return_exceptions=True)

    async def _return_results(self, stream: Stream, hosted: Hosted, outflow: Outflow) -> None:
        reduction = hosted.reduction
        for index, num_bytes in enumerate(hosted.result_bytes):
            try:
                data = await reduction.result(index)
            except BadPart as error:
                culprit = error.culprit if isinstance(error, SenderFailed) else PeerId("")
                await self._refuse(stream, error, culprit=culprit)
                return
            part = Part(
                kind="result",
                index=index,
                num_bytes=num_bytes,
                encode=lambda data=data: data,  # type: ignore[misc]
                order=index / reduction.num_parts,
            )
            await outflow.send(part, timeout_s=self._timeouts.part_s)

    async def _refuse(self, stream: Stream, error: BadPart, *, culprit: str) -> None:
        fields = {"reason": error.reason, "text": str(error), "culprit": culprit}
        await stream.send(Message("failed", fields), timeout_s=self._timeouts.reply_s)


def blame(reduction: Reduction, culprit: PeerId, error: BadPart) -> None:
    """End the reduction because of one contributor."""
    logger.info("sender leaves the round peer=%s reason=%s text=%s", culprit, error.reason, error)
    reduction.fail(SenderFailed(culprit, error))
