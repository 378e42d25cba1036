"""Leading on with a round whose leader was lost: what a successor does with the members that come to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from collab.averaging.ballots import ballot_above
from collab.averaging.certificates import Certified
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import MAX_BALLOT, ROUND_PROTOCOL, Group
from collab.averaging.silence import Silence
from collab.averaging.timeouts import LONGEST_S, MeasuredTimeouts
from collab.concurrency import Background
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

IDLE_S = 3600.0
"""For reading what may come at any time; who reads ends with the round."""

Conduct = Callable[[Course, Mapping[PeerId, Stream]], Awaitable[object]]
"""Takes a round to its end with these members, and remembers what came of it."""
Committed = Callable[[int, Lineage], Certified | None]
"""What followed a history, if it is known."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What a member brings to a successor."""

    group: Group
    generation: int
    division: Division
    promised: int
    gone: frozenset[PeerId]

    @classmethod
    def from_message(cls, message: Message) -> "Resume":
        """Raises ``BadMessage`` when malformed or senseless."""
        group = Group.from_message(Message("begin", message.get("group", dict)))
        rows = [(row[0], row[1], row[2], row[3], row[4]) for row in message.rows("jobs", str, int, int, int, str)]
        division = Division.from_rows(rows, group.part_elements)
        generation, promised = message.get("generation", int), message.get("promised", int)
        peers = {member.peer for member in group.members}
        named = {job.span.reducer for job in division.jobs} | {job.source for job in division.jobs}
        if not division.is_sound(group.num_elements) or not named <= peers:
            raise BadMessage("resume divides the work so that it does not cover the vector")
        if not division.continues(Division.of(group.spans, group.part_elements)):
            raise BadMessage("resume divides the work in a way that no lost reducers explain")
        if generation < 0 or not 0 <= promised < MAX_BALLOT - 1:
            raise BadMessage(f"resume of generation {generation} has promised ballot {promised}")
        gone = frozenset(PeerId(peer) for peer in message.texts("gone"))
        return cls(group, generation, division, promised, gone & peers)


