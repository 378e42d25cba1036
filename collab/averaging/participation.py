"""A member's side of one round, from BEGIN to the verdict: works, reports, votes, and does what the leader says."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.averaging.butterfly import Session
from collab.averaging.division import Division
from collab.averaging.messages import Group
from collab.averaging.silence import Silence
from collab.averaging.timeouts import RoundTimeouts
from collab.concurrency import Background
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.metrics.records import Phase
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import AnyVector, PeerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended for one member."""

    record: CommitRecord | None
    """None: it was aborted."""
    mean: AnyVector | None = None
    """Of the round; None on a member that only reduces."""
    is_held: bool = False
    """Whether ``mean`` is what the record is about."""
    reason: str = ""
    text: str = ""


class Participation:
    """One member in one round."""

    def __init__(
        self,
        stream: Stream,
        group: Group,
        session: Session,
        timeouts: RoundTimeouts,
        silence: Silence,
        reach: Callable[[Phase], None],
    ) -> None:
        """
        Args:
            stream: to the leader.
            silence: how long leaders may say nothing.
        """
        self._stream, self.group, self.session, self._timeouts = stream, group, session, timeouts
        self._watch, self._limit, self._reach = silence.watch(), silence, reach
        self._generation = 0
        self._is_dropped = False
        self.voted: CommitRecord | None = None
        """What we have put our name to."""

    async def run(self) -> Verdict:
        """Until the leader's verdict.

        Raises:
            NetworkError: the leader is gone, says nothing, or nonsense.
        """
        async with Background() as tasks:
            tasks.create_task(self._pulse())
            tasks.create_task(self._tell())
            verdict: Verdict | None = None
            while verdict is None:
                verdict = await self._follow(await self._receive())
            return verdict

    def verdict(self, record: CommitRecord) -> Verdict:
        """What a commit, of whoever's telling, means for us."""
        return Verdict(record, self.session.mean, is_held=not self._is_dropped and self._holds(record))

    async def _receive(self) -> Message:
        """The leader's next word."""
        try:
            message = await self._stream.receive(timeout_s=max(self._watch.left_s(), 0.001))
        except TimedOut:
            raise TimedOut(f"{self._stream.remote} says nothing for {self._limit.limit_s():.1f} s") from None
        self._watch.heard()
        return message

    async def _follow(self, message: Message) -> Verdict | None:
        """Do what one message says; the verdict if it was that."""
        if message.kind == "halt":
            await self._halt(message)
        elif message.kind == "mend":
            self._mend(message)
        elif message.kind == "prepare":
            await self._vote(CommitRecord.from_fields(message.get("record", dict)))
        elif message.kind == "commit":
            return self._committed(CommitRecord.from_fields(message.get("record", dict)))
        elif message.kind == "abort":
            return Verdict(None, reason=message.get("reason", str), text=message.get("text", str))
        elif message.kind == "dropped":
            logger.info("the round goes on without us reason=%s", message.get("text", str))
            self._is_dropped = True
        elif message.kind != "wait":
            raise BadMessage(f"leader {self._stream.remote} sends {message.kind} in the middle of a round")
        return None

    async def _halt(self, message: Message) -> None:
        gone, broken = message.texts("gone"), message.get("broken", list)
        jobs = range(len(self.session.division.jobs))
        if not all(isinstance(index, int) and index in jobs for index in broken):
            raise BadMessage(f"leader {self._stream.remote} stops jobs that there are not")
        counts = self.session.halt([PeerId(peer) for peer in gone], broken)
        if broken:
            self._generation = message.get("generation", int)
            await self._send(Message("held", {"generation": self._generation, "counts": counts}))

    def _mend(self, message: Message) -> None:
        rows = [(row[0], row[1], row[2], row[3], row[4]) for row in message.rows("jobs", str, int, int, int, str)]
        division = Division.from_rows(rows, self.group.part_elements)
        peers = {member.peer for member in self.group.members}
        named = {job.span.reducer for job in division.jobs} | {job.source for job in division.jobs}
        if not division.is_sound(self.group.num_elements) or not named <= peers:
            raise BadMessage(f"leader {self._stream.remote} divides the work so that it does not cover the vector")
        if message.get("generation", int) == self._generation:
            self.session.mend(division)

    async def _vote(self, record: CommitRecord) -> None:
        """Put our name to a record, if it is about what we hold."""
        if self._holds(record):
            self.voted = record
            await self._send(Message("vote"))

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
        if (record.epoch, record.lineage) != (self.group.epoch, self.group.lineage):
            raise BadMessage(f"leader {self._stream.remote} commits another round than ours")
        self._reach(Phase.COMMIT)
        return self.verdict(record)

    # -- telling the leader ------------------------------------------------------------------------------------------

    async def _pulse(self) -> None:
        with suppress(NetworkError):  # who reads from this stream sees the same
            while True:
                await asyncio.sleep(self._timeouts.pulse_s)
                await self._send(Message("working"))

    async def _tell(self) -> None:
        """Complaints as they come, and once in each generation that we hold everything."""
        reported = -1
        with suppress(NetworkError):
            while not self._is_dropped:
                await self.session.changed.wait()
                self.session.changed.clear()
                complaints, self.session.complaints[:] = list(self.session.complaints), []
                for complaint in complaints:
                    await self._send(complaint.to_message())
                if self.session.is_whole and reported != self._generation:
                    reported = self._generation
                    await self._report()

    async def _report(self) -> None:
        self._reach(Phase.BEFORE_COMMIT)
        fields = {
            "generation": self._generation,
            "digests": self.session.digests(),
            "gaps": [list(gap) for gap in self.session.gaps()],
        }
        await self._send(Message("done", fields))

    async def _send(self, message: Message) -> None:
        await self._stream.send(message, timeout_s=self._timeouts.reply_s)
