"""A member on its way into a round: it asks a leader for a place, and waits for BEGIN.

A leader that is frozen says nothing. Each member finds that out by a limit of its own, and the first ones would meet
alone at the next leader; so who waits for a leader that says nothing follows the call of another one.
"""

import asyncio
from contextlib import suppress

from cachetools import TTLCache

from collab.averaging.accounts import check_length
from collab.averaging.base import Aborted
from collab.averaging.calls import Call
from collab.averaging.certificates import Certified
from collab.averaging.complaints import MAX_TEXT
from collab.averaging.contribution_plan import Policy, allowed_codecs
from collab.averaging.idle_streams import IdleStreams
from collab.averaging.messages import ROUND_PROTOCOL, Group, Join
from collab.averaging.news import News
from collab.averaging.silence import Silence
from collab.averaging.standing import History
from collab.averaging.timeouts import MeasuredTimeouts
from collab.averaging.verdicts import Verdicts
from collab.errors import BadMessage, NetworkError, StreamClosed
from collab.net.base import Stream
from collab.net.buckets import Bucket, Pace
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import PeerId

ATTEMPTS = Pace(burst=32, per_s=4.0)
"""New streams to one leader: half of what it bears before it shuts us out."""
LEADERS_REMEMBERED, REFILLED_S = 64, ATTEMPTS.burst / ATTEMPTS.per_s
"""Those whom we asked for a place last, and how long what was asked matters."""
SHORTEST_REST_S = 0.001
"""What timers can tell apart."""


