"""Standing streams between trainers and the peer that leads them: progress goes up, the call to a round comes down.

Here is the trainer's end; the leader's is ``following``.

The directory takes tens of milliseconds to tell one peer what another said; a stream that is already open takes one
way. A trainer tells its leader of every microbatch and hears when the batch is due. As soon as the leader knows that
they have it together, it calls them, and each says when it can be there.

Every word gets one answer, and a few words at most are on their way: a leader that is slower than its trainers hears
of fewer microbatches, and not of ever older ones.

trainer -> leader  word     epoch, lineage, samples so far, speed, seconds of a microbatch, whether it is catching up
leader -> trainer  heard    when all trainers of this history will have their batch together; the answer to a word
leader -> trainer  call     your swarm has its batch: come
trainer -> leader  coming   in so many seconds | not at all
leader -> trainer  awaited  you are behind, and the others put their round off for you, for so many seconds
trainer -> leader  sorry    that is not enough
leader -> trainer  full     as many stand with me as can; you are called over a stream of its own
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from collab.averaging.calls import Call, Reply
from collab.averaging.claims import MOST_CLAIMED
from collab.averaging.silence import Silence
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

STANDING_PROTOCOL = "collab/standing/4"
IDLE_S = 3600.0
RETRY_S = 1.0
"""After a leader could not be reached."""
FULL_S = 30.0
"""After a leader had no room; it may have by then."""
MAX_UNANSWERED = 4
"""Words on their way: the first ones of a step are said at once, later ones may wait for a round trip."""
History = tuple[int, Lineage]
"""Epoch and lineage."""
Attendance = Callable[[Call, PeerId], Reply]
"""Answers a leader's call."""
Leaders = Callable[[Lineage, int], list[PeerId]]
"""Peers to ask to lead the round of a lineage and epoch, best first; all peers see nearly the same list."""


@dataclass(frozen=True, slots=True)
class Word:
    """How far a trainer is towards the next step."""

    epoch: int
    lineage: Lineage
    samples: float
    samples_per_s: float
    microbatch_s: float = 0.0
    """After which it speaks again; 0: not known yet."""
    is_syncing: bool = False
    """Whether it fetches what it missed."""

    @property
    def history(self) -> History:
        """What the samples are for."""
        return self.epoch, self.lineage

    def to_message(self) -> Message:
        return Message("word", asdict(self))

    @classmethod
    def from_message(cls, message: Message) -> "Word":
        """Raises ``BadMessage`` for anything malformed."""
        word = cls(
            epoch=message.get("epoch", int),
            lineage=Lineage(message.get("lineage", str)),
            samples=message.get("samples", float),
            samples_per_s=message.get("samples_per_s", float),
            microbatch_s=message.get("microbatch_s", float),
            is_syncing=message.get("is_syncing", bool),
        )
        if not all(0 <= figure <= MOST_CLAIMED for figure in (word.samples, word.samples_per_s, word.microbatch_s)):
            raise BadMessage(f"{word.samples} samples at {word.samples_per_s} a second, each {word.microbatch_s} s")
        return word


@dataclass(frozen=True, slots=True)
class Heard:
    """A leader's answer to a word."""

    epoch: int
    lineage: Lineage
    due_s: float
    """Until the batch is there, if all others compute on and we end our present microbatch."""

    def to_message(self) -> Message:
        return Message("heard", asdict(self))

    @classmethod
    def from_message(cls, message: Message) -> "Heard":
        """Raises ``BadMessage`` for anything malformed."""
        heard = cls(message.get("epoch", int), Lineage(message.get("lineage", str)), message.get("due_s", float))
        if not 0 <= heard.due_s < math.inf:
            raise BadMessage(f"a leader expects the batch in {heard.due_s} s")
        return heard


@dataclass(frozen=True, slots=True)
class Awaited:
    """A leader's word to somebody who is behind."""

    epoch: int
    lineage: Lineage
    """Of the round that is put off."""
    patience_s: float

    def to_message(self) -> Message:
        return Message("awaited", asdict(self))

    @classmethod
    def from_message(cls, message: Message) -> "Awaited":
        """Raises ``BadMessage`` for anything malformed."""
        epoch, lineage = message.get("epoch", int), Lineage(message.get("lineage", str))
        awaited = cls(epoch, lineage, message.get("patience_s", float))
        if not 0 <= awaited.patience_s < math.inf:
            raise BadMessage(f"a leader waits for us for {awaited.patience_s} s")
        return awaited


