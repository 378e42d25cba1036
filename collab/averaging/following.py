"""The leader's end of standing streams: who stands with us, how far they are together, and calling them."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.claims import believed
from collab.averaging.courtesy import Courtesy
from collab.averaging.deadlines import Arrivals
from collab.averaging.forecast import FAR_S, HORIZON, Pace, Together, batch_due_s
from collab.averaging.settings import RoundSettings
from collab.averaging.standing import IDLE_S, STANDING_PROTOCOL, Awaited, Heard, History, Word
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import Lineage, PeerId

FRESH_S = 1.0
"""An answer to a call that is older belongs to an attempt before."""
PREPARE_S = 0.2
"""Before a batch is due the leader looks who is there."""
MAX_STANDING = 512
"""Streams that a leader keeps; whoever comes later is called over a stream of its own."""

NOTHING_SAID = Word(0, Lineage(""), 0.0, 0.0)


@dataclass(slots=True, eq=False)
class _Stander:
    """One trainer, as its leader knows it."""

    stream: Stream
    word: Word | None = None
    spoke_s: float = 0.0
    """When it came, by the loop's clock."""
    called: History | None = None
    answer: asyncio.Future[Reply] | None = None
    answered_s: float = 0.0
    has_spoken: bool = False
    """Since it answered: what it said may not hold any more."""
    hurried: History | None = None
    """To which round, that was put off for it."""
    excused: History | None = None
    """From this one of these."""
    is_gone: bool = False
    """Its stream ended, and what it was called for last was not answered."""

    @property
    def is_answered(self) -> bool:
        return self.answer is not None and self.answer.done()

    @property
    def has_declined(self) -> bool:
        return self.answer is not None and self.answer.done() and not self.answer.result().is_coming

    @property
    def pace(self) -> Pace:
        """As its last word shows it."""
        word, age_s = self.word or NOTHING_SAID, asyncio.get_running_loop().time() - self.spoke_s
        return Pace(samples=word.samples, samples_per_s=word.samples_per_s, microbatch_s=word.microbatch_s, age_s=age_s)

    def awaits_call(self, history: History) -> bool:
        """Once for each attempt; again when it has declined and speaks of its history still."""
        return self.called != history or (self.has_declined and self.has_spoken)

    def decline(self) -> None:
        """No answer comes any more to what it was called for."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(NOT_COMING)


class Following:
    """Everybody who stands with this peer."""

    def __init__(
        self, ports: Ports, settings: RoundSettings, timeouts: MeasuredTimeouts, prepare: Callable[[], None]
    ) -> None:
        """
        Args:
            prepare: called when a batch is nearly there, so that what its group needs is known then.
        """
        self._transport, self._settings, self._prepare = ports.transport, settings, prepare
        self._preparing: tuple[History, float, asyncio.Handle] | None = None
        """For which step, when (loop time), and the call that will be made then."""
        self._standers: dict[PeerId, _Stander] = {}
        self._together: dict[History, Together] = {}
        self._timeouts = timeouts
        self.patience = Arrivals(timeouts.fixed.gather_limit_s)
        """How long trainers compute after a call before they can come."""
        self._courtesy = Courtesy(ports.clock.monotonic, is_synchronous=settings.is_synchronous)
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
            KeyError: it does not stand with us, or does no more: it may be alive and stand with another leader.
        """
        stander = self._standers[peer]
        loop = asyncio.get_running_loop()
        if stander.has_declined or (stander.is_answered and loop.time() - stander.answered_s > FRESH_S):
            stander.called = None  # what it said was for an earlier attempt
        await self._call(stander, history)
        if stander.answer is None:
            return NOT_COMING
        with self._timeouts.asking(peer, is_quiet=True) as limit_s:
            try:
                async with asyncio.timeout(limit_s):
                    reply = await asyncio.shield(stander.answer)
            except TimeoutError:
                raise TimedOut(f"{peer} does not answer the call within {limit_s:.1f} s") from None
        if stander.is_gone:
            raise KeyError(peer)
        return reply.after(loop.time() - stander.answered_s)

    def forget_call(self, history: History) -> None:
        """A round of ``history`` came to nothing: whoever speaks of it still is called again."""
        for stander in self._standers.values():
            if stander.called == history:
                stander.decline()
                stander.called = None

    async def _call(self, stander: _Stander, history: History) -> None:
        if not stander.awaits_call(history):
            return  # somebody else's word has come between
        stander.called, stander.answer = history, asyncio.get_running_loop().create_future()
        call = Call(*history, self.patience.deadline_s())
        await stander.stream.send(call.to_message(), timeout_s=self._timeouts.answer_s())

    async def _serve(self, stream: Stream) -> None:
        hello = await stream.receive(timeout_s=self._timeouts.answer_s())
        if hello.get("fingerprint", str) != self._settings.fingerprint:
            return
        if (before := self._standers.get(stream.remote)) is not None:
            before.stream.close()  # the trainer gave it up, maybe while nobody heard it: nothing more comes there
        elif len(self._standers) >= MAX_STANDING:
            await self._turn_away(stream)
            return
        stander = self._standers[stream.remote] = _Stander(stream)
        try:
            while True:
                message = await stream.receive(timeout_s=IDLE_S)
                if message.kind == "word":
                    await self._take_word(stander, Word.from_message(message))
                elif message.kind == "coming":
                    self._take_answer(stander, message)
                elif message.kind == "sorry":
                    await self._excuse(stander, (message.get("epoch", int), Lineage(message.get("lineage", str))))
                else:
                    raise BadMessage(f"{stream.remote} sends {message.kind} over a standing stream")
        finally:
            stander.is_gone = not stander.is_answered
            stander.decline()
            self._forget_word(stander)
            if self._standers.get(stream.remote) is stander:
                del self._standers[stream.remote]

    async def _turn_away(self, stream: Stream) -> None:
        """Say that there is no room, and leave it to the trainer to end the stream: what was said may be lost else."""
        limit_s = self._timeouts.answer_s()
        await stream.send(Message("full"), timeout_s=limit_s)
        with suppress(TimeoutError, NetworkError):
            async with asyncio.timeout(limit_s):
                while True:
                    await stream.receive(timeout_s=limit_s)

    async def _take_word(self, stander: _Stander, word: Word) -> None:
        self._forget_word(stander)
        stander.word, stander.spoke_s, stander.has_spoken = word, asyncio.get_running_loop().time(), True
        there = self._together.setdefault(word.history, Together())
        there.add(word.samples, word.samples_per_s, stander.spoke_s)
        self._courtesy.heard_of(word.history)
        if stander.called != word.history:
            stander.decline()  # it has gone on since it was called
        due_s = FAR_S if self._is_far(word, there) else await self._consider(stander, word)
        heard = Heard(word.epoch, word.lineage, due_s).to_message()
        await stander.stream.send(heard, timeout_s=self._timeouts.answer_s())

    def _forget_word(self, stander: _Stander) -> None:
        """Something else is true of it by now."""
        if (word := stander.word) is None:
            return
        there = self._together[word.history]
        there.add(word.samples, word.samples_per_s, stander.spoke_s, trainers=-1)
        if not there.trainers:
            del self._together[word.history]
        stander.word = None

    def _is_far(self, word: Word, there: Together) -> bool:
        """Whether all together cannot have a batch within the time for which who has just spoken wants to know it."""
        out = [self._standers[peer].word for peer in self.left_out if peer in self._standers]
        counted = there.trainers - sum(one is not None and one.history == word.history for one in out)
        target = self._settings.batch_size(word.epoch, counted or there.trainers)
        return there.most(asyncio.get_running_loop().time() + min(HORIZON * word.microbatch_s, FAR_S)) < target

    def _take_answer(self, stander: _Stander, message: Message) -> None:
        history = message.get("epoch", int), Lineage(message.get("lineage", str))
        reply = Reply.from_message(message)
        if stander.called == history and stander.answer is not None and not stander.answer.done():
            stander.answered_s, stander.has_spoken = asyncio.get_running_loop().time(), False
            stander.answer.set_result(reply)

    async def _consider(self, stander: _Stander, word: Word) -> float:
        """A trainer has got further: call everybody if the batch is there; when it is due otherwise (s)."""
        together = [other for other in self._standers.values() if other.word and other.word.history == word.history]
        counted = [other for other in together if other.stream.remote not in self.left_out] or together
        claims = {other.stream.remote: other.word.samples for other in counted if other.word}
        target = self._settings.batch_size(word.epoch, len(counted))
        has_batch = believed(claims, self._settings.max_share) >= target
        awaited = self._put_off_for(word.history) if has_batch else []
        if awaited and self._settings.is_synchronous:  # what they wait for can be had now
            await asyncio.gather(*(self._hurry(other, word.history) for other in awaited), return_exceptions=True)
        elif has_batch and not awaited:
            self._courtesy.called()
            uncalled = [other for other in together if other.awaits_call(word.history)]
            await asyncio.gather(*(self._call(other, word.history) for other in uncalled), return_exceptions=True)
            if stander in uncalled:
                return 0.0
        others = [other.pace for other in counted if other is not stander]
        due_s = batch_due_s(others, stander.pace, target=target, max_share=self._settings.max_share)
        due_s = max(due_s, PREPARE_S) if awaited else due_s
        self._prepare_for(word.history, due_s)
        return self._courtesy.left_s if awaited else due_s  # nobody is to come before that without a call

    def _put_off_for(self, history: History) -> list[_Stander]:
        """For whom the round that is due waits."""
        words = {
            peer: stander.word
            for peer, stander in self._standers.items()
            if stander.word is not None and stander.excused != history
        }
        return [self._standers[peer] for peer in sorted(self._courtesy.put_off_for(history, words))]

    async def _hurry(self, stander: _Stander, history: History) -> None:
        """Tell somebody who is behind, once, that the others wait for it."""
        if stander.hurried != history:
            stander.hurried = history
            awaited = Awaited(*history, self._courtesy.left_s).to_message()
            await stander.stream.send(awaited, timeout_s=self._timeouts.answer_s())

    async def _excuse(self, stander: _Stander, history: History) -> None:
        """Somebody cannot be there in time: perhaps nothing holds the round up any more."""
        stander.excused = history
        for other in self._standers.values():
            if other.word is not None and other.word.history == history:
                await self._consider(other, other.word)
                return

    def _prepare_for(self, history: History, due_s: float) -> None:
        """Once for each history, shortly before its batch is there."""
        loop, before = asyncio.get_running_loop(), self._preparing
        at_s = loop.time() + max(due_s - PREPARE_S, 0.0)
        if due_s >= FAR_S or (before is not None and before[0] == history and before[1] <= loop.time()):
            return
        if before is not None:
            before[2].cancel()
        self._preparing = history, at_s, loop.call_at(at_s, self._prepare)
