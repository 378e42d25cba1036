"""Where a round stands, as its leader sees it: everything that is decided between BEGIN and the verdict, and no IO.

    PROMISING  -- everybody who is left has promised a successor's ballot -->  WORKING
    WORKING  -- a source of results is lost -->  HALTED  -- everybody said what it has -->  WORKING
    WORKING  -- everybody who is left reports the same digests -->  VOTING  -- a quorum of votes -->  COMMITTED
    PROMISING, WORKING  -- an elector has voted in an earlier ballot -->  VOTING, about that record
    PROMISING, WORKING, HALTED  -- nobody left to reduce, or no quorum left -->  ABORTED
After PREPARE the leader cannot abort any more: a vote may stand that it has not heard of.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot, Proposal
from collab.averaging.complaints import Case, judge, with_a_reducer
from collab.averaging.division import Division
from collab.averaging.electors import electorate_of
from collab.averaging.messages import Group
from collab.averaging.reports import agreed_gaps, differing, fault_of, record_of
from collab.averaging.seats import RecordSeat
from collab.averaging.steps import UNPROMISED, Abort, Action, Commit, Halt, Lead, Mend, Prepare, Report, Stage
from collab.types import PeerId


@dataclass(slots=True)
class Course:
    """One round."""

    group: Group
    live: set[PeerId]
    division: Division
    proposal: Proposal[CommitRecord]
    stage: Stage = Stage.WORKING
    generation: int = 0
    """How often work was divided anew."""
    gone: dict[PeerId, tuple[str, str]] = field(default_factory=dict)
    """Members that are not in the round any more: reason and words."""
    silenced: set[PeerId] = field(default_factory=set)
    """Members of whom nothing more goes into the mean."""
    relieved: dict[PeerId, tuple[str, str]] = field(default_factory=dict)
    """Members that reduce nothing any more: reason and words."""
    _news: set[PeerId] = field(default_factory=set)
    """Gone, and the others do not know it yet."""
    _spoilt: set[int] = field(default_factory=set)  # jobs of which nothing stands
    _held: dict[PeerId, tuple[int, ...]] = field(default_factory=dict)
    _broken: tuple[int, ...] = ()  # while work is halted
    _reports: dict[PeerId, Report] = field(default_factory=dict)
    _promised: set[PeerId] = field(default_factory=set)
    """Who has answered a successor's ``Lead``."""
    _has_asked: bool = False
    _is_uneven: bool = False
    """Members may have been told of different divisions, or to stop: all are to be stopped, and told the newest."""
    _votes: set[PeerId] = field(default_factory=set)
    _cases: list[Case] = field(default_factory=list)

    @classmethod
    def of(cls, group: Group) -> "Course":
        """As the round begins."""
        live = {member.peer for member in group.members}
        division = Division.of(group.spans, group.part_elements)
        return cls(group, live, division, Proposal(ballot=group.ballot, electorate=electorate_of(group)))

    @classmethod
    def resumed(cls, group: Group, ballot: Ballot, resumes: Mapping[PeerId, tuple[int, Division]]) -> "Course":
        """As a successor takes the round over.

        Args:
            resumes: who goes on, with the generation and division that it knows of.
        """
        generation, division = max(resumes.values(), key=lambda resume: (resume[0], len(resume[1].jobs)))
        proposal: Proposal[CommitRecord] = Proposal(ballot=ballot, electorate=electorate_of(group))
        course = cls(group, set(resumes), division, proposal, Stage.PROMISING, generation)
        course.gone = {
            member.peer: ("lost_with_leader", f"{member.peer} did not go on with its leader's successor")
            for member in group.members
            if member.peer not in resumes
        }
        course._news = set(course.gone)
        course._is_uneven = generation > 0 or len({division for _, division in resumes.values()}) > 1
        return course

    # -- what is heard -----------------------------------------------------------------------------------------------

    def lose(self, peer: PeerId, reason: str, text: str) -> None:
        """A member is gone, or has to go."""
        if peer in self.live:
            self.live.discard(peer)
            self.gone[peer] = reason, text
            self._news.add(peer)
            self._reports.pop(peer, None)

    def silence(self, peer: PeerId) -> None:
        """A member's parts are not waited for any more; it stays, and does nothing else slowly either."""
        if peer in self.live and peer not in self.silenced:
            self.silenced.add(peer)
            self._news.add(peer)
            self.relieve(peer, "slow_sender", f"{peer} sends its parts long after most others")

    def relieve(self, peer: PeerId, reason: str, text: str) -> None:
        """A member does not bring its results; others shall do its work."""
        if self.stage in (Stage.WORKING, Stage.HALTED):
            self.relieved.setdefault(peer, (reason, text))

    def complain(self, case: Case) -> None:
        """Keep a complaint, to be judged with those that follow it."""
        culprit, complaint = case.complaint.culprit, case.complaint
        idle = self.relieved if complaint.is_reducer else self.silenced
        is_settled = culprit not in self.live or (culprit in idle and not complaint.is_hostile)
        if case.accuser in self.live and not is_settled and self.stage in (Stage.WORKING, Stage.HALTED):
            self._cases.append(case)

    @property
    def has_cases(self) -> bool:
        """Whether somebody is accused who is still here."""
        return any(case.accuser in self.live and case.complaint.culprit in self.live for case in self._cases)

    def judge(self) -> None:
        """Decide about all complaints that nobody's death has settled."""
        open_cases = [case for case in self._cases if case.accuser in self.live and case.complaint.culprit in self.live]
        self._cases.clear()
        able = (self.live & set(self.group.reducers)) - self.relieved.keys()
        judgement = with_a_reducer(judge(open_cases), open_cases, able, self.live, self.group.leader)
        for case in judgement.dropped:
            self.lose(case.complaint.culprit, case.complaint.reason, case.complaint.text)
        for case in judgement.relieved:
            self.relieve(case.complaint.culprit, case.complaint.reason, case.complaint.text)

    def take_held(self, peer: PeerId, generation: int, counts: Sequence[int]) -> None:
        """A member's answer to ``Halt``."""
        if peer in self.live and self.stage is Stage.HALTED and generation == self.generation:
            if len(counts) != len(self._broken) or any(n < 0 for n in counts):
                self.lose(peer, "bad_report", f"{peer} holds {len(counts)} counts of {len(self._broken)} jobs")
                return
            self._held[peer] = tuple(counts)

    def take_promise(self, peer: PeerId, seat: RecordSeat | None) -> None:
        """A member's answer to ``Lead``; None: it has no seat."""
        if peer in self.live and self.stage is Stage.PROMISING:
            self._promised.add(peer)
            self._hear_promise(peer, seat)

    def take_report(self, peer: PeerId, generation: int, report: Report, seat: RecordSeat | None) -> None:
        """A member holds everything; it has promised our ballot, unless it has no seat."""
        is_awaited = self.stage in (Stage.PROMISING, Stage.WORKING) and not self._is_uneven
        if peer in self.live and is_awaited and generation == self.generation:
            if (fault := fault_of(report, self.group, self.division)) is not None:
                self.lose(peer, "bad_report", f"{peer} {fault}")
                return
            self._reports[peer] = report
            self._hear_promise(peer, seat)

    def _hear_promise(self, peer: PeerId, seat: RecordSeat | None) -> None:
        if seat is not None:
            self.proposal = self.proposal.hear_promise(peer, seat)

    def take_vote(self, peer: PeerId, seat: RecordSeat | None) -> None:
        """A member's answer to ``Prepare``."""
        if self.stage is Stage.VOTING:
            self._votes.add(peer)
            if seat is not None:
                self.proposal = self.proposal.hear_vote(peer, seat)

    def can_decide(self) -> bool:
        """Whether members that are there, with those that have voted, can still be a quorum."""
        waiting = self.awaited() if self.stage is Stage.VOTING else self.live
        return self.proposal.electorate.has_quorum(self.proposal.supporters | waiting) or self.proposal.is_decided

    def awaited(self) -> frozenset[PeerId]:
        """Members that have not yet done what the stage asks of them."""
        heard: Collection[PeerId] = {
            Stage.PROMISING: self._promised,
            Stage.WORKING: self._reports.keys(),
            Stage.HALTED: self._held.keys(),
            Stage.VOTING: self._votes,
        }.get(self.stage, self.live)
        return frozenset(self.live - set(heard))

    # -- what follows ------------------------------------------------------------------------------------------------

    def next_action(self) -> Action | None:
        """What the leader has to do now, if anything; to be asked again until there is nothing."""
        if self.stage in (Stage.COMMITTED, Stage.ABORTED):
            return None
        if self.proposal.is_decided and self.proposal.value is not None:
            self.stage = Stage.COMMITTED
            return Commit(self.proposal.value)
        if self.stage is Stage.VOTING:
            return None
        if (abort := self._hopeless()) is not None:
            return abort
        if self.stage is Stage.PROMISING:
            return self._promising()
        if self.stage is Stage.HALTED and not self._news and not self._unhalted() and not self.awaited():
            return self._mend()
        if self._news or self._unhalted():
            return self._halt()
        if self.stage is Stage.WORKING and not self.awaited():
            return self._prepare()
        return None

    def _promising(self) -> Action | None:
        if not self._has_asked:
            self._has_asked = True
            return Lead(self.proposal.ballot)
        if self.awaited():
            return None
        if not self.proposal.has_promises:
            return self._abort("no_quorum", UNPROMISED)
        if (found := self.proposal.value_to_propose(None)) is not None:
            return self._ask_for_votes(found)
        self.stage = Stage.WORKING
        return self.next_action()

    def _ask_for_votes(self, own: CommitRecord) -> Action | None:
        """PREPARE, for our own record or for one that was voted for before."""
        if not self.proposal.has_promises:
            return self._abort("no_quorum", UNPROMISED)
        self.proposal = self.proposal.propose(own)
        self.stage = Stage.VOTING
        return None if self.proposal.value is None else Prepare(self.proposal.ballot, self.proposal.value)

    def _abort(self, reason: str, text: str) -> Abort:
        self.stage = Stage.ABORTED
        return Abort(reason, text)

    def _hopeless(self) -> Abort | None:
        why = "; ".join(text for _, text in self.gone.values())
        reason = next((reason for reason, _ in self.gone.values()), "no_quorum")
        if not any(member.peer in self.live for member in self.group.contributors):
            return self._abort(reason, f"no contributor is left: {why}")
        if not self.can_decide():
            return self._abort(reason, f"only {len(self.live)} members are left, no quorum: {why}")
        return None

    def _unhalted(self) -> tuple[int, ...]:
        """Broken jobs of which members may still take something."""
        lost = self.gone.keys() | self.relieved.keys()
        broken = {*self.division.broken(lost), *self._spoilt}
        if self._is_uneven:
            broken.update(range(len(self.division.jobs)))
        return tuple(sorted(broken - set(self._broken)))

    def _halt(self) -> Halt:
        gone, broken = tuple(sorted(self._news & self.gone.keys())), self._unhalted()
        silenced = tuple(sorted(self._news - self.gone.keys()))
        self._news.clear()
        if broken or self.stage is Stage.HALTED:
            self.stage, self._broken = Stage.HALTED, tuple(sorted({*self._broken, *broken}))
            self.generation += 1
            self._held.clear()
            self._reports.clear()
            return Halt(self.generation, gone, silenced, self._broken)
        return Halt(self.generation, gone, silenced, ())

    def _mend(self) -> Mend | Abort:
        held = {
            peer: tuple(0 if i in self._spoilt else n for i, n in zip(self._broken, counts, strict=True))
            for peer, counts in self._held.items()
            if peer not in self.relieved and peer in self.group.reducers  # whom others can reach
        }
        reducers = {
            peer: float(sum(span.num_elements for span in self.group.spans if span.reducer == peer))
            for peer in sorted(self.live & set(self.group.reducers))
            if peer not in self.relieved
        }
        division = self.division.mended(self._broken, held, reducers)
        if division is None or not division.is_sound(self.group.num_elements):
            return self._abort("nobody_reduces", "nobody is left who can reduce what is missing")
        self.stage, self.division, self._broken = Stage.WORKING, division, ()
        self._spoilt.clear()
        self._is_uneven = False
        return Mend(self.generation, division)

    def _prepare(self) -> Action | None:
        """All have reported: the record, if they hold the same; else go on without who does not."""
        for index in (index for index, job in enumerate(self.division.jobs) if job.valid):
            liars = differing(self._reports, index)
            if liars is None:
                self._spoil(index)
            for peer in liars or ():
                self.lose(peer, "results_differ", f"{peer} holds other bytes than most")
        receivers = {member.peer for member in self.group.members if member.receives}
        gaps, others = agreed_gaps(self._reports, receivers, self.division)
        for peer in others:
            self.lose(peer, "bad_report", f"{peer} names other gaps than most")
        if self._news or self._spoilt:
            return self.next_action()
        record = record_of(self.group, self.division, self._reports, gaps)
        if not record.contributors:
            return self._abort("no_contributor", "nothing of any contributor is in the mean")
        return self._ask_for_votes(record)

    def _spoil(self, index: int) -> None:
        """Members hold different bytes of a job, and none are most: its reducer gave them, and is not trusted again."""
        reducer = self.division.jobs[index].span.reducer
        self._spoilt.add(index)
        why = "results_differ", f"{reducer} gave different results to different members"
        self.relieve(reducer, *why)
        self.lose(reducer, *why)
