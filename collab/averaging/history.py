"""The last committed means, kept for peers that missed them: catching up costs one vector, not a whole state.

Results travel as they did in their round, encoded, so that the asker can check them against the record's digests.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed
from collab.averaging.certificates import Certified
from collab.averaging.donor import Donor, Streams
from collab.averaging.flow import Links
from collab.averaging.reduction import Result, span_digest
from collab.averaging.seats import Instance
from collab.averaging.silence import Silence
from collab.averaging.timeouts import FIRST
from collab.averaging.transcript import Transcript
from collab.errors import BadMessage, CollabError, StreamClosed
from collab.net.base import Stream, Transport
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.types import AnyVector, Lineage, PeerId, Vector

logger = logging.getLogger(__name__)

RESULTS_PROTOCOL = "collab/results/4"
KEPT_BYTES = 128 << 20
"""Of all kept means together. Vectors of more than 32 million elements are not kept: their peers fetch the state, which
is not much more than two of them."""
KEPT_ROUNDS = 8
"""As far back as a peer can be and still catch up step by step."""
SOON_S = 1.0
"""For the end of a round that somebody asks for while it goes on. Where rounds take longer so do the pauses between
them, in which whoever is a round behind has the time to get it."""
AT_ONCE = 2
"""Donors that are asked at a time; each costs its uplink what the others' rounds may need."""
LOOK_S = 0.25
"""How often donors are looked after."""

