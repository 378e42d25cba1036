"""A member's side of one round, from BEGIN to the verdict: works, reports, votes, and does what the leader says."""

import asyncio
import logging
import math
from contextlib import suppress
from typing import Any

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import LEAP, Ballot, Vote
from collab.averaging.certificates import Certified
from collab.averaging.desk import Desk, Verdict
from collab.averaging.division import MAX_JOBS, Division
from collab.averaging.electors import electorate_of
from collab.averaging.holding import Holding, is_held
from collab.averaging.messages import Group
from collab.averaging.seats import RecordSeat, seat_to_fields
from collab.averaging.session import Session
from collab.averaging.silence import Watch
from collab.concurrency import Background
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.metrics.records import Phase
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

IDLE_S = 3600.0
"""Silence is judged by signs of life, not by a stream's own limit."""


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
        self._called = asyncio.Event()
        self._caller: PeerId | None = None
        """A successor to whom others have gone already."""

    def called_by(self, successor: PeerId) -> None:
        """``successor`` leads on, for others: we follow, if our leader says nothing either."""
        if successor in self.group.successors:
            self._caller = successor
            self._called.set()

    async def run(self, stream: Stream) -> Verdict:
        """Until a leader's verdict: of the first one, over ``stream``, or of whoever leads on.

        Raises:
            NetworkError: the leader is gone, says nothing, or nonsense, and nobody leads on.
        """
        self._check_leap(self._ballot)
        if (seat := self._seat()) is not None:
            self._keep(seat.promise(self._ballot))
        successors = [peer for peer in self.group.successors if peer != stream.remote]
        while True:
            try:
                return await self._under(stream)
            except NetworkError as error:
                logger.info("the leader is lost leader=%s epoch=%d reason=%s", stream.remote, self.group.epoch, error)
                stream.close()
                resumed = await self._led_on(successors)
                if resumed is None:
                    raise
            stream, self._caller = resumed, None
            self._called.clear()

    async def _led_on(self, successors: list[PeerId]) -> Stream | None:
        """To the first of ``successors`` that leads on; whoever was asked is taken out of them."""
        resumed = None
        while successors and resumed is None and not self._is_dropped:
            successor = self._caller if self._caller in successors else successors[0]
            successors.remove(successor)
            resumed = await self._resume(successor)
        return resumed

    async def _under(self, stream: Stream) -> Verdict:
        """Follow one leader."""
        watch = self._timeouts.watch(stream.remote, self._desk.silence, queue_s=self.group.queue_s)
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
            try:
                raise verdict
            finally:
                del verdict  # its traceback holds this frame
        with suppress(NetworkError):
            await stream.send(Message("thanks"), timeout_s=self._timeouts.answer_s())  # what follows is another round's
        self._desk.keep_stream(stream)
        return verdict

    async def _receive(self, stream: Stream, watch: Watch) -> Message:
        """The leader's next word."""
        receiving = asyncio.create_task(stream.receive(timeout_s=IDLE_S))
        calling = asyncio.create_task(self._called.wait())
        try:
            while not receiving.done():
                left_s = watch.left_s(self._timeouts.rival_s if self._caller else math.inf)
                if left_s <= 0:
                    raise TimedOut(f"{stream.remote} says nothing for {watch.silent_s():.1f} s")
                others = () if self._caller else (calling,)
                await asyncio.wait((receiving, *others), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            message = receiving.result()
            watch.heard()
            return message
        finally:
            receiving.cancel()
            calling.cancel()
            del receiving  # it holds the error that it ended with, whose traceback holds this frame

    async def _resume(self, successor: PeerId) -> Stream | None:
        """Ask a successor to lead on; None when it does not."""
        fields = {
            "group": self.group.to_message().fields,
            "generation": self._generation,
            "jobs": self.session.division.to_rows(),
            "promised": self._desk.seats.promised(self._instance),
            "gone": sorted(self.session.gone),
        }
        stream: Stream | None = None
        with suppress(NetworkError), self._timeouts.asking(successor) as limit_s:
            stream = await self._desk.open(successor, limit_s)
            await stream.send(Message("resume", fields), timeout_s=limit_s)
            if (await stream.receive(timeout_s=limit_s)).kind == "welcome":
                return stream
        if stream is not None:
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
            return await self._committed(stream, message)
        elif message.kind == "abort":
            return Verdict(None, reason=message.get("reason", str), text=message.get("text", str))
        elif message.kind == "dropped":
            logger.info("the round goes on without us reason=%s", message.get("text", str))
            self._is_dropped = True
        elif message.kind != "wait":
            raise BadMessage(f"leader {stream.remote} sends {message.kind} in the middle of a round")
        return None

    def holding(self, record: CommitRecord) -> Holding:
        """What we have of what a record is about, whoever told us of it."""
        is_held = not self._is_dropped and self._is_held(record)
        return Holding(record, self.session.mean, is_held, self.session.transcript() if is_held else None)

    # -- votes -------------------------------------------------------------------------------------------------------

    def _seat(self) -> RecordSeat | None:
        seat = self._desk.seats.of(self._instance, self.group.electors, self._desk.me)
        if seat is not None and seat.decided is not None and self._known() is None:
            return None  # so long ago that we cannot prove it any more
        return seat

    def _known(self) -> Certified | None:
        return self._desk.verdicts.committed(*self._instance)

    def _seat_fields(self, seat: RecordSeat | None) -> dict[str, Any]:
        """For a message to the leader: our seat, and the proof of what it says was decided."""
        known = self._known() if seat is not None and seat.decided is not None else None
        certificate = known.certificate.to_fields() if known is not None else {}
        return {"seat": seat_to_fields(seat), "certificate": certificate}

    def _keep(self, seat: RecordSeat) -> RecordSeat:
        self._desk.seats.keep(self._instance, seat)
        return seat

    async def _promise(self, stream: Stream, ballot: Ballot) -> None:
        """Follow a successor, and tell it what we have voted for."""
        self._check_leap(ballot)
        self._ballot, self._reported = ballot, -1
        seat = self._seat()
        if seat is not None:
            seat = self._keep(seat.promise(ballot))
        await self._send(stream, Message("promised", self._seat_fields(seat)))
        self.session.changed.set()

    def _check_leap(self, ballot: Ballot) -> None:
        if ballot.number > self._desk.seats.promised(self._instance) + LEAP:
            raise BadMessage(f"{ballot.proposer} leads with ballot {ballot.number}, far above all that was promised")

    async def _vote(self, stream: Stream, record: CommitRecord) -> None:
        """Put our name to a record: of this round, if it is about what we hold; or to one that was voted for before."""
        is_ours = record.round_id == self.group.round_id
        if (record.epoch, record.lineage) != self._instance:
            raise BadMessage(f"leader {stream.remote} asks for votes about another step")
        seat = self._seat()
        if seat is not None and (not is_ours or self._ballot != self.group.ballot or self._is_held(record)):
            seat = self._keep(seat.accept(self._ballot, record))
        signature = b""
        if seat is not None and seat.vote == Vote(self._ballot, record):
            signature = self._desk.verdicts.notary.sign(electorate_of(self.group), self._ballot, record)
        await self._send(stream, Message("vote", {**self._seat_fields(seat), "signature": signature}))

    # -- work --------------------------------------------------------------------------------------------------------

    async def _halt(self, stream: Stream, message: Message) -> None:
        gone, silenced = (list(map(PeerId, message.texts(name))) for name in ("gone", "silenced"))
        broken = message.get("broken", list)
        if not all(isinstance(index, int) and 0 <= index < MAX_JOBS for index in broken):
            raise BadMessage(f"leader {stream.remote} stops jobs that there cannot be")
        counts = self.session.halt(gone, silenced, broken)
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

    async def _committed(self, stream: Stream, message: Message) -> Verdict:
        electorate = electorate_of(self.group)
        certified = await self._desk.verdicts.notary.believe(stream.remote, message, self._instance, electorate)
        record = certified.record
        vote = seat.vote if (seat := self._seat()) is not None else None
        if vote is not None and vote.ballot == self._ballot and vote.value not in (None, record):
            raise BadMessage("the leader commits another round than it had us vote for")
        is_ours = record.round_id == self.group.round_id and not self._is_dropped and self.session.is_whole
        if is_ours and not self._is_held(record):
            raise BadMessage("the leader commits other bytes than we hold")
        self._desk.reach(Phase.COMMIT, self.group.epoch)
        return Verdict(certified)

    def _is_held(self, record: CommitRecord) -> bool:
        return is_held(record, self.group, self.session)

    # -- telling the leader ------------------------------------------------------------------------------------------

    async def _pulse(self, stream: Stream) -> None:
        with suppress(NetworkError):  # who reads from this stream sees the same
            while True:
                await asyncio.sleep(self._timeouts.fixed.pulse_s)
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
            **self._seat_fields(self._seat()),
        }
        await self._send(stream, Message("done", fields))

    async def _send(self, stream: Stream, message: Message) -> None:
        await stream.send(message, timeout_s=self._timeouts.answer_s())