class Standing:
    """A trainer's end: one stream to whoever leads, opened again when that is somebody else."""

    def __init__(
        self, ports: Ports, fingerprint: str, leaders: Leaders, attend: Attendance, timeouts: MeasuredTimeouts
    ) -> None:
        self._transport, self._fingerprint, self._timeouts = ports.transport, fingerprint, timeouts
        self._leaders, self._attend = leaders, attend
        self.catches_up: Callable[[Awaited], bool] = lambda _: False
        """Whether we are there when a leader has put a round off for us; hurries us."""
        self._word: Word | None = None
        self._news = asyncio.Event()
        self._heard: tuple[Heard, float] | None = None
        """What the leader said, and when it came by our clock."""
        self._leader: PeerId | None = None
        self._stream: Stream | None = None
        self._clock, self._silence = ports.clock.monotonic, Silence(ports.clock.monotonic, timeouts.fixed.silence_s)
        self._unanswered_s: float | None = None
        """Since when we wait for anything from the leader."""
        self._unanswered, self._answered = 0, asyncio.Event()
        """Words that the leader has not answered; and whether it has answered one since they were too many."""

    @property
    def is_connected(self) -> bool:
        """Whether a leader hears us; one that does not answer may be frozen."""
        return self._leader is not None and self._left_s() >= 0 and not self._timeouts.has_missed(self._leader)

    def _left_s(self) -> float:
        """Until a leader counts as gone that has not answered our word."""
        if self._unanswered_s is None:
            return math.inf
        return self._unanswered_s + self._silence.limit_s() - self._clock()

    def report(self, word: Word) -> None:
        """Tell the leader how far we are, as soon as it can be told."""
        self._word = word
        self._news.set()

    def let_go(self) -> None:
        """Look for a leader anew, for the present one does not bring us further."""
        if self._leader is not None and self._stream is not None:
            self._timeouts.miss(self._leader)
            self._stream.close()

    @property
    def due_s(self) -> float | None:
        """Until the batch should be there, less than 0 when it should be; None when the leader has not told us."""
        if self._heard is None or self._word is None:
            return None
        heard, at_s = self._heard
        if (heard.epoch, heard.lineage) != self._word.history:
            return None
        return heard.due_s - (self._clock() - at_s)

    async def run(self) -> None:
        """Keep the stream until cancelled."""
        while True:
            await self._news.wait()
            word = self._word
            if word is not None and (leader := self._first_leader(word)) is not None:
                is_full = False
                try:
                    is_full = await self._stand(leader)
                except NetworkError as error:
                    logger.debug("no standing stream leader=%s reason=%s", leader, error)
                finally:
                    self._leader = self._heard = self._unanswered_s = None
                await self._rest(leader, word, FULL_S if is_full else RETRY_S)
            else:
                await asyncio.sleep(RETRY_S)

    async def _rest(self, leader: PeerId, word: Word, for_s: float) -> None:
        """Do without a leader for so long, unless somebody else leads."""
        until_s = self._clock() + for_s
        while self._clock() < until_s and self._first_leader(self._word or word) == leader:
            await asyncio.sleep(RETRY_S)

    def _first_leader(self, word: Word) -> PeerId | None:
        """One that answers, if there is one."""
        return next(iter(self._timeouts.responsive(self._leaders(word.lineage, word.epoch))), None)

    async def _stand(self, leader: PeerId) -> bool:
        """Until the stream breaks, the leader falls silent, or somebody else leads; whether the leader has no room."""
        try:
            stream = await self._transport.open(leader, STANDING_PROTOCOL, timeout_s=self._timeouts.answer_s(leader))
        except NetworkError:
            self._timeouts.miss(leader)
            raise
        hearing = asyncio.create_task(self._hear(stream, leader))
        try:
            await stream.send(Message("stand", {"fingerprint": self._fingerprint}), timeout_s=self._timeouts.answer_s())
            self._leader, self._stream, self._unanswered = leader, stream, 0
            while not hearing.done():
                word, next_turn = self._word, self._answered
                if self._unanswered < MAX_UNANSWERED:
                    next_turn = self._news
                    if word is not None and self._news.is_set():
                        if self._first_leader(word) != leader:
                            return False
                        await self._say(stream, word)
                        continue
                news = asyncio.create_task(next_turn.wait())
                left_s = self._left_s()
                await asyncio.wait((news, hearing), timeout=min(left_s, IDLE_S), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self._left_s() <= 0 and not hearing.done():
                    self._timeouts.miss(leader)
                    return False
            return hearing.result()
        finally:
            self._news.set()
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            del hearing  # it holds the error that it ended with, whose traceback holds this frame
            stream.close()

    async def _say(self, stream: Stream, word: Word) -> None:
        self._news.clear()
        self._answered.clear()
        self._unanswered += 1
        self._unanswered_s = self._clock() if self._unanswered_s is None else self._unanswered_s
        await stream.send(word.to_message(), timeout_s=self._timeouts.answer_s())

    async def _hear(self, stream: Stream, leader: PeerId) -> bool:
        """Until the stream breaks, or the leader says that it has no room: True then."""
        while (message := await stream.receive(timeout_s=IDLE_S)).kind != "full":
            self._timeouts.showed(leader)
            if message.kind == "heard":
                self._heard = Heard.from_message(message), self._clock()
                self._unanswered = max(self._unanswered - 1, 0)
                self._answered.set()
            if self._unanswered_s is not None:
                self._silence.ended(self._clock() - self._unanswered_s)
                self._unanswered_s = self._clock() if self._unanswered else None
            if message.kind == "heard":
                continue
            if message.kind == "awaited":
                awaited = Awaited.from_message(message)
                if not self.catches_up(awaited):
                    sorry = Message("sorry", {"epoch": awaited.epoch, "lineage": awaited.lineage})
                    await stream.send(sorry, timeout_s=self._timeouts.answer_s())
                continue
            call = Call.from_message(message)
            answer = self._attend(call, leader).to_message()
            answer.fields.update(epoch=call.epoch, lineage=call.lineage)
            await stream.send(answer, timeout_s=self._timeouts.answer_s())
        return True