class Entry:
    """One at a time: a peer is on its way into one round only."""

    def __init__(
        self, ports: Ports, timeouts: MeasuredTimeouts, verdicts: Verdicts, silence: Silence, policy: Policy, news: News
    ) -> None:
        self._transport, self._clock, self._timeouts = ports.transport, ports.clock.monotonic, timeouts
        self._verdicts, self._silence, self._policy, self._news = verdicts, silence, policy, news
        self._idle = IdleStreams(self._clock)
        """For the next round of whoever led the last one."""
        self._turns: TTLCache[PeerId, Bucket] = TTLCache(LEADERS_REMEMBERED, REFILLED_S, self._clock)
        """Of new streams to each leader."""
        self._waits_for: tuple[PeerId, History] | None = None
        self._heard_s = 0.0
        self._called = asyncio.Event()
        self.rival: PeerId | None = None
        """Who has called us to the round for which we wait in vain."""

    def keep(self, stream: Stream) -> None:
        """Use ``stream`` for the next round of its leader."""
        self._idle.keep(stream)

    def comes_in_s(self, call: Call, leader: PeerId) -> float:
        """A leader calls: in how many seconds we are free for it, if the one we wait for says nothing meanwhile."""
        if self._waits_for is None or self._waits_for[1] != (call.epoch, call.lineage) or self._waits_for[0] == leader:
            return 0.0
        self.rival = leader
        self._called.set()
        return max(self._left_s(), 0.0)

    def _left_s(self) -> float:
        return self._heard_s + self._timeouts.rival_s - self._clock()

    async def into(self, leader: PeerId, join: Join) -> tuple[Stream, Group] | Certified | Aborted:
        """Ask ``leader`` for a place, and wait until it begins.

        Returns:
            The stream and the group; or what was decided meanwhile; or why there is no round.
        """
        self._waits_for, self.rival, self._heard_s = (leader, (join.epoch, join.lineage)), None, self._clock()
        self._called.clear()
        entering = asyncio.create_task(self._enter(leader, join))
        calling = asyncio.create_task(self._called.wait())
        try:
            await asyncio.wait((entering, calling), return_when=asyncio.FIRST_COMPLETED)
            while not entering.done() and self._left_s() > 0:
                await asyncio.wait((entering,), timeout=self._left_s())
            if not entering.done():
                self._timeouts.miss(leader)
                return Aborted(reason="leader_lost", text=f"leader {leader} says nothing, and {self.rival} calls")
            return entering.result()
        finally:
            self._waits_for = None
            for task in (entering, calling):
                task.cancel()
            await asyncio.gather(entering, calling, return_exceptions=True)

    async def _enter(self, leader: PeerId, join: Join) -> tuple[Stream, Group] | Certified | Aborted:
        try:
            stream, answer = await self._ask(leader, join)
        except NetworkError as error:
            return Aborted(reason="leader_lost", text=f"leader {leader} cannot be reached: {error.message}")
        try:
            begun = await self._begun(stream, join, answer)
        except NetworkError as error:
            begun = Aborted(reason="leader_lost", text=f"leader {leader}: {error.message}")
        except BaseException:
            stream.close()
            raise
        if isinstance(begun, Group):
            return stream, begun
        if isinstance(begun, Certified):  # we have missed a round, and shall ask for a place in the next one
            self.keep(stream)
        else:
            stream.close()
        return begun

    async def _ask(self, leader: PeerId, join: Join) -> tuple[Stream, Message]:
        """Ask for a place and hear the first answer, over the stream of the last round if it still stands.

        Raises:
            NetworkError: the leader does not answer at all.
        """
        idle = self._idle.take(leader)
        if idle is not None:
            try:
                return idle, await self._answer(idle, join)
            except StreamClosed:
                pass  # closed since the last round; whether the leader is gone shows now
        await self._turn(leader)
        with self._timeouts.asking(leader, is_quiet=True) as limit_s:
            stream = await self._transport.open(leader, ROUND_PROTOCOL, timeout_s=limit_s)
        return stream, await self._answer(stream, join)

    async def _turn(self, leader: PeerId) -> None:
        """Come no more often than a leader bears: a fast trainer makes a thousand attempts a second that fail."""
        turns = self._turns.get(leader) or Bucket(ATTEMPTS, self._clock())
        self._turns[leader] = turns
        while not turns.take(self._clock()):
            await asyncio.sleep(max(turns.wait_s(self._clock()), SHORTEST_REST_S))

    async def _answer(self, stream: Stream, join: Join) -> Message:
        try:
            with self._timeouts.asking(stream.remote, is_quiet=True) as limit_s:
                await stream.send(join.to_message(), timeout_s=limit_s)
                return await stream.receive(timeout_s=limit_s)
        except BaseException:
            stream.close()
            raise

    async def _begun(self, stream: Stream, join: Join, message: Message) -> Group | Certified | Aborted:
        """Wait for BEGIN.

        Raises:
            NetworkError: the leader is gone, says nothing, or nonsense.
        """
        watch = self._silence.watch(at_most_s=2 * self._timeouts.fixed.gather_limit_s)
        while message.kind in ("welcome", "wait"):
            self._heard_s = self._clock()
            message = await stream.receive(timeout_s=max(watch.left_s(), 0.001))
            watch.heard()
        if message.kind == "superseded":
            return await self._verdicts.believe(stream.remote, message, (join.epoch, join.lineage))
        if message.kind in ("abort", "refused"):
            reason = "refused" if message.kind == "refused" else message.get("reason", str)
            return Aborted(reason=reason, text=message.get("text", str))
        try:
            group = Group.from_message(message)
            self._check(group, stream.remote, join)
            await self._verdicts.check_electors(group)
        except BadMessage as error:
            await self.decline(stream, join.epoch, error)
            raise
        return group

    async def decline(self, stream: Stream, epoch: int, error: BadMessage) -> None:
        """A round has begun that we cannot go into: its leader hears why, and so does whoever watches us."""
        self._news.refused(stream.remote, epoch, error)
        with suppress(NetworkError):
            declined = Message("declined", {"text": error.message[:MAX_TEXT]})
            await stream.send(declined, timeout_s=self._timeouts.answer_s())
        stream.close()

    def _check(self, group: Group, leader: PeerId, join: Join) -> None:
        mine = [member.weight for member in group.members if member.peer == self._transport.peer_id]
        ours = (group.epoch, group.lineage) == (join.epoch, join.lineage)
        if group.leader != leader or not ours or mine not in ([join.weight], [0.0]):  # 0: not in this round
            raise BadMessage(f"leader {leader} began another round than we joined")
        if group.terms != join.terms:
            raise BadMessage(f"leader {leader} began under other orders of the organiser than we joined with")
        sent, result = allowed_codecs(self._policy)
        if group.result_codec not in result or any(member.codec not in sent for member in group.contributors):
            raise BadMessage(f"leader {leader} began with encodings that the run's compression does not have")
        if join.weight > 0 and (group.num_elements, group.rows) != (join.num_elements, join.rows):
            theirs, ours_have = f"{group.num_elements} in {group.rows} rows", f"{join.num_elements} in {join.rows}"
            raise BadMessage(f"leader {leader} began with elements {theirs}, we have {ours_have}")
        if join.num_elements == 0:
            check_length(group, self._verdicts.leading_to(group.lineage))
