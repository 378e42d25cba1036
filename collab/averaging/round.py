"""A round from a member's side, and the engine that ties all sides together.

One attempt: join the leader -> BEGIN -> the round (``participation``) -> verdict.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from collab.averaging.accounts import Accounts
from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Roster
from collab.averaging.base import Aborted, Committed, Contribution, Outcome, Superseded
from collab.averaging.butterfly import Butterfly
from collab.averaging.calls import CALL_PROTOCOL, NOT_COMING, Call, Reply
from collab.averaging.certificates import Certified
from collab.averaging.desk import Desk, Verdict
from collab.averaging.electors import Electors, electorate_of
from collab.averaging.entry import Entry
from collab.averaging.exchange import Bring, Ruling
from collab.averaging.flow import Links
from collab.averaging.following import Following
from collab.averaging.group import Chair
from collab.averaging.history import History
from collab.averaging.holding import Holding
from collab.averaging.messages import ROUND_PROTOCOL, Group, Join
from collab.averaging.news import News
from collab.averaging.notary import Notary
from collab.averaging.participation import Participation
from collab.averaging.probe import Probe
from collab.averaging.rendezvous import Rendezvous
from collab.averaging.seats import Seats
from collab.averaging.settings import RoundSettings
from collab.averaging.silence import Silence
from collab.averaging.standing import Attendance, Leaders
from collab.averaging.verdicts import Verdicts
from collab.averaging.watchdog import Watchdog
from collab.errors import BadMessage, NetworkError
from collab.metrics.records import Phase
from collab.net.base import Stream
from collab.ports import Ports
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""Of one ``average``: enough to lose two peers and a leader; after that the trainer computes on and comes again."""


