"""Leading a round from BEGIN to its verdict: hears the members, and tells them what ``course`` decides."""

import asyncio
import logging
from collections.abc import Mapping

from collab.averaging.agreement import CommitRecord
from collab.averaging.complaints import Case
from collab.averaging.course import Abort, Action, Commit, Course, Halt, Mend, Prepare, Report, Stage
from collab.averaging.messages import Complaint, Group
from collab.averaging.silence import Silence
from collab.averaging.timeouts import RoundTimeouts
from collab.concurrency import Background
from collab.errors import BadMessage, CollabError, NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

IDLE_S = 3600.0
"""Silence is judged by signs of life, not by a stream's own limit."""


class Conductor:
    """Takes one round to its end; every member has its verdict when it is over."""

    def __init__(
        self, group: Group, streams: Mapping[PeerId, Stream], timeouts: RoundTimeouts, silence: Silence
    ) -> None:
        self.course = Course.of(group)
        self._streams, self._timeouts = dict(streams), timeouts
        self._watches = {peer: silence.watch() for peer in streams}
        self._limit = silence
        self._heard: asyncio.Queue[tuple[PeerId, Message | NetworkError]] = asyncio.Queue()
        self._judge_at_s: float | None = None
        self._verdict: Commit | Abort | None = None
        self._dropped: set[PeerId] = set()
        self._listening: dict[PeerId, asyncio.Task[None]] = {}

    async def run(self) -> CommitRecord | Abort | None:
        """The record when the round committed; None when members have voted and no quorum of votes can come any more:
        it is then for the members to find out what became of it.
        """
        async with Background() as tasks:
            tasks.create_task(self._pulse())
            self._listening = {
                peer: asyncio.create_task(self._listen(peer, stream)) for peer, stream in self._streams.items()
            }
            while self._verdict is None and not self._is_stuck():
                await self._wait()
                while (action := self.course.next_action()) is not None:
                    await self._do(action)
                await self._tell_dropped()
        return self._verdict.record if isinstance(self._verdict, Commit) else self._verdict

    async def announce(self) -> None:
        """Tell the verdict to everybody, those included that are not in the round any more; streams whose member does
        not answer at once are of no further use.
        """
        if isinstance(self._verdict, Commit):
            await self._tell(Message("commit", {"record": self._verdict.record.to_fields()}), everybody=True)
        elif isinstance(self._verdict, Abort):
            await self._tell(abort_message(self._verdict.reason, self._verdict.text), everybody=True)
        await asyncio.wait(self._listening.values(), timeout=self._timeouts.thanks_s)
        for peer, task in self._listening.items():
            if not task.done():
                task.cancel()
                self._streams[peer].close()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)

    def _is_stuck(self) -> bool:
        """Whether too few members are left to vote."""
        return self.course.stage is Stage.VOTING and not self.course.group.has_quorum(self.course.voters())

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def _listen(self, peer: PeerId, stream: Stream) -> None:
        try:
            while True:
                message = await stream.receive(timeout_s=IDLE_S)
                self._watches[peer].heard()
                if message.kind == "thanks":
                    return
                if message.kind != "working":
                    self._heard.put_nowait((peer, message))
        except NetworkError as error:
            self._heard.put_nowait((peer, error))

    async def _wait(self) -> None:
        """Take what has come; without anything, look who has been silent too long."""
        try:
            async with asyncio.timeout(self._patience_s()):
                self._take(*await self._heard.get())
        except TimeoutError:
            pass
        while not self._heard.empty():
            self._take(*self._heard.get_nowait())
        for peer in sorted(self.course.live):
            if self._watches[peer].left_s() <= 0:
                self.course.lose(peer, "silent", f"{peer} says nothing for {self._limit.limit_s():.1f} s")
        if not self.course.has_cases:
            self._judge_at_s = None
        elif self._judge_at_s is not None and self._now_s() >= self._judge_at_s:
            self.course.judge()
            self._judge_at_s = None

    def _patience_s(self) -> float:
        """Until somebody counts as gone, or complaints are to be judged."""
        waits = [self._watches[peer].left_s() for peer in self.course.live]
        if self._judge_at_s is not None:
            waits.append(self._judge_at_s - self._now_s())
        return max(min(waits, default=self._timeouts.pulse_s), 0.0)

    def _take(self, peer: PeerId, heard: Message | NetworkError) -> None:
        """One message, or the end of a member's stream; nonsense speaks against its sender."""
        if isinstance(heard, NetworkError):
            self.course.lose(peer, "member_lost", f"{peer}: {heard.message}")
            return
        try:
            self._understand(peer, heard)
        except CollabError as error:
            self.course.lose(peer, "bad_report", f"{peer}: {error}")

    def _understand(self, peer: PeerId, message: Message) -> None:
        course = self.course
        if message.kind == "done":
            digests = message.get("digests", list)
            if not all(isinstance(digest, str | None) for digest in digests):
                raise BadMessage("a digest that is no text")
            gaps = tuple((PeerId(name), start, stop) for name, start, stop in message.rows("gaps", str, int, int))
            course.take_report(peer, message.get("generation", int), Report(tuple(digests), gaps))
        elif message.kind == "held":
            counts = message.get("counts", list)
            if not all(isinstance(count, int) for count in counts):
                raise BadMessage("a count that is no number")
            course.take_held(peer, message.get("generation", int), counts)
        elif message.kind == "vote":
            course.take_vote(peer)
        elif message.kind == "complaint":
            course.complain(Case(peer, Complaint.from_message(message)))
            if self._judge_at_s is None and course.has_cases:
                self._judge_at_s = self._now_s() + self._timeouts.blame_s
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
            fields = {"generation": action.generation, "gone": list(action.gone), "broken": list(action.broken)}
            await self._tell(Message("halt", fields))
        elif isinstance(action, Mend):
            logger.info("work is divided anew epoch=%d jobs=%d", group.epoch, len(action.division.jobs))
            await self._tell(Message("mend", {"generation": action.generation, "jobs": action.division.to_rows()}))
        elif isinstance(action, Prepare):
            await self._tell(Message("prepare", {"record": action.record.to_fields()}))
        else:
            self._verdict = action

    async def _tell_dropped(self) -> None:
        """Those who are there, and not in the round any more, need not go on."""
        for peer in self.course.gone.keys() - self._dropped:
            self._dropped.add(peer)
            reason, text = self.course.gone[peer]
            await self._send(peer, Message("dropped", {"reason": reason, "text": text}))

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.pulse_s)
            await self._tell(Message("wait"), everybody=True)

    async def _tell(self, message: Message, *, everybody: bool = False) -> None:
        """Send to every member at once; one that is gone will be met by those who need it."""
        peers = list(self._streams) if everybody else sorted(self.course.live)
        await asyncio.gather(*(self._send(peer, message) for peer in peers))

    async def _send(self, peer: PeerId, message: Message) -> None:
        try:
            await self._streams[peer].send(message, timeout_s=self._timeouts.reply_s)
        except NetworkError as error:
            self._heard.put_nowait((peer, error))


def abort_message(reason: str, text: str) -> Message:
    """The leader's word that a round never happened."""
    return Message("abort", {"reason": reason, "text": text})