@dataclass(slots=True)
class Takeover:
    """A round while its members gather around its successor."""

    group: Group
    resumes: dict[PeerId, tuple[Stream, Resume]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody else can go on."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, stream: Stream, resume: Resume) -> None:
        """One more goes on."""
        self.resumes[stream.remote] = stream, resume
        self.changed.set()

    @property
    def missing(self) -> set[PeerId]:
        """Who can still come."""
        gone = {self.group.leader}.union(*(resume.gone for _, resume in self.resumes.values()))
        return {member.peer for member in self.group.members} - self.resumes.keys() - gone

    @property
    def is_complete(self) -> bool:
        """Whether everybody is here who can still come."""
        return not self.missing

    @property
    def has_most(self) -> bool:
        """Whether most members have given their leader up."""
        return 2 * len(self.resumes) > len(self.group.members)


class Succession:
    """Rounds that this peer leads on with."""

    def __init__(
        self, transport: Transport, timeouts: MeasuredTimeouts, silence: Silence, conduct: Conduct, committed: Committed
    ) -> None:
        self._transport, self._me = transport, transport.peer_id
        self._timeouts, self._silence, self._conduct = timeouts, silence, conduct
        self._committed = committed
        self._takeovers: dict[str, Takeover] = {}

    async def serve(self, stream: Stream, message: Message) -> bool:
        """One member of a round without a leader, to the verdict; whether its stream can be used on.

        Raises:
            BadMessage: what it says makes no sense.
        """
        resume = Resume.from_message(message)
        group = resume.group
        if self._me not in group.successors or stream.remote not in {member.peer for member in group.members}:
            raise BadMessage(f"{stream.remote} resumes a round that is none of ours")
        known = self._committed(group.epoch, group.lineage)
        if known is not None:  # it was away for long: nobody else will come, and there is nothing left to do
            await stream.send(Message("welcome"), timeout_s=self._timeouts.answer_s())
            await stream.send(Message("commit", known.to_fields()), timeout_s=self._timeouts.answer_s())
            return False
        takeover = self._takeovers.get(group.round_id)
        if takeover is not None and takeover.group != group:
            return False
        if takeover is not None and takeover.closed.is_set():
            await self._hear_out(stream, takeover)
            return False
        is_first = takeover is None
        if takeover is None:
            takeover = self._takeovers[group.round_id] = Takeover(group)
        takeover.add(stream, resume)
        try:
            await stream.send(Message("welcome"), timeout_s=self._timeouts.answer_s())
            async with Background() as tasks:
                tasks.create_task(keep_waiting(stream, self._timeouts))  # else it would leave us for the next successor
                await (self._close_in_time(takeover, tasks) if is_first else takeover.closed.wait())
            await (self._lead_on(takeover) if is_first else takeover.finished.wait())
        finally:
            if is_first:
                takeover.closed.set()
                takeover.finished.set()
                del self._takeovers[group.round_id]
        return True

    async def _hear_out(self, stream: Stream, takeover: Takeover) -> None:
        """Who came too late is not in the round any more, but should look for no other before this one is over."""
        await stream.send(Message("welcome"), timeout_s=self._timeouts.answer_s())
        async with Background() as tasks:
            tasks.create_task(_drain(stream))
            tasks.create_task(keep_waiting(stream, self._timeouts))
            await takeover.finished.wait()
        known = self._committed(takeover.group.epoch, takeover.group.lineage)
        if known is not None:
            await stream.send(Message("commit", known.to_fields()), timeout_s=self._timeouts.answer_s())

    async def _call(self, peer: PeerId, group: Group) -> None:
        """Tell a member that others have given the leader up; ourselves, too, since we may not have noticed."""
        with suppress(NetworkError), self._timeouts.asking(peer) as limit_s:
            stream = await self._transport.open(peer, ROUND_PROTOCOL, timeout_s=limit_s)
            try:
                await stream.send(Message("leading", {"round_id": group.round_id}), timeout_s=limit_s)
                await stream.receive(timeout_s=limit_s)
            finally:
                stream.close()

    async def _close_in_time(self, takeover: Takeover, tasks: Background) -> None:
        patience_s = max(self._silence.limit_s(), self._timeouts.fixed.silence_s)  # newcomers have learned no other
        patience_s += min(takeover.group.queue_s, LONGEST_S)
        has_called = False
        try:
            async with asyncio.timeout(patience_s):
                while not takeover.is_complete:
                    if takeover.has_most and not has_called:  # fewer may be wrong about the leader
                        has_called = True
                        for peer in sorted(takeover.missing):
                            tasks.create_task(self._call(peer, takeover.group))
                    takeover.changed.clear()
                    await takeover.changed.wait()
        except TimeoutError:
            pass  # whoever has not noticed yet that the leader is lost is without us
        takeover.closed.set()

    async def _lead_on(self, takeover: Takeover) -> None:
        resumes = {peer: resume for peer, (_, resume) in takeover.resumes.items()}
        ballot = ballot_above((resume.promised for resume in resumes.values()), self._me)
        logger.info("leading on epoch=%d members=%d ballot=%d", takeover.group.epoch, len(resumes), ballot.number)
        known = {peer: (resume.generation, resume.division) for peer, resume in resumes.items()}
        streams = {peer: stream for peer, (stream, _) in takeover.resumes.items()}
        course = Course.resumed(takeover.group, ballot, known)
        await self._conduct(course, streams)


async def _drain(stream: Stream) -> None:
    """Read what nobody needs, so that it does not stand in front of anything."""
    with suppress(NetworkError):
        while True:
            await stream.receive(timeout_s=IDLE_S)


async def keep_waiting(stream: Stream, timeouts: MeasuredTimeouts) -> None:
    """Let whoever waits for us know that we are there; until cancelled, or the stream ends."""
    with suppress(NetworkError):  # whoever needs this stream next will see it
        while True:
            await asyncio.sleep(timeouts.fixed.pulse_s)
            await stream.send(Message("wait"), timeout_s=timeouts.answer_s())
