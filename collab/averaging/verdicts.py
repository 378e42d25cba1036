"""What followed recent histories: remembered, told to whoever asks, asked when in doubt oneself."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from collab.averaging.agreement import CommitRecord
from collab.averaging.messages import VERDICT_PROTOCOL
from collab.averaging.seats import Seats
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import Lineage, PeerId

REMEMBERED_ROUNDS = 16
"""Records kept for members in doubt and for latecomers: a few epochs' worth."""


class Verdicts:
    """The last committed rounds that this peer knows of."""

    def __init__(self, transport: Transport, timeouts: RoundTimeouts, seats: Seats | None = None) -> None:
        self._transport, self._timeouts, self._seats = transport, timeouts, seats
        self._records: OrderedDict[tuple[int, Lineage], CommitRecord] = OrderedDict()
        self._maker: CommitRecord | None = None
        """The newest that we were told because we were not there: what made a history, not what we know of others."""

    async def serve(self) -> None:
        """Begin to answer members in doubt."""
        await self._transport.serve(VERDICT_PROTOCOL, self._answer)

    def remember(self, record: CommitRecord) -> None:
        """Keep a record."""
        self._records[record.epoch, record.lineage] = record
        while len(self._records) > REMEMBERED_ROUNDS:
            self._records.popitem(last=False)

    def committed(self, epoch: int, lineage: Lineage) -> CommitRecord | None:
        """The round that continued ``lineage`` after ``epoch`` steps, if it is known to have committed."""
        return self._records.get((epoch, lineage))

    def leading_to(self, lineage: Lineage) -> CommitRecord | None:
        """The committed round whose step made the history ``lineage``, if it is known."""
        known = (*self._records.values(), *([self._maker] if self._maker is not None else []))
        return next((record for record in known if record.next_lineage() == lineage), None)

    async def learn_maker(self, lineage: Lineage, peers: Iterable[PeerId]) -> None:
        """Ask who was there for the round that made a history, if we were not; its digest is the history's name."""
        if self.leading_to(lineage) is not None:
            return
        asking = [asyncio.create_task(self._ask_maker(peer, lineage)) for peer in peers]
        try:
            for answer in asyncio.as_completed(asking):
                maker = await answer
                if maker is not None:
                    self._maker = maker
                    return
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask_maker(self, peer: PeerId, lineage: Lineage) -> CommitRecord | None:
        try:
            answer = await self._exchange(peer, Message("made?", {"lineage": lineage}))
            record = CommitRecord.from_fields(answer.get("record", dict)) if answer.kind == "made" else None
        except NetworkError:
            return None
        return record if record is not None and record.next_lineage() == lineage else None

    def forget(self, epoch: int, lineage: Lineage) -> None:
        """Nobody has the result of the round that followed a history, and nobody ever will: it is as if it was not."""
        self._records.pop((epoch, lineage), None)
        if self._seats is not None:
            self._seats.forget((epoch, lineage))

    async def ask(
        self, peers: Iterable[PeerId], epoch: int, lineage: Lineage
    ) -> tuple[CommitRecord | None, frozenset[PeerId]]:
        """What followed a history, from the first who knows it, and who has not answered at all.

        When several are asked and nobody knows, that takes until all have answered, or the time is over.
        """
        asking = {peer: asyncio.create_task(self._ask_one(peer, epoch, lineage)) for peer in peers}
        try:
            async with asyncio.timeout(self._timeouts.verdict_s):
                for answer in asyncio.as_completed(asking.values()):
                    record = await answer
                    if isinstance(record, CommitRecord) and (record.epoch, record.lineage) == (epoch, lineage):
                        return record, frozenset()
        except TimeoutError:
            pass
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
        answered = {peer for peer, task in asking.items() if not task.cancelled() and task.result() is not None}
        return None, frozenset(asking.keys() - answered)

    async def _ask_one(self, peer: PeerId, epoch: int, lineage: Lineage) -> CommitRecord | Literal["unknown"] | None:
        try:
            answer = await self._exchange(peer, Message("verdict?", {"epoch": epoch, "lineage": lineage}))
            if answer.kind != "committed":
                return "unknown"
            return CommitRecord.from_fields(answer.get("record", dict))
        except NetworkError:
            return None

    async def _exchange(self, peer: PeerId, question: Message) -> Message:
        """Raises ``NetworkError``."""
        stream = await self._transport.open(peer, VERDICT_PROTOCOL, timeout_s=self._timeouts.open_s)
        try:
            await stream.send(question, timeout_s=self._timeouts.reply_s)
            return await stream.receive(timeout_s=self._timeouts.reply_s)
        finally:
            stream.close()

    async def _answer(self, stream: Stream) -> None:
        question = await stream.receive(timeout_s=self._timeouts.reply_s)
        lineage = Lineage(question.get("lineage", str))
        is_about_maker = question.kind == "made?"
        record = self.leading_to(lineage) if is_about_maker else self.committed(question.get("epoch", int), lineage)
        kind = "made" if is_about_maker else "committed"
        answer = Message("unknown") if record is None else Message(kind, {"record": record.to_fields()})
        await stream.send(answer, timeout_s=self._timeouts.reply_s)
