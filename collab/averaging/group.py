"""Forming a group and leading its round: the leader's side.

A leader calls everybody who should take part, closes the group when all who said they are coming are there (or when
the last of them is late), and fixes members, weights and spans in BEGIN. What follows is ``conduct``'s.
"""

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Assembly, Expected, Gathering, Roster
from collab.averaging.ballots import Electorate, ballot_above
from collab.averaging.calls import CALL_PROTOCOL, NOT_COMING, Call, Reply
from collab.averaging.conduct import SPLIT, Conductor, abort_message
from collab.averaging.course import Course
from collab.averaging.deadlines import Arrivals
from collab.averaging.following import Following
from collab.averaging.messages import MAX_MEMBERS, Group
from collab.averaging.news import News
from collab.averaging.planning import Planner
from collab.averaging.rows import row_interval_s, waits_for_next
from collab.averaging.settings import RoundSettings
from collab.averaging.silence import Silence
from collab.averaging.timeouts import MeasuredTimeouts
from collab.averaging.verdicts import Verdicts
from collab.errors import NetworkError
from collab.metrics.records import PeerRefused
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import PeerId

logger = logging.getLogger(__name__)

LAST_ANSWERS = 2
"""Of the longest: so long the last round waits for whoever has missed one, asks for it, and takes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chair:
    """What the rounds that a peer leads have in common."""

    ports: Ports
    settings: RoundSettings
    timeouts: MeasuredTimeouts
    roster: Roster
    verdicts: Verdicts
    following: Following


class Leader:
    """Leads the rounds of others' choice: any peer that can be dialled may be asked to."""

    def __init__(self, chair: Chair) -> None:
        ports, settings = chair.ports, chair.settings
        self._transport, self._rng = ports.transport, ports.rng
        self._clock, self._observer = ports.clock, ports.observer
        self._roster, self._verdicts = chair.roster, chair.verdicts
        self._following, self._electors = chair.following, chair.verdicts.electors
        self._fingerprint, self._timeouts = settings.fingerprint, chair.timeouts
        self._news = News(ports)
        self._lateness = Arrivals(self._timeouts.fixed.gather_slack_s)
        self._settings, self._terms = settings, settings.terms
        self.silence = Silence(ports.clock.monotonic, self._timeouts.fixed.silence_s)
        self._planner = Planner(settings.policy)

    async def lead(self, assembly: Assembly) -> CommitRecord | Mapping[PeerId, str]:
        """Take one assembly to its end; every joined stream has its verdict when this returns.

        Returns:
            The record when the round committed; when it was aborted, who left it, and for what reason.
        """
        try:
            expected = await self._gather(assembly)
            assembly.is_open = False
            gone_on = (await self._roster(assembly.epoch, assembly.lineage)).ahead  # it may have taken long
            await self._dismiss_misfits(assembly)
            if assembly.epoch > 0:  # else nobody made the history; a newcomer does not know who did
                silent = await self._verdicts.learn_maker(assembly.lineage, expected.whom_to_ask(assembly.joined))
                unheard = {peer: assembly.joined.pop(peer)[0] for peer in sorted(silent & assembly.joined.keys())}
                await self._tell(unheard, abort_message("no_quorum", "you have not said whether you know who decides"))
            group = self._close(assembly, expected, gone_on)
            if isinstance(group, str):
                await self._tell({p: s for p, (s, _) in assembly.joined.items()}, abort_message("no_quorum", group))
                return {}
            streams = {member.peer: assembly.joined[member.peer][0] for member in group.members}
            await self._tell(streams, group.to_message())
            return await self.conduct(Course.of(group), streams)
        finally:
            assembly.is_open = False
            assembly.finished.set()

    # -- forming -----------------------------------------------------------------------------------------------------

    async def _gather(self, assembly: Assembly) -> Expected:
        """Wait until everybody who is coming is there, or late; with a quorum nobody waits for stragglers."""
        loop = asyncio.get_running_loop()
        expected = await self._expected(assembly)
        gathering = Gathering(began_s=loop.time(), trainers=expected.trainers)
        waits_for_all = self._is_last(assembly) and not self._settings.is_synchronous
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
                    if task.done() and peer not in gathering.replies:
                        gathering.heard(peer, task.result(), loop.time())
                missing = [peer for peer in calling if peer not in assembly.joined]
                has_quorum = self._has_quorum(assembly, expected)
                closes_at_s = self._closes_at(gathering, missing, has_quorum) if missing else -math.inf
                if has_quorum and waits_for_all and expected.left_behind(assembly.joined):
                    limit_s = LAST_ANSWERS * self._timeouts.answer_s(is_quiet=True)
                    closes_at_s = max(closes_at_s, gathering.began_s + limit_s)
                wait_s = closes_at_s - loop.time()
                if wait_s <= 0:
                    break
                await _wait(assembly.changed, wait_s)
            for task in calling.values():
                task.cancel()
        self._learn(gathering, assembly)
        return expected

    def _is_last(self, assembly: Assembly) -> bool:
        """Whether what is left out now would never come in."""
        return assembly.epoch + 1 == self._terms.until_epoch

    def _closes_at(self, gathering: Gathering, missing: list[PeerId], has_quorum: bool) -> float:
        """When those who are missing are late, as far as they have answered."""
        if not has_quorum:
            unheard_s, latest_s = asyncio.get_running_loop().time() + self._timeouts.answer_s(is_quiet=True), math.inf
        else:
            unheard_s = latest_s = gathering.began_s + self._following.patience.deadline_s(gathering.computing_s())
            # who did not answer before may be frozen, and is not waited for to find that out
            missing = [p for p in missing if p in gathering.comes_at_s or not self._timeouts.has_missed(p)]
        comes_at_s = (gathering.comes_at_s.get(peer, unheard_s) for peer in missing)
        awaited_s = (at_s for at_s in comes_at_s if at_s <= latest_s)
        return max(awaited_s, default=-math.inf) + self._lateness.deadline_s()

    def _learn(self, gathering: Gathering, assembly: Assembly) -> None:
        """How long trainers take to come, those included for whom the group did not wait."""
        for peer, at_s in assembly.arrived_s.items():
            if gathering.comes_at_s.get(peer, -math.inf) > -math.inf:
                self._lateness.add(at_s - gathering.comes_at_s[peer])
            elif peer in gathering.trainers and peer not in gathering.replies:
                self._following.patience.add(at_s - gathering.began_s)  # came without being called
        for seconds in gathering.computing_s():
            self._following.patience.add(seconds)

    async def _expected(self, assembly: Assembly) -> Expected:
        """As the directory knows them, those who stand with us, and those of whom we know better.

        Where steps follow each other faster than words, contributors to the step before are counted on by what they
        did, not by what they last said: else a fast one would be a majority of itself.
        """
        expected = await self._roster(assembly.epoch, assembly.lineage)
        here = self._following.at((assembly.epoch, assembly.lineage))
        before = self._verdicts.leading_to(assembly.lineage)
        known = expected.behind & dict(before.contributors).keys() if before is not None else frozenset()
        return replace(expected, trainers=expected.trainers | here | known)

    def _has_quorum(self, assembly: Assembly, expected: Expected) -> bool:
        contributors = {peer for peer, (_, join) in assembly.joined.items() if join.weight > 0}
        return 2 * len(contributors) > len(expected.trainers | contributors)

    async def _call(self, peer: PeerId, assembly: Assembly) -> Reply:
        """Ask a peer whether it is coming; whoever does not answer is not."""
        history = (assembly.epoch, assembly.lineage)
        try:
            if peer in self._following.at(history):
                return self._bounded(await self._following.call(peer, history))
        except (NetworkError, KeyError):
            pass  # a stream of its own will show whether it is alive
        call = Call(*history, self._following.patience.deadline_s()).to_message()
        call.fields["fingerprint"] = self._fingerprint
        try:
            with self._timeouts.asking(peer, is_quiet=True) as limit_s:
                stream = await self._transport.open(peer, CALL_PROTOCOL, timeout_s=limit_s)
                try:
                    await stream.send(call, timeout_s=limit_s)
                    return self._bounded(Reply.from_message(await stream.receive(timeout_s=limit_s)))
                finally:
                    stream.close()
        except NetworkError as error:
            logger.info("peer does not answer the call peer=%s reason=%s", peer, error)
            return NOT_COMING

    def _bounded(self, reply: Reply) -> Reply:
        """An hour that a peer announces is not believed."""
        limit_s = self._timeouts.fixed.gather_limit_s
        return replace(reply, comes_in_s=min(reply.comes_in_s, limit_s), free_in_s=min(reply.free_in_s, limit_s))

    async def _dismiss_misfits(self, assembly: Assembly) -> None:
        """Refuse contributors whose vectors are of another length than most, and whoever is too many."""
        joins = {peer: join for peer, (_, join) in assembly.joined.items()}
        shapes = Counter((join.num_elements, join.rows) for join in joins.values() if join.weight > 0)
        usual = max(shapes, key=lambda shape: (shapes[shape], shape), default=(0, 1))
        misfits = {
            p: f"most vectors have {usual[0]} elements in {usual[1]} rows, yours has {join.num_elements} in {join.rows}"
            for p, join in joins.items()
            if join.weight > 0 and (join.num_elements, join.rows) != usual
        }
        fitting = [peer for peer in joins if peer not in misfits]
        misfits |= dict.fromkeys(fitting[MAX_MEMBERS:], f"a group has at most {MAX_MEMBERS} members")
        for peer, text in misfits.items():
            stream, _ = assembly.joined.pop(peer)
            await self._send(stream, Message("refused", {"text": text}))

    def _close(self, assembly: Assembly, expected: Expected, gone_on: frozenset[PeerId]) -> Group | str:
        """The group of all who joined, or why there is none; who has gone on meanwhile joined long ago."""
        joins = {peer: join for peer, (_, join) in assembly.joined.items()}
        contributors = {peer for peer, join in joins.items() if join.weight > 0}
        if not contributors:
            return "nobody contributes"
        electorate = expected.trainers | contributors
        if 2 * len(contributors) <= len(electorate):
            return f"only {len(contributors)} of {len(electorate)} trainers are here"
        if not any(join.can_reduce for join in joins.values()):
            return "nobody can reduce"
        electors = self._electors.of(self._verdicts.leading_to(assembly.lineage), expected)
        if not electors and gone_on:
            return f"nobody here knows who decides what follows, and {len(gone_on)} trainers have gone on from here"
        if electors and not Electorate(electors).has_quorum(joins.keys() - gone_on):
            return f"only {len(joins.keys() & set(electors))} of the {len(electors)} who made the last step are here"
        num_elements, rows = joins[min(contributors)].num_elements, joins[min(contributors)].rows
        is_last = self._is_last(assembly)
        speed = 0.0 if is_last else self._following.samples_per_s((assembly.epoch, assembly.lineage))
        batch_s = self._settings.batch_size(assembly.epoch, len(contributors)) / speed if speed > 0 else math.inf
        try:
            plan = self._planner.plan(dict(sorted(joins.items())), num_elements, batch_s, rows=rows)
        except ValueError as error:  # whatever members may say of themselves, they are to hear why there is no round
            return f"no plan can be made of what the members say: {error}"
        self._following.left_out = frozenset(m.peer for m in plan.members if m.weight < joins[m.peer].weight)
        is_short = is_last or waits_for_next(expected.trainers, joins.keys())
        period_s = self._settings.period_samples * len(contributors) / speed if speed > 0 and not is_short else 0.0
        row_s = row_interval_s(joins, plan.spans, rows, 0.0 if is_short else batch_s, least_s=period_s)
        secret = f"{self._transport.peer_id}:{self._rng.getrandbits(128)}"
        is_measured = any(join.up_bytes_per_s > 0 for join in joins.values())
        group = Group(
            round_id=hashlib.sha256(secret.encode()).hexdigest()[:24],
            epoch=assembly.epoch,
            lineage=assembly.lineage,
            num_elements=num_elements,
            leader=self._transport.peer_id,
            members=plan.members,
            spans=plan.spans,
            part_elements=plan.part_elements,
            result_codec=plan.result_codec,
            electors=electors,
            expected_s=(rows - 1) * row_s + (plan.seconds if is_measured else 0.0),
            terms=self._terms.mark_at(assembly.epoch),
            ballot_number=ballot_above((join.promised for join in joins.values()), self._transport.peer_id).number,
            rows=rows,
            row_s=row_s,
        )
        self._news.planned(group, joins)
        return group

    # -- deciding ----------------------------------------------------------------------------------------------------

    async def conduct(self, course: Course, streams: Mapping[PeerId, Stream]) -> CommitRecord | Mapping[PeerId, str]:
        """Take a round to its end; the record, or who left it for what reason."""
        conductor = Conductor(course, streams, self._timeouts, self.silence, self._verdicts.notary)
        verdict = await conductor.run(self._verdicts.remember)
        epoch = course.group.epoch
        for peer, (reason, text) in (course.relieved | course.gone).items():
            refused = PeerRefused(at_s=self._clock.now(), epoch=epoch, peer=peer, reason=reason, text=text)
            self._observer.observe(refused)
            if reason == SPLIT:
                self._news.split_in_words(text)
        if isinstance(verdict, CommitRecord):
            return verdict
        return {peer: reason for peer, (reason, _) in sorted(course.gone.items())}

    async def _tell(self, streams: dict[PeerId, Stream], message: Message) -> None:
        """Send to every member at once; one that is gone will be met by those who need it."""
        await asyncio.gather(*(self._send(stream, message) for stream in streams.values()))

    async def _send(self, stream: Stream, message: Message) -> None:
        try:
            await stream.send(message, timeout_s=self._timeouts.answer_s())
        except NetworkError as error:
            logger.info("member is gone peer=%s message=%s reason=%s", stream.remote, message.kind, error)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
