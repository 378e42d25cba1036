"""A member's side of one round, from BEGIN to the verdict: works, reports, votes, and does what the leader says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot
from collab.averaging.division import MAX_JOBS, Division
from collab.averaging.messages import Group
from collab.averaging.seats import RecordSeat, Seats, seat_to_fields
from collab.averaging.session import Session
from collab.averaging.silence import Silence, Watch
from collab.averaging.timeouts import RoundTimeouts
from collab.averaging.transcript import Transcript
from collab.concurrency import Background
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.metrics.records import Phase
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import AnyVector, PeerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a member's rounds have in common."""

    me: PeerId
    timeouts: RoundTimeouts
    silence: Silence
    """How long leaders may say nothing."""
    seats: Seats
    open: Callable[[PeerId], Awaitable[Stream]]
    """A stream to somebody who is to lead on."""
    keep_stream: Callable[[Stream], None]
    """Takes a stream for the leader's next round."""
    reach: Callable[[Phase, int], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended for one member."""

    record: CommitRecord | None
    """None: it was aborted."""
    mean: AnyVector | None = None
    """Of the round; None on a member that only reduces."""
    is_held: bool = False
    """Whether ``mean`` is what the record is about."""
    transcript: Transcript | None = None
    """How it travelled, when it is held."""
    reason: str = ""
    text: str = ""


class Participation:
    """One member in one round."""

    def __init__(self, group: Group, session: Session, desk: Desk) -> None:
        self.group, self.session, self._desk, self._timeouts = group, session, desk, desk.timeouts
        self._ballot = group.ballot
        self._generation = 0
        self._reported = -1
        self._is_dropped = False
        self._is_halted = False
        """Told to stop jobs, and not yet how to go on: a report would be about work that does not stand."""
        self._instance = group.epoch, group.lineage

    async def run(self, stream: Stream) -> Verdict:
        """Until a leader's verdict: of the first one, over ``stream``, or of whoever leads on.

        Raises:
            NetworkError: the leader is gone, says nothing, or nonsense, and nobody leads on.
        """
        if (seat := self._seat()) is not None:
            self._keep(seat.promise(self._ballot))
        successors = [peer for peer in self.group.successors if peer != stream.remote]
        while True:
            try:
                return await self._under(stream)
            except NetworkError as error:
                logger.info("the leader is lost leader=%s epoch=%d reason=%s", stream.remote, self.group.epoch, error)
                lost = error
            stream.close()
            resumed = None
            while successors and resumed is None and not self._is_dropped:
                resumed = await self._resume(successors.pop(0))
            if resumed is None:
                raise lost
            stream = resumed

    async def _under(self, stream: Stream) -> Verdict:
        """Follow one leader."""
        watch = self._desk.silence.watch()
        verdict: Verdict | NetworkError | None = None
        async with Background() as tasks:
            tasks.create_task(self._pulse(stream))
            tasks.create_task(self._tell(stream))
            while verdict is None:
                try:
                    message = await self._receive(stream, watch)
                    verdict = await self._follow(stream, message)
                except NetworkError as error:
                    verdict = error
        if isinstance(verdict, NetworkError):
            raise verdict
        with suppress(NetworkError):
            await stream.send(Message("thanks"), timeout_s=self._timeouts.reply_s)  # what follows is another round's
        self._desk.keep_stream(stream)
        return verdict

    async def _receive(self, stream: Stream, watch: Watch) -> Message:
        """The leader's next word."""
        try:
            message = await stream.receive(timeout_s=max(watch.left_s(), 0.001))
        except TimedOut:
            raise TimedOut(f"{stream.remote} says nothing for {self._desk.silence.limit_s():.1f} s") from None
        watch.heard()
        return message

    async def _resume(self, successor: PeerId) -> Stream | None:
        """Ask a successor to lead on; None when it does not."""
        fields = {
            "group": self.group.to_message().fields,
            "generation": self._generation,
            "jobs": self.session.division.to_rows(),
            "promised": self._desk.seats.promised(self._instance),
            "gone": sorted(self.session.gone),
        }
        try:
            stream = await self._desk.open(successor)
        except NetworkError:
            return None
        try:
            await stream.send(Message("resume", fields), timeout_s=self._timeouts.reply_s)
            if (await stream.receive(timeout_s=self._timeouts.reply_s)).kind == "welcome":
                return stream
        except NetworkError:
            pass
        stream.close()
        return None

    async def _follow(self, stream: Stream, message: Message) -> Verdict | None:
        """Do what one message says; the verdict if it was that."""
        if message.kind == "halt":
            await self._halt(stream, message)
        elif message.kind == "mend":
            self._mend(message)
        elif message.kind == "lead":
            await self._promise(stream, Ballot(message.get("ballot", int), stream.remote))
        elif message.kind == "prepare":
            await self._vote(stream, CommitRecord.from_fields(message.get("record", dict)))
        elif message.kind == "commit":
            return self._committed(CommitRecord.from_fields(message.get("record", dict)))
        elif message.kind == "abort":
            return Verdict(None, reason=message.get("reason", str), text=message.get("text", str))
        elif message.kind == "dropped":
            logger.info("the round goes on without us reason=%s", message.get("text", str))
            self._is_dropped = True
        elif message.kind != "wait":
            raise BadMessage(f"leader {stream.remote} sends {message.kind} in the middle of a round")
        return None

    def verdict(self, record: CommitRecord) -> Verdict:
        """What a commit, of whoever's telling, means for us."""
        is_held = not self._is_dropped and self._holds(record)
        transcript = self.session.transcript() if is_held else None
        return Verdict(record, self.session.mean, is_held=is_held, transcript=transcript)

    # -- votes -------------------------------------------------------------------------------------------------------

    def _seat(self) -> RecordSeat | None:
        return self._desk.seats.of(self._instance, self.group.electors, self._desk.me)

    def _keep(self, seat: RecordSeat) -> RecordSeat:
        self._desk.seats.keep(self._instance, seat)
        return seat

    async def _promise(self, stream: Stream, ballot: Ballot) -> None:
        """Follow a successor, and tell it what we have voted for."""
        self._ballot, self._reported = ballot, -1
        seat = self._seat()
        if seat is not None:
            seat = self._keep(seat.promise(ballot))
        await self._send(stream, Message("promised", {"seat": seat_to_fields(seat)}))
        self.session.changed.set()

    async def _vote(self, stream: Stream, record: CommitRecord) -> None:
        """Put our name to a record: of this round, if it is about what we hold; or to one that was voted for before."""
        is_ours = record.round_id == self.group.round_id
        if (record.epoch, record.lineage) != self._instance:
            raise BadMessage(f"leader {stream.remote} asks for votes about another step")
        seat = self._seat()
        if seat is not None and (not is_ours or self._ballot != self.group.ballot or self._holds(record)):
            seat = self._keep(seat.accept(self._ballot, record))
        await self._send(stream, Message("vote", {"seat": seat_to_fields(seat)}))

    # -- work --------------------------------------------------------------------------------------------------------

    async def _halt(self, stream: Stream, message: Message) -> None:
        gone, broken = message.texts("gone"), message.get("broken", list)
        if not all(isinstance(index, int) and 0 <= index < MAX_JOBS for index in broken):
            raise BadMessage(f"leader {stream.remote} stops jobs that there cannot be")
        counts = self.session.halt([PeerId(peer) for peer in gone], broken)
        if broken:
            self._generation, self._is_halted = message.get("generation", int), True
            await self._send(stream, Message("held", {"generation": self._generation, "counts": counts}))

    def _mend(self, message: Message) -> None:
        rows = [(row[0], row[1], row[2], row[3], row[4]) for row in message.rows("jobs", str, int, int, int, str)]
        division = Division.from_rows(rows, self.group.part_elements)
        peers = {member.peer for member in self.group.members}
        named = {job.span.reducer for job in division.jobs} | {job.source for job in division.jobs}
        is_sound = division.is_sound(self.group.num_elements) and division.continues(self.session.division)
        if not is_sound or not named <= peers:
            raise BadMessage("the leader divides the work so that it does not cover the vector")
        if message.get("generation", int) == self._generation:
            self._is_halted = False
            self.session.mend(division)

    def _holds(self, record: CommitRecord) -> bool:
        group, session = self.group, self.session
        if (record.round_id, record.epoch, record.lineage) != (group.round_id, group.epoch, group.lineage):
            return False
        if not set(record.contributors) <= {(member.peer, member.weight) for member in group.contributors}:
            return False
        standing = [i for i, job in enumerate(session.division.jobs) if job.valid]
        pieces = tuple((session.division.jobs[i].span.reducer, *session.division.extent(i)) for i in standing)
        mine = session.digests()
        if not session.is_whole or record.pieces != pieces:
            return False
        if any(mine[i] not in (None, digest) for i, digest in zip(standing, record.digests, strict=True)):
            return False
        return session.mean is None or self._has_gaps(record)

    def _has_gaps(self, record: CommitRecord) -> bool:
        """Whether the record says of contributors what the results say."""
        names = dict(record.contributors)
        gaps = self.session.gaps()
        absent = {member.peer for member in self.group.contributors} - names.keys()
        filled = {peer: sum(stop - start for name, start, stop in gaps if name == peer) for peer in absent}
        return list(record.gaps) == [gap for gap in gaps if gap[0] in names] and all(
            filled[peer] == self.group.num_elements for peer in absent
        )

    def _committed(self, record: CommitRecord) -> Verdict:
        if (record.epoch, record.lineage) != self._instance:
            raise BadMessage("the leader commits another round than ours")
        vote = seat.vote if (seat := self._seat()) is not None else None
        if vote is not None and vote.ballot == self._ballot and vote.value not in (None, record):
            raise BadMessage("the leader commits another round than it had us vote for")
        verdict = self.verdict(record)
        is_ours = record.round_id == self.group.round_id and not self._is_dropped and self.session.is_whole
        if is_ours and not verdict.is_held:
            raise BadMessage("the leader commits other bytes than we hold")
        self._desk.reach(Phase.COMMIT, self.group.epoch)
        return verdict

    # -- telling the leader ------------------------------------------------------------------------------------------

    async def _pulse(self, stream: Stream) -> None:
        with suppress(NetworkError):  # who reads from this stream sees the same
            while True:
                await asyncio.sleep(self._timeouts.pulse_s)
                progress = self.session.progress()
                fields = {"came": [[peer, count] for peer, count in progress.came.items()], "held": progress.held}
                await self._send(stream, Message("working", fields))

    async def _tell(self, stream: Stream) -> None:
        """Complaints as they come, and once in each generation, and to each leader, that we hold everything."""
        with suppress(NetworkError):
            while not self._is_dropped:
                await self.session.changed.wait()
                self.session.changed.clear()
                complaints, self.session.complaints[:] = list(self.session.complaints), []
                for complaint in complaints:
                    await self._send(stream, complaint.to_message())
                if self.session.is_whole and not self._is_halted and self._reported != self._generation:
                    self._reported = self._generation
                    await self._report(stream)

    async def _report(self, stream: Stream) -> None:
        self._desk.reach(Phase.BEFORE_COMMIT, self.group.epoch)
        fields = {
            "generation": self._generation,
            "digests": self.session.digests(),
            "gaps": [list(gap) for gap in self.session.gaps()],
            "seat": seat_to_fields(self._seat()),
        }
        await self._send(stream, Message("done", fields))

    async def _send(self, stream: Stream, message: Message) -> None:
        await stream.send(message, timeout_s=self._timeouts.reply_s)