class RoundEngine:
    """Implements ``Averager``, answers other members, and leads when asked to."""

    def __init__(
        self, ports: Ports, settings: RoundSettings, *,
        leaders: Leaders, roster: Roster, attend: Attendance, prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            prepare: the roster will be asked for soon.
        """
        self._ports, self._settings, self._leaders, self._attend = ports, settings, leaders, attend
        self.links = Links(ports.clock.monotonic, ports.limits, settings.timeouts)
        self._times = self.links.timeouts
        self.probe = Probe(ports.transport, self.links)
        self._accounts = Accounts(ports.transport.peer_id)
        self._butterfly = Butterfly(ports, self.links, Ruling(settings.reduction, settings.max_share))
        self._seats, self._news = Seats(), News(ports)
        electors = Electors(settings.timeouts.reform_s, settings.timeouts.orphaned_s, ports.clock.monotonic)
        notary = Notary(ports, settings.fingerprint, roster, electors)
        self._verdicts = Verdicts(ports.transport, self._times, notary, self._seats, settings.terms)
        self.leading_to = self._verdicts.leading_to
        self._following = Following(ports, settings, self._times, prepare)
        silence = Silence(self.links.clock, self._times.fixed.silence_s)
        self._entry = Entry(ports, self._times, self._verdicts, silence, settings.policy, self._news)
        self._desk = Desk(
            me=ports.transport.peer_id,
            timeouts=self._times,
            silence=silence,
            seats=self._seats,
            verdicts=self._verdicts,
            open=lambda peer, limit_s: ports.transport.open(peer, ROUND_PROTOCOL, timeout_s=limit_s),
            keep_stream=self._entry.keep,
            reach=self._news.reach,
        )
        self._rendezvous = Rendezvous(
            Chair(
                ports=ports,
                settings=settings,
                timeouts=self._times,
                roster=roster,
                verdicts=self._verdicts,
                following=self._following,
            ),
            self._called_by,
        )
        self._participations: dict[str, Participation] = {}
        """Of the rounds under way, by id."""
        self.history = History(ports.transport, settings.fingerprint, self.links, self._verdicts.believe)

    @property
    def fingerprint(self) -> str:
        """Of the run."""
        return self._settings.fingerprint

    def known_records(self) -> list[CommitRecord]:
        """Of the last committed rounds, as far as we know them."""
        return self._verdicts.known_records()

    def has_seat(self, lineage: Lineage) -> bool:
        """Whether we may vote about what follows a history."""
        return self._seats.has_made(lineage)

    @property
    def has_any_seat(self) -> bool:
        """Whether there is any history about which we may vote; for a peer that holds none itself."""
        return self._seats.has_made_any

    async def serve(self) -> None:
        """Begin to answer: contributors, joiners, calls, and members in doubt."""
        await self._butterfly.serve()
        await self._rendezvous.serve()
        await self._following.serve()
        await self.probe.serve()
        await self._ports.transport.serve(CALL_PROTOCOL, self._serve_call)
        await self._verdicts.serve()
        await self.history.serve()

    async def what_followed(self, peers: list[PeerId], epoch: int, lineage: Lineage) -> CommitRecord | None:
        """The round that continued a history, as far as one of ``peers`` knows."""
        certified, _ = await self._verdicts.ask(peers, epoch, lineage)
        return None if certified is None else certified.record

    async def learn_maker(self, peers: list[PeerId], lineage: Lineage) -> None:
        """Learn who decides what follows a history that we have taken over, while those are there who know.

        Whoever of them is not here is missed from now on: others who missed them earlier need us to agree.
        """
        await self._verdicts.learn_maker(lineage, peers)
        if (maker := self._verdicts.leading_to(lineage)) is not None:
            expected = await self._verdicts.notary.roster(maker.epoch + 1, lineage)
            for peer in maker.members:
                expected.absent_s(peer)

    # -- member side -------------------------------------------------------------------------------------------------

    async def average(self, contribution: Contribution) -> Outcome:
        """See ``Averager``. What was accumulated for very long counts as no more than what nobody would refuse."""
        weight, weights = min(contribution.weight, self._settings.max_weight(contribution.epoch)), contribution.weights
        windows = contribution.windows
        bring = Bring(contribution.vector, weights.at_most(weight) if weights is not None else None, windows)
        join = self._application(contribution.epoch, contribution.lineage, len(contribution.vector), weight)
        if windows is not None:
            join = replace(join, rows=windows.count, farthest_s=self.links.uplink.farthest_s())
        outcome: Outcome = Aborted(reason="no_leader", text="nobody who could lead the round is known")
        unreachable, rounds, rival = set[PeerId](), frozenset[str](), None
        joinable = not self._settings.is_synchronous  # there whoever is behind comes while the group forms
        with self.history.expecting((contribution.epoch, contribution.lineage), is_joinable=joinable):
            for _ in range(ATTEMPTS):
                leaders = self._times.responsive(self._leaders(contribution.lineage, contribution.epoch))
                candidates = [peer for peer in leaders if peer not in unreachable]
                if not candidates:
                    break
                leader = rival if rival in candidates else candidates[0]
                outcome = await self._attempt(leader, join, bring)
                if not isinstance(outcome, Aborted):
                    break
                rounds |= outcome.rounds
                outcome = replace(outcome, rounds=rounds)
                if outcome.reason in ("refused", "no_quorum") or (rounds and windows is not None):
                    break  # windows that are over are the first one of the next round
                if outcome.reason == "leader_lost":
                    unreachable.add(leader)
                    rival = self._entry.rival
        return outcome

    async def assist(self, leader: PeerId, epoch: int, lineage: Lineage) -> Outcome:
        """Reduce for others in the round that ``leader`` called for."""
        return await self._attempt(leader, self._application(epoch, lineage, 0, 0.0), Bring())

    def _application(self, epoch: int, lineage: Lineage, num_elements: int, weight: float) -> Join:
        return Join(
            fingerprint=self._settings.fingerprint,
            epoch=epoch,
            lineage=lineage,
            num_elements=num_elements,
            weight=weight,
            can_reduce=self._settings.can_reduce,
            terms=self._settings.terms.mark_at(epoch),
            **self.links.measured(),
        )

    async def _attempt(self, leader: PeerId, join: Join, bring: Bring) -> Outcome:
        started_s = self._ports.clock.monotonic()
        self._news.reach(Phase.JOIN_GROUP, join.epoch)
        join = replace(join, promised=self._seats.promised((join.epoch, join.lineage)))  # also in an attempt before
        begun = await self._entry.into(leader, join)
        if isinstance(begun, Certified):
            return self._decided(begun, None, f"epoch {join.epoch} was committed before we came")
        if isinstance(begun, Aborted):
            return begun
        stream, group = begun
        try:
            self._accounts.begin(group, brings=join.num_elements > 0)
        except BadMessage as error:
            await self._entry.decline(stream, group.epoch, error)
            return Aborted(reason="leader_lost", text=f"leader {leader}: {error.message}")
        try:
            with self.history.expecting((group.epoch, group.lineage)):
                outcome = await self._take_part(stream, group, bring)
        finally:
            self._participations.pop(group.round_id, None)
            self._accounts.end(group)
        self._news.ended(group, outcome, started_s)
        return outcome

    async def _take_part(self, stream: Stream, group: Group, bring: Bring) -> Outcome:
        """From BEGIN to the verdict."""
        begun_s = self._ports.clock.monotonic()
        self._news.reach(Phase.SEND_PARTS, group.epoch)
        session = self._butterfly.session(group, bring, self._accounts.encodings(group))
        async with session:
            part = self._participations[group.round_id] = Participation(group, session, self._desk)
            try:
                verdict = await Watchdog(session, self.links, group.expected_s).guard(part.run(stream))
            except NetworkError as error:
                text = f"leader {group.leader} was lost: {error.message}"
                verdict = await self._resolve_doubt(part, Verdict(None, reason="leader_lost", text=text))
            else:
                if verdict.certified is None and self._seats.voted(group.epoch, group.lineage) is not None:
                    verdict = await self._resolve_doubt(part, verdict)  # others may have a quorum of votes with ours
            certified, voted = verdict.certified, self._seats.voted(group.epoch, group.lineage)
            record = certified.record if certified is not None else voted
            holding = part.holding(record) if record is not None else None
        if certified is not None:
            self._verdicts.electors.note_met((member.peer for member in group.members), begun_s)
            return self._decided(certified, holding, f"epoch {group.epoch} was committed without us to the end")
        if holding is not None and holding.is_held:
            self._accounts.keep(holding)
        return Aborted(reason=verdict.reason, text=verdict.text, rounds=frozenset({group.round_id}))

    async def _resolve_doubt(self, part: Participation, verdict: Verdict) -> Verdict:
        """Nobody leads on, or nobody who has a quorum: ask the other members; ``verdict`` when none of them knows."""
        group = part.group
        others = [member.peer for member in group.members if member.peer != self._desk.me]
        certified, _ = await self._verdicts.ask(others, group.epoch, group.lineage, electorate_of(group))
        return verdict if certified is None else Verdict(certified)

    def _decided(self, certified: Certified, holding: Holding | None, text: str) -> Committed | Superseded:
        """A round is history; ours, if we hold what it is about.

        Where we hold another one, somebody lies, or what agreement rests on did not hold: what we hold stays, we vote
        no more about this history, and take over what most others have.
        """
        record = certified.record
        ours = self._seats.decided((record.epoch, record.lineage))
        if ours is not None and ours != record:
            return Superseded(text=self._news.split(ours, record), record=record)
        holding = self._accounts.take(record) or holding
        is_held = holding is not None and holding.is_held
        self._verdicts.remember(certified)
        if is_held and self._desk.me in record.members:  # a word about what others hold may become void with them
            self._seats.learn(record)
        self._accounts.settle(record)  # what the round's encodings lost is owed
        if holding is None or not is_held:
            return Superseded(text=text, record=record)
        if holding.mean is None:
            return Committed(mean=np.empty(0, np.float32), record=record)
        if holding.transcript is not None:
            self.history.remember(certified, holding.mean, holding.transcript)
        return Committed(mean=holding.mean, record=record)

    def retire(self) -> int | None:
        """Vote no more. From which epoch on others may decide without us; None: not for certain at any."""
        is_settled = all(self._verdicts.committed(*instance) is not None for instance in self._seats.close())
        return self._seats.free_from() if is_settled else None

    def _called_by(self, successor: PeerId, round_id: str) -> None:
        if (part := self._participations.get(round_id)) is not None:
            part.called_by(successor)

    # -- serving others ----------------------------------------------------------------------------------------------

    def attend(self, call: Call, leader: PeerId) -> Reply:
        """Answer a leader's call; who is on its way to another leader comes when that one turns out to be silent."""
        self._times.showed(leader)
        reply, free_in_s = self._attend(call, leader), self._entry.comes_in_s(call, leader)
        if not reply.is_coming or not free_in_s:
            return reply
        return replace(reply, comes_in_s=max(reply.comes_in_s, free_in_s), free_in_s=max(reply.free_in_s, free_in_s))

    async def _serve_call(self, stream: Stream) -> None:
        call = await stream.receive(timeout_s=self._times.answer_s())
        is_ours = call.get("fingerprint", str) == self._settings.fingerprint
        reply = self.attend(Call.from_message(call), stream.remote) if is_ours else NOT_COMING
        await stream.send(reply.to_message(), timeout_s=self._times.answer_s())
