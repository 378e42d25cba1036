"""Forming a group and leading its round: the leader's side.

A leader calls everybody who should take part, closes the group when all who said they are coming are there (or when
the last of them is late), fixes members, weights and spans in BEGIN, and decides: all members report the same digests
-> COMMIT, anything else -> ABORT. Nothing but the leader's memory holds a decision that is under way; a member that
loses its leader asks the other members (see ``round.py``).
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from collab.averaging.agreement import CommitRecord
from collab.averaging.messages import CALL_PROTOCOL, Group, Join, Member
from collab.averaging.plan import equal_shares
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expected:
    """Who should be in a group, as the leader sees the swarm."""

    trainers: frozenset[PeerId]
    """Fresh trainers that may be at the group's epoch: they are called, and a group needs a majority of them."""
    helpers: frozenset[PeerId]
    """Auxiliary and backbone peers that reduce for others."""
    ahead: frozenset[PeerId] = frozenset()
    """Trainers that have gone on beyond the group's epoch."""


Roster = Callable[[int, Lineage], Awaitable[Expected]]
"""Answers for an epoch and a lineage."""


@dataclass(slots=True)
class Assembly:
    """A group while it forms."""

    epoch: int
    lineage: Lineage
    joined: dict[PeerId, tuple[Stream, Join]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    left_out: set[PeerId] = field(default_factory=set)
    """Peers that made an earlier attempt at this epoch fail; not called again."""
    is_open: bool = True

    def add(self, stream: Stream, join: Join) -> None:
        """Take a peer in; a peer that joins again replaces its older stream."""
        previous = self.joined.pop(stream.remote, None)
        if previous is not None:
            previous[0].close()
        self.joined[stream.remote] = (stream, join)
        self.changed.set()


class Leader:
    """Leads the rounds of others' choice: any peer that can be dialled may be asked to."""

    def __init__(
        self, transport: Transport, roster: Roster, fingerprint: str, timeouts: RoundTimeouts, rng: random.Random
    ) -> None:
        self._transport, self._roster, self._fingerprint = transport, roster, fingerprint
        self._timeouts, self._rng = timeouts, rng

    async def lead(self, assembly: Assembly) -> CommitRecord | tuple[PeerId, ...]:
        """Take one assembly to its end; every joined stream has its verdict when this returns.

        Returns:
            The record when the round committed; when it was aborted, the peers to leave out of the next attempt.
        """
        try:
            expected = await self._gather(assembly)
            assembly.is_open = False
            group = self._close(assembly, expected)
            if isinstance(group, str):
                everybody = {peer: stream for peer, (stream, _) in assembly.joined.items()}
                await self._tell(everybody, abort_message("no_quorum", group, ()))
                return ()
            streams = {member.peer: assembly.joined[member.peer][0] for member in group.members}
            await self._tell(streams, group.to_message())
            return await self._decide(group, streams)
        finally:
            assembly.is_open = False
            assembly.finished.set()

    # -- forming -----------------------------------------------------------------------------------------------------

    async def _gather(self, assembly: Assembly) -> Expected:
        """Wait until everybody who is coming is there, or late."""
        loop = asyncio.get_running_loop()
        expected = await self._roster(assembly.epoch, assembly.lineage)
        awaited: dict[PeerId, float] = {}
        async with asyncio.TaskGroup() as calls:
            calling = {
                peer: calls.create_task(self._call(peer, assembly))
                for peer in sorted(expected.trainers | expected.helpers)
                if peer not in assembly.joined and peer not in assembly.left_out
            }
            for task in calling.values():
                task.add_done_callback(lambda _: assembly.changed.set())
            while True:
                assembly.changed.clear()
                for peer, task in calling.items():
                    if task.done() and peer not in awaited:
                        eta_s = task.result()
                        awaited[peer] = (
                            loop.time() + eta_s + self._timeouts.gather_slack_s if eta_s is not None else 0.0
                        )
                missing = [peer for peer in calling if peer not in assembly.joined]
                waiting_until = max(
                    (awaited.get(peer, loop.time() + self._timeouts.reply_s) for peer in missing), default=0.0
                )
                if waiting_until <= loop.time():
                    break
                await _wait(assembly.changed, waiting_until - loop.time())
            for task in calling.values():
                task.cancel()
        return expected

    async def _call(self, peer: PeerId, assembly: Assembly) -> float | None:
        """Ask a peer whether it is coming; seconds until it can be here, None when it is not coming."""
        fields = {"fingerprint": self._fingerprint, "epoch": assembly.epoch, "lineage": assembly.lineage}
        try:
            stream = await self._transport.open(peer, CALL_PROTOCOL, timeout_s=self._timeouts.open_s)
            try:
                await stream.send(Message("call", fields), timeout_s=self._timeouts.reply_s)
                answer = await stream.receive(timeout_s=self._timeouts.reply_s)
                if not answer.get("coming", bool):
                    return None
                return min(max(answer.get("eta_s", float), 0.0), self._timeouts.gather_limit_s)
            finally:
                stream.close()
        except NetworkError as error:
            logger.info("peer does not answer the call peer=%s reason=%s", peer, error)
            return None

    def _close(self, assembly: Assembly, expected: Expected) -> Group | str:
        """The group of all who joined, or why there is none."""
        joins = {peer: join for peer, (_, join) in assembly.joined.items()}
        sizes = {join.num_elements for join in joins.values() if join.weight > 0}
        if len(sizes) != 1:
            return f"contributors bring vectors of different lengths {sorted(sizes)}" if sizes else "nobody contributes"
        contributors = {peer for peer, join in joins.items() if join.weight > 0}
        electorate = expected.trainers | contributors
        if 2 * len(contributors) <= len(electorate):
            return f"only {len(contributors)} of {len(electorate)} trainers are here"
        reducers = tuple(sorted(peer for peer, join in joins.items() if join.can_reduce))
        if not reducers:
            return "nobody can reduce"
        return Group(
            round_id=hashlib.sha256(f"{self._transport.peer_id}:{self._rng.getrandbits(128)}".encode()).hexdigest()[
                :24
            ],
            epoch=assembly.epoch,
            lineage=assembly.lineage,
            num_elements=sizes.pop(),
            leader=self._transport.peer_id,
            members=tuple(Member(peer, joins[peer].weight) for peer in sorted(joins)),
            spans=equal_shares(next(join.num_elements for join in joins.values() if join.weight > 0), reducers),
        )

    # -- deciding ----------------------------------------------------------------------------------------------------

    async def _decide(self, group: Group, streams: dict[PeerId, Stream]) -> CommitRecord | tuple[PeerId, ...]:
        digests: list[str | None] = [None] * len(group.spans)
        failure: Message | None = None
        async with asyncio.TaskGroup() as tasks:
            reports = {tasks.create_task(self._report(stream)): peer for peer, stream in streams.items()}
            for next_report in asyncio.as_completed(reports):
                failure = _merge_report(digests, await next_report)
                if failure is not None:
                    break
            for task in reports:
                task.cancel()
        if failure is not None:
            await self._tell(streams, failure)
            return culprits_of(failure)
        record = CommitRecord(
            round_id=group.round_id,
            epoch=group.epoch,
            lineage=group.lineage,
            contributors=tuple((member.peer, member.weight) for member in group.contributors),
            digests=tuple(digest or "" for digest in digests),
        )
        await self._tell(streams, Message("commit", {"record": record.to_fields()}))
        return record

    async def _report(self, stream: Stream) -> Message:
        """A member's report; a member that cannot report is itself to blame."""
        try:
            return await stream.receive(timeout_s=self._timeouts.part_s + self._timeouts.finish_s)
        except NetworkError as error:
            return abort_message("member_lost", f"{stream.remote}: {error}", (stream.remote,))

    async def _tell(self, streams: dict[PeerId, Stream], message: Message) -> None:
        """Send to every member at once; one that is gone will be met by those who need it."""
        await asyncio.gather(*(self._send(stream, message) for stream in streams.values()))

    async def _send(self, stream: Stream, message: Message) -> None:
        try:
            await stream.send(message, timeout_s=self._timeouts.reply_s)
        except NetworkError as error:
            logger.info("member is gone peer=%s message=%s reason=%s", stream.remote, message.kind, error)


def _merge_report(digests: list[str | None], report: Message) -> Message | None:
    """Fold one member's report into ``digests``; an abort message when the round is lost."""
    if report.kind == "abort":
        return report
    try:
        if report.kind != "done":
            return abort_message(report.get("reason", str), report.get("text", str), culprits_of(report))
        reported = report.get("digests", list)
    except BadMessage as error:
        return abort_message("bad_report", str(error), ())
    if len(reported) != len(digests):
        return abort_message("bad_report", f"{len(reported)} digests for {len(digests)} spans", ())
    for index, digest in enumerate(reported):
        if digest is None:
            continue
        if digests[index] not in (None, digest):
            return abort_message("results_differ", f"members hold different bytes of span {index}", ())
        digests[index] = str(digest)
    return None


def culprits_of(report: Message) -> tuple[PeerId, ...]:
    """Whom a failure report or an abort names."""
    return tuple(PeerId(str(peer)) for peer in report.get("culprits", list))


def abort_message(reason: str, text: str, culprits: tuple[PeerId, ...]) -> Message:
    """The leader's word that a round never happened."""
    return Message("abort", {"reason": reason, "text": text, "culprits": list(culprits)})


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