Believe = Callable[[PeerId, Message, Instance], Awaitable[Certified]]
"""What a peer's message tells of a round that followed a history; raises ``BadMessage`` if nothing proves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Committed):
    """A round that we were not in."""

    was_awaited: bool
    """Whether it was under way when we asked: nobody is further than that."""
    is_newest: bool
    """Whether the donor had nothing that follows it, nor was in such a round."""


@dataclass(frozen=True, slots=True)
class _Kept:
    certified: Certified
    mean: AnyVector
    transcript: Transcript


class History:
    """Remembers committed rounds by the history that they continue."""

    def __init__(self, transport: Transport, fingerprint: str, links: Links, believe: Believe) -> None:
        self._transport, self._fingerprint, self._links, self._believe = transport, fingerprint, links, believe
        self._silence = Silence(links.clock, FIRST.silence_s)
        self._rounds: OrderedDict[Instance, _Kept] = OrderedDict()
        self._expected = Counter[Instance]()
        """Rounds that we are in."""
        self._joinable = Counter[Instance]()
        """Rounds that we have tried to join, while others still can as well."""
        self._news = asyncio.Event()
        """One of these is over."""

    @property
    def _limit_s(self) -> float:
        """Of each message: as long as nothing may move in a round. What is behind a slow link comes late, and its
        thanks as late again; somebody else is asked long before.
        """
        return SOON_S + self._links.timeouts.stalled_s(0.0)

    async def serve(self) -> None:
        """Begin to answer peers that missed a round."""
        await self._transport.serve(RESULTS_PROTOCOL, self._answer)

    @contextmanager
    def expecting(self, instance: Instance, *, is_joinable: bool = False) -> Iterator[None]:
        """While we are in a round: whoever asks for it, because the one before was missed, gets it when it is over.

        Args:
            is_joinable: whoever can join it does not get it.
        """
        expected = self._joinable if is_joinable else self._expected
        expected[instance] += 1
        try:
            yield
        finally:
            expected[instance] -= 1
            if not expected[instance]:
                del expected[instance]
            self._news.set()

    def remember(self, certified: Certified, mean: AnyVector, transcript: Transcript) -> None:
        """Keep one committed round, and the proof that it was."""
        self._rounds[certified.record.epoch, certified.record.lineage] = _Kept(certified, mean, transcript)
        while self._rounds and (len(self._rounds) > KEPT_ROUNDS or self._kept_bytes() > KEPT_BYTES):
            self._rounds.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(kept.mean.nbytes + kept.transcript.kept_bytes for kept in self._rounds.values())

    async def fetch(
        self, peers: list[PeerId], instance: Instance, num_elements: int, *, waits: bool = True, joins: bool = False,
        kept: Streams | None = None,
    ) -> Missed | None:  # fmt: skip
        """The round that continued a history, from the first of ``peers`` that brings it. It is kept, too.

        A donor that says nothing for longer than donors pause, or brings far less than our link carries, is not waited
        for: the next one is asked beside it. What does not fit its record, or the record that we know, is refused.

        Args:
            instance: after how many steps, and which history.
            waits: for a round that goes on; else what is not over is not there.
            joins: it, if that can still be done, rather than to wait for it.
            kept: streams to donors of earlier rounds, who are asked first; the donor's is put there.
        """
        waiting = sorted(peers, key=lambda peer: peer not in (kept or ()))
        asked = dict[asyncio.Task[Missed], Donor]()
        how = {"waits": waits} | ({"joins": True} if joins else {})
        try:
            while waiting or asked:
                if waiting and all(donor.is_behind() for donor in asked.values()):
                    await self._make_room(asked)
                    donor = Donor(waiting.pop(0), self._links, self._silence)
                    fetching = self._fetch_from(donor, instance, num_elements, how, kept)
                    asked[asyncio.create_task(fetching)] = donor
                done, _ = await asyncio.wait(asked, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    donor = asked.pop(task)
                    if not isinstance(task.exception(), CollabError):  # raised here its traceback would hold the task
                        return task.result()
                    reason = task.exception()
                    logger.info("no result from peer=%s epoch=%d reason=%s", donor.peer, instance[0], reason)
            return None
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _make_room(self, asked: dict[asyncio.Task[Missed], Donor]) -> None:
        """For one more donor: whoever brought least is given up."""
        while len(asked) >= AT_ONCE:
            task = min(asked, key=lambda task: asked[task].num_bytes)
            logger.info("donor is too slow peer=%s bytes=%d", asked[task].peer, asked.pop(task).num_bytes)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _fetch_from(
        self, donor: Donor, instance: Instance, num_elements: int, how: Mapping[str, bool], kept: Streams | None
    ) -> Missed:
        fields = {"fingerprint": self._fingerprint, "epoch": instance[0], "lineage": instance[1], **how}
        opened, answer = await self._ask(donor, Message("get", fields), kept.pop(donor.peer, None) if kept else None)
        stream, is_kept = donor.heard(opened), False
        try:
            if answer.kind != "result":
                raise BadMessage(f"{donor.peer} does not have the round after epoch {instance[0]}")
            certified = await self._believe(donor.peer, answer, instance)
            record = certified.record
            if record.num_elements != num_elements:
                raise BadMessage(f"{donor.peer} sent {record.num_elements} elements of {num_elements}")
            transcript = Transcript.from_fields(answer.get("transcript", dict))
            mean = await _receive_results(stream, record, transcript, self._limit_s)
            await stream.send(Message("thanks"), timeout_s=self._limit_s)
            self.remember(certified, mean, transcript)  # others may have missed it, too
            is_newest = "is_newest" in answer.fields and answer.get("is_newest", bool)  # older donors do not say
            was_awaited = answer.get("was_awaited", bool)
            is_kept = kept is not None
            return Missed(mean=mean, record=record, was_awaited=was_awaited, is_newest=is_newest)
        finally:
            if kept is not None and is_kept:
                kept[donor.peer] = opened
            else:
                opened.close()

    async def _ask(self, donor: Donor, question: Message, before: Stream | None) -> tuple[Stream, Message]:
        """Over the stream of the round ``before``, if it still stands: older donors close it."""
        if before is not None:
            with suppress(StreamClosed):
                return before, await self._answer_to(question, donor, before)
        stream = await self._transport.open(donor.peer, RESULTS_PROTOCOL, timeout_s=self._limit_s)
        return stream, await self._answer_to(question, donor, stream)

    async def _answer_to(self, question: Message, donor: Donor, stream: Stream) -> Message:
        try:
            await stream.send(question, timeout_s=self._limit_s)
            return await donor.heard(stream).receive(timeout_s=self._limit_s)
        except BaseException:
            stream.close()
            raise

    async def _over(self, instance: Instance, *, waits: bool, joins: bool) -> _Kept | None:
        """A round that we hold, or will hold in a moment."""
        if not waits:
            return self._rounds.get(instance)

        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                while instance not in self._rounds and self._is_coming(instance, joins=joins):
                    self._news.clear()
                    await self._news.wait()
        return self._rounds.get(instance)

    def _is_coming(self, instance: Instance, *, joins: bool) -> bool:
        return instance in self._expected or (instance in self._joinable and not joins)

    async def _answer(self, stream: Stream) -> None:
        """Round after round, to who asks for the next one over the same stream."""
        while await self._give(stream):
            pass

    async def _give(self, stream: Stream) -> bool:
        """One round; whether there was one."""
        request = await stream.receive(timeout_s=self._limit_s)
        instance = request.get("epoch", int), Lineage(request.get("lineage", str))
        was_there = instance in self._rounds
        joins = "joins" in request.fields and request.get("joins", bool)
        waits = request.get("waits", bool)
        kept = await self._over(instance, waits=waits, joins=joins)
        if kept is None or request.get("fingerprint", str) != self._fingerprint:
            await stream.send(Message("unknown"), timeout_s=self._limit_s)
            return False
        following = instance[0] + 1, kept.certified.record.next_lineage()
        is_newest = following not in self._rounds and not (waits and self._is_coming(following, joins=joins))
        words = {"transcript": kept.transcript.to_fields(), "was_awaited": not was_there, "is_newest": is_newest}
        fields = {**kept.certified.to_fields(), **words}
        await stream.send(Message("result", fields), timeout_s=self._limit_s)
        for result in kept.transcript.results(kept.certified.record, kept.mean):
            await send_bytes(stream, result.data, timeout_s=self._limit_s)
        await stream.receive(timeout_s=self._limit_s)  # "thanks": everything arrived
        return True


async def _receive_results(
    stream: Stream, record: CommitRecord, transcript: Transcript, limit_s: float
) -> Vector:
    """[num_elements] of what the record is about.

    Raises:
        BadMessage: it is not, or not finite.
    """
    mean, codec = np.empty(record.num_elements, np.float32), transcript.encoding()
    digests: list[list[bytes]] = [[] for _ in record.pieces]
    for place, start, stop in transcript.parts(record):
        data = await receive_bytes(stream, codec.encoded_bytes(stop - start), timeout_s=limit_s)
        digests[place[0]].append(Result(data, transcript.missing.get(place, ())).digest())
        mean[start:stop] = codec.decode(data, stop - start)
        if not np.isfinite(mean[start:stop]).all():
            raise BadMessage("the mean has NaN or Inf")
    if tuple(span_digest(piece) for piece in digests) != record.digests:
        raise BadMessage(f"{stream.remote} sent other bytes than the record is about")
    return mean
