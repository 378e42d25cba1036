"""Leading a round from BEGIN to its verdict: hears the members, and tells them what ``course`` decides."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress

from collab.averaging.agreement import CommitRecord
from collab.averaging.certificates import Certified
from collab.averaging.complaints import MAX_TEXT, Case, Complaint
from collab.averaging.course import Course
from collab.averaging.laggards import Laggards, Progress
from collab.averaging.notary import Notary
from collab.averaging.silence import Silence
from collab.averaging.steps import Abort, Action, Commit, Halt, Lead, Mend, Prepare, Report, Stage
from collab.averaging.timeouts import MeasuredTimeouts
from collab.averaging.votes import Votes
from collab.concurrency import Background
from collab.errors import BadCertificate, BadMessage, CollabError, NetworkError, SplitDecision
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

SPLIT = "split_decision"
"""Why somebody leaves the round that knows of another decision than ours."""
IDLE_S = 3600.0
"""Silence is judged by signs of life, not by a stream's own limit."""


LOOK_S = 0.1
"""Between two looks at everybody, however much is said: a look costs up to the square of the group's size."""


class Conductor:
    """Takes one round to its end; every member has its verdict when it is over."""

    def __init__(
        self,
        course: Course,
        streams: Mapping[PeerId, Stream],
        timeouts: MeasuredTimeouts,
        silence: Silence,
        notary: Notary,
    ) -> None:
        self.course = course
        self._votes = Votes(course.group, notary)
        self._streams, self._timeouts = dict(streams), timeouts
        self._watches = {peer: timeouts.watch(peer, silence, queue_s=course.group.queue_s) for peer in streams}
        self._limit = silence
        self._heard: asyncio.Queue[tuple[PeerId, Message | NetworkError]] = asyncio.Queue()
        self._taken = {peer: asyncio.Event() for peer in streams}
        """Nothing more is read of a member until what it said was taken: who says much waits for itself."""
        self._judge_at_s = math.inf
        self._looked_s, self._look_at_s = -math.inf, 0.0
        """When we looked at everybody last, and when at the latest we look again."""
        self._verdict: Certified | Abort | None = None
        self._dropped: set[PeerId] = set()
        self._relieved: set[PeerId] = set()
        self._laggards = Laggards(course.group, self._now_s())
        self._is_cut_off = False
        self._listening = set(streams)
        """Members whose stream may still bring something of this round."""

    async def run(self, remember: Callable[[Certified], None]) -> CommitRecord | Abort | None:
        """Lead to the verdict, and tell it to everybody.

        Args:
            remember: takes record and proof before anybody is told: whoever loses our word and asks must get it.

        Returns:
            The record when the round committed; None when members have voted and no quorum of votes can come any more:
            it is then for the members to find out what became of it.
        """
        async with Background() as tasks:
            tasks.create_task(self._pulse())
            for peer, stream in self._streams.items():
                tasks.create_task(self._listen(peer, stream))
            while self._verdict is None and not self._is_stuck():
                await self._wait()
                while (action := self.course.next_action()) is not None:
                    await self._do(action)
                await self._tell_dropped()
                self._log_relieved()
            if isinstance(self._verdict, Certified):
                remember(self._verdict)
            if self._verdict is not None:
                await self._announce()
                await self._hear_thanks()
            for peer in sorted(self._listening):
                self._streams[peer].close()
        return self._verdict.record if isinstance(self._verdict, Certified) else self._verdict

    async def _announce(self) -> None:
        """Tell the verdict to everybody, those included that are not in the round any more."""
        if isinstance(self._verdict, Certified):
            await self._tell(Message("commit", self._verdict.to_fields()), everybody=True)
        elif isinstance(self._verdict, Abort):
            await self._tell(abort_message(self._verdict.reason, self._verdict.text), everybody=True)

    async def _hear_thanks(self) -> None:
        """A stream whose member does not answer at once is of no further use: the answer would come into the next
        round.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.fixed.thanks_s):
                while self._listening:
                    peer, _ = await self._heard.get()
                    self._taken[peer].set()

    def _is_stuck(self) -> bool:
        """Whether too few members are left to vote, or to hear us: it is for others to lead on."""
        if self._is_cut_off:
            logger.warning("most members are silent at once, so others shall lead epoch=%d", self.course.group.epoch)
            return True
        return self.course.stage is Stage.VOTING and not self.course.can_decide()

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def _listen(self, peer: PeerId, stream: Stream) -> None:
        try:
            while True:
                message = await stream.receive(timeout_s=IDLE_S)
                self._watches[peer].heard()
                self._taken[peer].clear()
                self._heard.put_nowait((peer, message))
                if message.kind == "thanks":
                    return
                await self._taken[peer].wait()
        except NetworkError as error:
            self._heard.put_nowait((peer, error.again()))
        finally:
            self._listening.discard(peer)

    async def _wait(self) -> None:
        """Take what has come by now; then look who has been silent too long."""
        first = None
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(self._look_at_s, self._judge_at_s) - self._now_s(), 0.0)):
                first = await self._heard.get()
        if first is not None:
            await self._take(*first)
            self._look_at_s = min(self._look_at_s, self._looked_s + LOOK_S)
        for _ in range(self._heard.qsize()):  # and not what comes meanwhile: that may never end
            await self._take(*self._heard.get_nowait())
        if self._now_s() >= self._look_at_s:
            self._look()
        if not self.course.has_cases:
            self._judge_at_s = math.inf
        elif self._now_s() >= self._judge_at_s:
            self.course.judge()
            self._judge_at_s = math.inf

    def _look(self) -> None:
        """Who has been silent too long, or is long behind most others?"""
        left_s = {peer: self._watches[peer].left_s() for peer in sorted(self.course.live)}
        if min(left_s.values(), default=1.0) <= 0:
            quiet = sum(seconds < self._limit.limit_s() / 2 for seconds in left_s.values())
            self._is_cut_off = quiet > 1 and len(left_s) <= 2 * quiet  # it is rather we whom nobody reaches
        for peer in [peer for peer, seconds in left_s.items() if seconds <= 0 and not self._is_cut_off]:
            self.course.lose(peer, "silent", f"{peer} says nothing for {self._limit.limit_s():.1f} s")
        self._look_for_laggards()
        self._looked_s = self._now_s()
        waits = [self._timeouts.fixed.pulse_s, *(left_s[peer] for peer in self.course.live & left_s.keys())]
        self._look_at_s = self._looked_s + max(min(waits), 0.0)

    def _look_for_laggards(self) -> None:
        """Go on without what those lack who are long behind most others."""
        course, now_s = self.course, self._now_s()
        if course.stage is Stage.WORKING:
            for peer in self._laggards.late_senders(course.live - course.silenced, course.division, now_s):
                logger.info("peer sends too slowly peer=%s epoch=%d", peer, course.group.epoch)
                course.silence(peer)
            for peer in self._laggards.late_reducers(course.live, course.division, course.generation, now_s):
                course.relieve(peer, "slow_reducer", f"{peer} brings its results long after most others have theirs")
        if course.stage in (Stage.WORKING, Stage.HALTED, Stage.PROMISING):
            stage = 2 * course.generation + (course.stage is Stage.HALTED)
            for peer in self._laggards.late_members(course.live, course.awaited(), stage, now_s):
                course.lose(peer, "late", f"{peer} has not finished long after most others had")

    async def _take(self, peer: PeerId, heard: Message | NetworkError) -> None:
        """One message, or the end of a member's stream; nonsense speaks against its sender."""
        if isinstance(heard, NetworkError):
            self.course.lose(peer, "member_lost", f"{peer}: {heard.message}")
            return
        try:
            if peer in self.course.live or (heard.kind == "vote" and self.course.stage is Stage.VOTING):
                await self._understand(peer, heard)
        except BadCertificate as error:
            self.course.lose(peer, error.reason, f"{peer}: {error}")
        except SplitDecision as error:
            self.course.lose(peer, SPLIT, f"{peer}: {error}")
        except CollabError as error:
            self.course.lose(peer, "bad_report", f"{peer}: {error}")
        finally:
            self._watches[peer].excuse()  # nobody listened while this waited
            self._taken[peer].set()

    async def _understand(self, peer: PeerId, message: Message) -> None:
        course = self.course
        if message.kind == "working":
            came = {PeerId(sender): count for sender, count in message.rows("came", str, int)}
            held = message.get("held", list)
            if not all(isinstance(count, int) for count in held):
                raise BadMessage("a count that is no number")
            self._laggards.heard(peer, Progress(came, held))
        elif message.kind == "done":
            digests = message.get("digests", list)
            if not all(isinstance(digest, str | None) for digest in digests):
                raise BadMessage("a digest that is no text")
            gaps = tuple((PeerId(name), start, stop) for name, start, stop in message.rows("gaps", str, int, int))
            report = Report(tuple(digests), gaps)
            seat = await self._votes.seat_of(peer, message)
            course.take_report(peer, message.get("generation", int), report, seat)
        elif message.kind == "promised":
            course.take_promise(peer, await self._votes.seat_of(peer, message))
        elif message.kind == "held":
            counts = message.get("counts", list)
            if not all(isinstance(count, int) for count in counts):
                raise BadMessage("a count that is no number")
            course.take_held(peer, message.get("generation", int), counts)
        elif message.kind == "vote":
            course.take_vote(peer, await self._votes.voter_of(peer, message))
        elif message.kind == "complaint":
            course.complain(Case(peer, Complaint.from_message(message)))
            if self._judge_at_s == math.inf and course.has_cases:
                self._judge_at_s = self._now_s() + self._timeouts.blame_s
        elif message.kind == "declined":
            course.lose(peer, "declined", f"{peer} does not go on: {message.get('text', str)[:MAX_TEXT]}")
        else:
            raise BadMessage(f"expected a report, got {message.kind}")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # -- telling -----------------------------------------------------------------------------------------------------

    async def _do(self, action: Action) -> None:
        group = self.course.group
        if isinstance(action, Halt):
            for peer in action.gone:
                reason, text = self.course.gone[peer]
                logger.info("peer leaves the round peer=%s epoch=%d reason=%s text=%s", peer, group.epoch, reason, text)
            whom = {"gone": list(action.gone), "silenced": list(action.silenced)}
            await self._tell(Message("halt", {"generation": action.generation, "broken": list(action.broken), **whom}))
        elif isinstance(action, Mend):
            logger.info("work is divided anew epoch=%d jobs=%d", group.epoch, len(action.division.jobs))
            await self._tell(Message("mend", {"generation": action.generation, "jobs": action.division.to_rows()}))
        elif isinstance(action, Lead):
            await self._tell(Message("lead", {"ballot": action.ballot.number}))
        elif isinstance(action, Prepare):
            self._votes.ask_for(action)
            await self._tell(Message("prepare", {"record": action.record.to_fields()}))
        elif isinstance(action, Commit):
            self._verdict = self._votes.certify(action.record)
        else:
            self._verdict = action

    async def _tell_dropped(self) -> None:
        """Those who are there, and not in the round any more, need not go on."""
        for peer in sorted((self.course.gone.keys() & self._streams.keys()) - self._dropped):
            self._dropped.add(peer)
            reason, text = self.course.gone[peer]
            await self._send(peer, Message("dropped", {"reason": reason, "text": text}))

    def _log_relieved(self) -> None:
        for peer in sorted(self.course.relieved.keys() - self._relieved):
            self._relieved.add(peer)
            reason, text = self.course.relieved[peer]
            epoch = self.course.group.epoch
            logger.info("peer reduces no more peer=%s epoch=%d reason=%s text=%s", peer, epoch, reason, text)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.fixed.pulse_s)
            await self._tell(Message("wait"), everybody=True)

    async def _tell(self, message: Message, *, everybody: bool = False) -> None:
        """Send to every member at once; one that is gone will be met by those who need it."""
        peers = list(self._streams) if everybody else sorted(self.course.live & self._streams.keys())
        await asyncio.gather(*(self._send(peer, message) for peer in peers))

    async def _send(self, peer: PeerId, message: Message) -> None:
        try:
            await self._streams[peer].send(message, timeout_s=self._timeouts.answer_s())
        except NetworkError as error:
            self._heard.put_nowait((peer, error.again()))


def abort_message(reason: str, text: str) -> Message:
    """The leader's word that a round never happened."""
    return Message("abort", {"reason": reason, "text": text})
