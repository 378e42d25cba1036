"""What followed recent histories: remembered, told to whoever asks, asked when in doubt oneself."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Electorate
from collab.averaging.certificates import Certified
from collab.averaging.messages import VERDICT_PROTOCOL, Group
from collab.averaging.notary import Notary
from collab.averaging.seats import Instance, Seats
from collab.averaging.settings import Terms
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadCertificate, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import Lineage, PeerId

REMEMBERED_ROUNDS = 16
"""Records kept for members in doubt and for latecomers: a few epochs' worth."""


class Verdicts:
    """The last committed rounds that this peer knows of, and can prove."""

    def __init__(
        self, transport: Transport, timeouts: MeasuredTimeouts, notary: Notary, seats: Seats, terms: Terms
    ) -> None:
        self._transport, self._timeouts, self._seats, self._terms = transport, timeouts, seats, terms
        self.notary, self.electors = notary, notary.electors
        self._known: OrderedDict[Instance, Certified] = OrderedDict()
        self._maker: CommitRecord | None = None
        """The newest that we were told because we were not there: what made a history, not what we know of others."""

    async def serve(self) -> None:
        """Begin to answer members in doubt."""
        await self._transport.serve(VERDICT_PROTOCOL, self._answer)

    def remember(self, certified: Certified) -> None:
        """Keep a record and its certificate, which have been checked."""
        self._known[certified.record.epoch, certified.record.lineage] = certified
        self._terms.note_step(certified.record.epoch, certified.record.terms)
        while len(self._known) > REMEMBERED_ROUNDS:
            self._known.popitem(last=False)

    def known_records(self) -> list[CommitRecord]:
        """Of the rounds that are remembered. A panel's thread asks, too, while the loop remembers more."""
        return [certified.record for certified in list(self._known.values())]

    def committed(self, epoch: int, lineage: Lineage) -> Certified | None:
        """The round that continued ``lineage`` after ``epoch`` steps, if it is known to have committed."""
        return self._known.get((epoch, lineage))

    def leading_to(self, lineage: Lineage) -> CommitRecord | None:
        """The committed round whose step made the history ``lineage``, if it is known."""
        known = self.known_records()[::-1]  # it is mostly the newest
        if self._maker is not None:
            known.append(self._maker)
        return next((record for record in known if record.next_lineage() == lineage), None)

    async def learn_maker(self, lineage: Lineage, peers: Iterable[PeerId]) -> frozenset[PeerId]:
        """Ask who was there for the round that made a history, if we were not; its digest is the history's name.

        Returns:
            If nobody has told, those who may know: they have not said that they do not.
        """
        if self.leading_to(lineage) is not None:
            return frozenset()
        asked = dict.fromkeys(peer for peer in peers if peer != self._transport.peer_id)
        questions = {peer: ask_maker(self._transport, self._timeouts, peer, lineage) for peer in asked}
        asking = {peer: asyncio.create_task(question) for peer, question in questions.items()}
        try:
            for answer in asyncio.as_completed(asking.values()):
                maker = await answer
                if isinstance(maker, CommitRecord):
                    self._maker = maker
                    return frozenset()
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
        return frozenset(peer for peer, task in asking.items() if task.result() is None)

    async def learn_from(self, peers: Sequence[PeerId], epoch: int, lineage: Lineage) -> Certified | None:
        """What followed a history that we may never have heard of, from those who have gone on from there."""
        await self.learn_maker(lineage, peers)
        return (await self.ask(peers, epoch, lineage))[0]

    async def believe(
        self, teller: PeerId, message: Message, instance: Instance, electorate: Electorate | None = None
    ) -> Certified:
        """Take over what a message tells of the round that followed a history, if votes prove it.

        Args:
            electorate: who decides, if we do not know the round that made the history; None: nor do we know that.

        Raises:
            BadMessage: it is not to be believed.
        """
        maker = self.leading_to(instance[1])
        trusted = Electorate(maker.members) if maker is not None else electorate
        certified = await self.notary.believe(teller, message, instance, trusted)
        if self._seats.decided(instance) in (None, certified.record):  # what we hold ourselves stays
            self.remember(certified)
        return certified

    async def check_electors(self, group: Group) -> None:
        """A leader may leave out those who decide only if we have not heard of them either, and for long.

        Raises:
            BadMessage: it leaves out others.
        """
        maker = self.leading_to(group.lineage)
        if maker is None:
            return
        instance = group.epoch, group.lineage
        await self.notary.check_electors(group.electors, Electorate(maker.members), instance, leader=group.leader)
        if len(group.electors) == len(maker.members):
            return
        expected = await self.notary.roster(*instance)
        hasty = self.electors.leaves_out_too_soon(group.electors, maker, expected, group.leader)
        if hasty:
            text = f"leader {group.leader} leaves out {', '.join(hasty)}, who decide and were heard of not long ago"
            raise BadCertificate("electors_left_out", text)

    def forget(self, epoch: int, lineage: Lineage) -> None:
        """Nobody has the result of the round that followed a history, and nobody ever will: it is as if it was not."""
        self._known.pop((epoch, lineage), None)
        self._seats.forget((epoch, lineage))

    async def ask(
        self, peers: Iterable[PeerId], epoch: int, lineage: Lineage, electorate: Electorate | None = None
    ) -> tuple[Certified | None, frozenset[PeerId]]:
        """What followed a history, from the first who can prove it, and who has not answered anything of use.

        When several are asked and nobody knows, that takes until all have answered, or the time is over.

        Args:
            electorate: see ``believe``.
        """
        asking = {peer: asyncio.create_task(self._ask_one(peer, (epoch, lineage), electorate)) for peer in peers}
        try:
            async with asyncio.timeout(self._timeouts.verdict_s):
                for answer in asyncio.as_completed(asking.values()):
                    certified = await answer
                    if isinstance(certified, Certified):
                        return certified, frozenset()
        except TimeoutError:
            pass
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
        answered = {peer for peer, task in asking.items() if not task.cancelled() and task.result() is not None}
        return None, frozenset(asking.keys() - answered)

    async def _ask_one(
        self, peer: PeerId, instance: Instance, electorate: Electorate | None
    ) -> Certified | Literal["unknown"] | None:
        try:
            question = Message("verdict?", {"epoch": instance[0], "lineage": instance[1]})
            answer = await _exchange(self._transport, self._timeouts, peer, question)
            if answer.kind != "committed":
                return "unknown"
            return await self.believe(peer, answer, instance, electorate)
        except NetworkError:
            return None

    async def _answer(self, stream: Stream) -> None:
        question = await stream.receive(timeout_s=self._timeouts.answer_s())
        lineage = Lineage(question.get("lineage", str))
        if question.kind == "made?":
            maker = self.leading_to(lineage)
            answer = Message("unknown") if maker is None else Message("made", {"record": maker.to_fields()})
        else:
            known = self.committed(question.get("epoch", int), lineage)
            answer = Message("unknown") if known is None else Message("committed", known.to_fields())
        await stream.send(answer, timeout_s=self._timeouts.answer_s())


async def ask_maker(
    transport: Transport, timeouts: MeasuredTimeouts, peer: PeerId, lineage: Lineage
) -> CommitRecord | Literal["unknown"] | None:
    """The round that made the history ``lineage``, which names its digest; None: ``peer`` does not say."""
    try:
        answer = await _exchange(transport, timeouts, peer, Message("made?", {"lineage": lineage}))
        if answer.kind == "unknown":
            return "unknown"
        record = CommitRecord.from_fields(answer.get("record", dict))
    except NetworkError:
        return None
    return record if record.next_lineage() == lineage else None


async def _exchange(transport: Transport, timeouts: MeasuredTimeouts, peer: PeerId, question: Message) -> Message:
    """Raises ``NetworkError``."""
    with timeouts.asking(peer) as limit_s:
        stream = await transport.open(peer, VERDICT_PROTOCOL, timeout_s=limit_s)
        try:
            await stream.send(question, timeout_s=limit_s)
            return await stream.receive(timeout_s=limit_s)
        finally:
            stream.close()
