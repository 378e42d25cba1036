"""The asking side of an exchange: brings our part of one job to its reducer, and the results back."""

import asyncio
import logging
from typing import Any

from collab.averaging.exchange import Exchange, Holding
from collab.averaging.flow import Inflow, Links, Outflow, kept_alive
from collab.averaging.reducer import NoResults
from collab.averaging.reduction import Result
from collab.errors import BadMessage, StreamClosed, TimedOut
from collab.net.base import Stream
from collab.net.wire import Message

logger = logging.getLogger(__name__)


class Fetch:
    """One job of one exchange; or the results alone, of who holds them."""

    def __init__(self, exchange: Exchange, holding: Holding, index: int, links: Links) -> None:
        self._exchange, self._holding, self._index = exchange, holding, index
        self._links, self._timeouts = links, links.timeouts
        self.is_answered = False
        """Whether the other side has said anything of this round."""

    async def run(self, stream: Stream) -> bool:
        """Until all that stands is here; the stream is closed if it does not come to that.

        Returns:
            Whether the stream is free for the next round; it is not while its reducer waits for parts that never come.

        Raises:
            NetworkError, BadPart: the other side is gone, has nothing for us, or sends what is no result.
        """
        outflow = Outflow(stream, self._links)
        sending: asyncio.Task[bool] | None = None
        is_whole = False
        self._links.downlink.begin()
        try:
            async with kept_alive(stream, self._timeouts):
                opening: dict[str, Any] = {
                    "job": self._index,
                    "first": self._holding.num_held,
                    "sent_s": self._links.clock(),
                    "queue_s": 0.0,
                }
                opening["round_id"] = self._exchange.group.round_id
                await stream.send(Message("round", opening), timeout_s=self._timeouts.answer_s())
                if self._exchange.contributes and self._holding.job.holder is None:
                    sending = asyncio.create_task(self._send_parts(stream, outflow))
                await self._receive_results(stream, outflow)
                is_whole = sending is None or await sending
            return is_whole
        finally:
            self._links.downlink.end()
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            outflow.settle()
            if not is_whole:
                stream.close()

    async def _send_parts(self, stream: Stream, outflow: Outflow) -> bool:
        """Whether all have left."""
        for index in range(len(self._holding.edges)):
            await self._holding.may_send(index)
            if not self._exchange.contributes:
                return False  # the others go on without the rest
            try:
                await outflow.send(self._holding.part(index), timeout_s=self._timeouts.part_s)
            except (StreamClosed, TimedOut):
                return False  # the receiving side of this stream sees the same, and knows why
            except Exception:
                logger.exception("a part cannot be sent, please report this peer=%s", stream.remote)
                stream.close()  # so that the receiving side does not wait for what will never come
                return False
        return True

    async def _receive_results(self, stream: Stream, outflow: Outflow) -> None:
        clock, stalled_s = self._links.clock, self._timeouts.stalled_s(self._exchange.group.expected_s)
        num_contributors = len(self._exchange.group.contributors)
        moved_s = clock()
        async with Inflow(stream, self._links, timeout_s=self._timeouts.part_s) as inflow:
            while not self._holding.is_whole or outflow.is_busy:
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                if message.kind == "wait":
                    if clock() - moved_s > stalled_s:
                        raise TimedOut(f"{stream.remote} is there, but brought nothing for {stalled_s:.0f} s")
                    continue
                moved_s = clock()
                self.is_answered = True
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "ready":
                    inflow.opened(message)
                elif message.kind == "result":
                    self._holding.take(message.get("index", int), Result.from_message(message, num_contributors))
                    inflow.took(message)
                elif message.kind == "failed":
                    raise NoResults(message.get("reason", str), f"no results: {message.get('text', str)}")
                else:
                    raise BadMessage(f"reducer {stream.remote} sends {message.kind} instead of a result")
