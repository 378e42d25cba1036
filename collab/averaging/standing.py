"""Standing streams between trainers and the peer that leads them: progress goes up, the call to a round comes down.

The directory takes tens of milliseconds to tell one peer what another said; a stream that is already open takes one
way. A trainer tells its leader of every microbatch and hears how far all are. As soon as the leader knows that they
have a batch together, it calls them, and each says when it can be there.

trainer -> leader  word     epoch, lineage, samples so far, speed
leader -> trainer  heard    the same of all trainers of this history together
leader -> trainer  call     your swarm has its batch: come
trainer -> leader  coming   in so many seconds | not at all
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from collab.averaging.deadlines import Arrivals
from collab.averaging.messages import NOT_COMING, Call, Reply
from collab.averaging.settings import RoundSettings
from collab.averaging.silence import Silence
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

STANDING_PROTOCOL = "collab/standing/1"
IDLE_S = 3600.0
RETRY_S = 1.0
"""After a leader could not be reached."""
FRESH_S = 1.0
"""An answer to a call that is older belongs to an attempt before."""
MAX_STANDING = 512
"""Streams that a leader keeps; whoever comes later is called over a stream of its own."""

History = tuple[int, Lineage]
"""Epoch and lineage."""
Attendance = Callable[[Call, PeerId], Reply]
"""Answers a leader's call."""
Leaders = Callable[[Lineage, int], list[PeerId]]
"""Peers to ask to lead the round of a lineage and epoch, best first; all peers see nearly the same list."""


@dataclass(frozen=True, slots=True)
class Word:
    """How far one trainer, or all of one history together, are towards the next step."""

    epoch: int
    lineage: Lineage
    samples: float
    samples_per_s: float

    @property
    def history(self) -> History:
        """What the samples are for."""
        return self.epoch, self.lineage

    def to_message(self, kind: str) -> Message:
        fields = {
            "epoch": self.epoch,
            "lineage": self.lineage,
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
        }
        return Message(kind, fields)

    @classmethod
    def from_message(cls, message: Message) -> "Word":
        """Raises ``BadMessage`` for anything malformed."""
        samples, speed = message.get("samples", float), message.get("samples_per_s", float)
        if not (0 <= samples < math.inf and 0 <= speed < math.inf):
            raise BadMessage(f"{message.kind} of {samples} samples at {speed} samples/s")
        return cls(message.get("epoch", int), Lineage(message.get("lineage", str)), samples, speed)


