"""Standing streams between trainers and the peer that leads them: progress goes up, the call to a round comes down.

Here is the trainer's end; the leader's is ``following``.

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

from collab.averaging.calls import Call, Reply
from collab.averaging.silence import Silence
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

STANDING_PROTOCOL = "collab/standing/1"
IDLE_S = 3600.0
RETRY_S = 1.0
"""After a leader could not be reached."""
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
        self._stream: Stream | None = None
        self._clock, self._silence = ports.clock.monotonic, Silence(ports.clock.monotonic, timeouts.fixed.silence_s)
        self._unanswered_s: float | None = None
        """When we said the first word that the leader has not answered."""

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
            if word is not None and (leader := self._first_leader(word)) is not None:
                try:
                    await self._stand(leader)
                except NetworkError as error:
                    logger.debug("no standing stream leader=%s reason=%s", leader, error)
                finally:
                    self._leader = self._heard = self._unanswered_s = None
                if self._first_leader(word) != leader:
                    continue
            await asyncio.sleep(RETRY_S)

    def _first_leader(self, word: Word) -> PeerId | None:
        """One that answers, if there is one."""
        return next(iter(self._timeouts.responsive(self._leaders(word.lineage, word.epoch))), None)

    async def _stand(self, leader: PeerId) -> None:
        """Until the stream breaks, the leader falls silent, or somebody else leads."""
        try:
            stream = await self._transport.open(leader, STANDING_PROTOCOL, timeout_s=self._timeouts.answer_s(leader))
        except NetworkError:
            self._timeouts.miss(leader)
            raise
        hearing = asyncio.create_task(self._hear(stream, leader))
        try:
            await stream.send(Message("stand", {"fingerprint": self._fingerprint}), timeout_s=self._timeouts.answer_s())
            self._leader, self._stream = leader, stream
            while not hearing.done():
                word = self._word
                if word is not None and self._news.is_set():
                    if self._first_leader(word) != leader:
                        return
                    self._news.clear()
                    self._unanswered_s = self._clock() if self._unanswered_s is None else self._unanswered_s
                    await stream.send(word.to_message("word"), timeout_s=self._timeouts.answer_s())
                news = asyncio.create_task(self._news.wait())
                left_s = self._left_s()
                await asyncio.wait((news, hearing), timeout=min(left_s, IDLE_S), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self._left_s() <= 0 and not hearing.done():
                    self._timeouts.miss(leader)
                    return
            hearing.result()
        finally:
            self._news.set()
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            stream.close()

    async def _hear(self, stream: Stream, leader: PeerId) -> None:
        while True:
            message = await stream.receive(timeout_s=IDLE_S)
            self._timeouts.showed(leader)
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
