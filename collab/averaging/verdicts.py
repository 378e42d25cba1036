"""What became of recent rounds: remembered, told to members in doubt, asked when in doubt oneself."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from collab.averaging.agreement import CommitRecord
from collab.averaging.messages import VERDICT_PROTOCOL
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import Lineage, PeerId

REMEMBERED_ROUNDS = 16
"""Verdicts kept for members in doubt and for latecomers: a few epochs' worth."""


class Verdicts:
    """The last rounds that this peer led or took part in: committed (a record) or given up (None)."""

    def __init__(self, transport: Transport, timeouts: RoundTimeouts) -> None:
        self._transport, self._timeouts = transport, timeouts
        self._rounds: OrderedDict[str, CommitRecord | None] = OrderedDict()

    async def serve(self) -> None:
        """Begin to answer members in doubt."""
        await self._transport.serve(VERDICT_PROTOCOL, self._answer)

    def remember(self, round_id: str, record: CommitRecord | None) -> bool:
        """Keep a verdict. The first one stands: a round that was given up stays given up.

        Returns:
            Whether ``record`` is now the verdict.
        """
        standing = self._rounds.setdefault(round_id, record)
        while len(self._rounds) > REMEMBERED_ROUNDS:
            self._rounds.popitem(last=False)
        return standing == record

    def committed(self, epoch: int, lineage: Lineage) -> CommitRecord | None:
        """The round that continued ``lineage`` after ``epoch`` steps, if it is known to have committed."""
        records = (record for record in self._rounds.values() if record is not None)
        return next((record for record in records if (record.epoch, record.lineage) == (epoch, lineage)), None)

    def leading_to(self, lineage: Lineage) -> CommitRecord | None:
        """The committed round whose step made the history ``lineage``, if it is known."""
        records = (record for record in self._rounds.values() if record is not None)
        return next((record for record in records if record.next_lineage() == lineage), None)

    async def ask(self, peers: Iterable[PeerId], round_id: str) -> CommitRecord | None:
        """The record of a round from the first who knows it; None when nobody answers with one in time."""
        asking = [asyncio.create_task(self._ask_one(peer, round_id)) for peer in peers]
        try:
            async with asyncio.timeout(self._timeouts.verdict_s):
                for answer in asyncio.as_completed(asking):
                    record = await answer
                    if record is not None and record.round_id == round_id:
                        return record
        except TimeoutError:
            pass
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return None

    async def _ask_one(self, peer: PeerId, round_id: str) -> CommitRecord | None:
        try:
            stream = await self._transport.open(peer, VERDICT_PROTOCOL, timeout_s=self._timeouts.open_s)
            try:
                await stream.send(Message("verdict?", {"round_id": round_id}), timeout_s=self._timeouts.reply_s)
                answer = await stream.receive(timeout_s=self._timeouts.reply_s)
            finally:
                stream.close()
            return CommitRecord.from_fields(answer.get("record", dict)) if answer.kind == "committed" else None
        except NetworkError:
            return None

    async def _answer(self, stream: Stream) -> None:
        round_id = (await stream.receive(timeout_s=self._timeouts.reply_s)).get("round_id", str)
        record = self._rounds.get(round_id)
        answer = Message("unknown") if record is None else Message("committed", {"record": record.to_fields()})
        await stream.send(answer, timeout_s=self._timeouts.reply_s)