class Standing:
    """A trainer's end: one stream to whoever leads, opened again when that is somebody else."""

    def __init__(
        self, ports: Ports, fingerprint: str, leaders: Leaders, attend: Attendance, timeouts: MeasuredTimeouts
    ) -> None:
        self._transport, self._fingerprint, self._timeouts = ports.transport, fingerprint, timeouts
        self._leaders, self._attend = leaders, attend
        self._word: Word | None = None
        self._news = asyncio.Event()
        self._heard: tuple[Word, float, float] | None = None
        """What the leader said of all, our own samples in it, and when it came by the loop's clock."""
        self._leader: PeerId | None = None
        self._clock, self._silence = ports.clock.monotonic, Silence(ports.clock.monotonic, timeouts.fixed.silence_s)
        self._unanswered_s: float | None = None
        """When we said the first word that the leader has not answered."""

    @property
    def is_connected(self) -> bool:
        """Whether a leader hears us; one that does not answer may be frozen."""
        silent_s = 0.0 if self._unanswered_s is None else self._clock() - self._unanswered_s
        return self._leader is not None and silent_s <= self._silence.limit_s()

    def report(self, word: Word) -> None:
        """Tell the leader how far we are, as soon as it can be told."""
        self._word = word
        self._news.set()

    def seconds_to(self, target: float) -> float | None:
        """Predicted wait until all have ``target`` samples; None when the leader has not told us of this history."""
        if self._heard is None or self._word is None or self._heard[0].history != self._word.history:
            return None
        all_, ours_then, at_s = self._heard
        others_speed = max(all_.samples_per_s - self._word.samples_per_s, 0.0)
        elapsed_s = asyncio.get_running_loop().time() - at_s
        missing = target - all_.samples - (self._word.samples - ours_then) - others_speed * elapsed_s
        if missing <= 0:
            return 0.0
        return missing / others_speed if others_speed > 0 else math.inf

    async def run(self) -> None:
        """Keep the stream until cancelled."""
        while True:
            await self._news.wait()
            word = self._word
            leaders = self._leaders(word.lineage, word.epoch) if word is not None else []
            if leaders:
                try:
                    await self._stand(leaders[0])
                except NetworkError as error:
                    logger.debug("no standing stream leader=%s reason=%s", leaders[0], error)
                finally:
                    self._leader = self._heard = self._unanswered_s = None
            await asyncio.sleep(RETRY_S)

    async def _stand(self, leader: PeerId) -> None:
        """Until the stream breaks or somebody else leads."""
        with self._timeouts.asking(leader) as limit_s:
            stream = await self._transport.open(leader, STANDING_PROTOCOL, timeout_s=limit_s)
        hearing = asyncio.create_task(self._hear(stream, leader))
        try:
            await stream.send(Message("stand", {"fingerprint": self._fingerprint}), timeout_s=self._timeouts.answer_s())
            self._leader = leader
            while not hearing.done():
                word = self._word
                if word is not None and self._news.is_set():
                    if self._leaders(word.lineage, word.epoch)[:1] != [leader]:
                        return
                    self._news.clear()
                    self._unanswered_s = self._clock() if self._unanswered_s is None else self._unanswered_s
                    await stream.send(word.to_message("word"), timeout_s=self._timeouts.answer_s())
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait((news, hearing), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
            hearing.result()
        finally:
            self._news.set()
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            stream.close()

    async def _hear(self, stream: Stream, leader: PeerId) -> None:
        while True:
            message = await stream.receive(timeout_s=IDLE_S)
            if self._unanswered_s is not None:
                self._silence.ended(self._clock() - self._unanswered_s)
                self._unanswered_s = None
            if message.kind == "heard":
                ours = message.get("yours", float)
                if not 0 <= ours < math.inf:
                    raise BadMessage(f"leader {leader} heard {ours} samples of us")
                if self._word is not None:
                    self._heard = (Word.from_message(message), ours, asyncio.get_running_loop().time())
                continue
            call = Call.from_message(message)
            answer = self._attend(call, leader).to_message()
            answer.fields.update(epoch=call.epoch, lineage=call.lineage)
            await stream.send(answer, timeout_s=self._timeouts.answer_s())


@dataclass(slots=True, eq=False)
class _Stander:
    """One trainer, as its leader knows it."""

    stream: Stream
    word: Word | None = None
    called: History | None = None
    answer: asyncio.Future[Reply] | None = None
    answered_s: float = 0.0

    @property
    def is_answered(self) -> bool:
        return self.answer is not None and self.answer.done()

    @property
    def has_declined(self) -> bool:
        return self.answer is not None and self.answer.done() and not self.answer.result().is_coming


class Following:
    """A leader's end: who stands with us, how far they are, and calling them."""

    def __init__(self, ports: Ports, settings: RoundSettings, timeouts: MeasuredTimeouts) -> None:
        self._transport, self._settings = ports.transport, settings
        self._standers: dict[PeerId, _Stander] = {}
        self._timeouts = timeouts
        self.patience = Arrivals(timeouts.fixed.gather_limit_s)
        """How long trainers compute after a call before they can come."""
        self.left_out: frozenset[PeerId] = frozenset()
        """Trainers that the newest plan leaves out: what they hold waits, and fills no batch for the others."""

    async def serve(self) -> None:
        """Begin to take trainers in."""
        await self._transport.serve(STANDING_PROTOCOL, self._serve)

    def at(self, history: History) -> frozenset[PeerId]:
        """Trainers that stand with us and last spoke of ``history``."""
        return frozenset(
            peer for peer, stander in self._standers.items() if stander.word and stander.word.history == history
        )

    def samples_per_s(self, history: History) -> float:
        """Speed of all trainers that stand with us at ``history``."""
        words = [stander.word for stander in self._standers.values() if stander.word]
        return math.fsum(word.samples_per_s for word in words if word.history == history)

    async def call(self, peer: PeerId, history: History) -> Reply:
        """Ask a trainer that stands with us to come; its answer, as of now.

        Raises:
            NetworkError: it does not answer.
            KeyError: it does not stand with us.
        """
        stander = self._standers[peer]
        loop = asyncio.get_running_loop()
        if stander.is_answered and loop.time() - stander.answered_s > FRESH_S:
            stander.called = None  # what it said was for an earlier attempt
        await self._call(stander, history)
        if stander.answer is None:
            return NOT_COMING
        with self._timeouts.asking(peer) as limit_s:
            try:
                async with asyncio.timeout(limit_s):
                    reply = await asyncio.shield(stander.answer)
            except TimeoutError:
                raise TimedOut(f"{peer} does not answer the call within {limit_s:.1f} s") from None
        return reply.after(loop.time() - stander.answered_s)

    async def _call(self, stander: _Stander, history: History) -> None:
        """Once for each history; again whoever declined and speaks of it still."""
        if stander.called == history and not stander.has_declined:
            return
        stander.called, stander.answer = history, asyncio.get_running_loop().create_future()
        call = Call(*history, self.patience.deadline_s())
        await stander.stream.send(call.to_message(), timeout_s=self._timeouts.answer_s())

    async def _serve(self, stream: Stream) -> None:
        hello = await stream.receive(timeout_s=self._timeouts.answer_s())
        if hello.get("fingerprint", str) != self._settings.fingerprint or len(self._standers) >= MAX_STANDING:
            return
        stander = self._standers[stream.remote] = _Stander(stream)
        try:
            while True:
                message = await stream.receive(timeout_s=IDLE_S)
                if message.kind == "word":
                    stander.word = Word.from_message(message)
                    await self._consider(stander, stander.word)
                elif message.kind == "coming":
                    self._take_answer(stander, message)
                else:
                    raise BadMessage(f"{stream.remote} sends {message.kind} over a standing stream")
        finally:
            if stander.answer is not None and not stander.answer.done():
                stander.answer.set_result(NOT_COMING)
            if self._standers.get(stream.remote) is stander:
                del self._standers[stream.remote]

    def _take_answer(self, stander: _Stander, message: Message) -> None:
        history = message.get("epoch", int), Lineage(message.get("lineage", str))
        reply = Reply.from_message(message)
        if stander.called == history and stander.answer is not None and not stander.answer.done():
            stander.answered_s = asyncio.get_running_loop().time()
            stander.answer.set_result(reply)

    async def _consider(self, stander: _Stander, word: Word) -> None:
        """A trainer has got further: tell it where all are, or call everybody. Every word gets an answer."""
        together = [other for other in self._standers.values() if other.word and other.word.history == word.history]
        counted = [other for other in together if other.stream.remote not in self.left_out] or together
        samples = math.fsum(other.word.samples for other in counted if other.word)
        speed = math.fsum(other.word.samples_per_s for other in counted if other.word)
        timeout_s = self._timeouts.answer_s()
        if samples >= self._settings.target_samples:
            was_called = stander.called == word.history and not stander.has_declined
            await asyncio.gather(*(self._call(other, word.history) for other in together), return_exceptions=True)
            if not was_called:
                return
        heard = Word(word.epoch, word.lineage, samples, speed).to_message("heard")
        heard.fields["yours"] = word.samples
        await stander.stream.send(heard, timeout_s=timeout_s)
