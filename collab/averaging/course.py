"""Where a round stands, as its leader sees it: everything that is decided between BEGIN and the verdict, and no IO.

    WORKING  -- a source of results is lost -->  HALTED  -- everybody said what it has -->  WORKING
    WORKING  -- everybody who is left reports the same digests -->  VOTING  -- a quorum of votes -->  COMMITTED
    WORKING, HALTED  -- nobody left to reduce, or no quorum left -->  ABORTED

After PREPARE the leader cannot abort any more: a vote may stand that it has not heard of.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from collab.averaging.agreement import CommitRecord
from collab.averaging.complaints import Case, judge
from collab.averaging.division import Division
from collab.averaging.messages import Group
from collab.types import PeerId

Gap = tuple[PeerId, int, int]


class Stage(StrEnum):
    """What the members are doing."""

    WORKING = "working"
    HALTED = "halted"
    VOTING = "voting"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Halt:
    """Tell the members who is gone, and what to take nothing more of; with ``broken`` they answer."""

    generation: int
    gone: tuple[PeerId, ...]
    broken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mend:
    """Tell the members how to go on."""

    generation: int
    division: Division


@dataclass(frozen=True, slots=True)
class Prepare:
    """Ask for votes."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Commit:
    """Tell everybody."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell everybody."""

    reason: str
    text: str


Action = Halt | Mend | Prepare | Commit | Abort


@dataclass(frozen=True, slots=True)
class Report:
    """What a member says it holds."""

    digests: tuple[str | None, ...]
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class Course:
    """One round."""

    group: Group
    live: set[PeerId]
    division: Division
    stage: Stage = Stage.WORKING
    generation: int = 0
    """How often work was divided anew."""
    gone: dict[PeerId, tuple[str, str]] = field(default_factory=dict)
    """Members that are not in the round any more: reason and words."""
    relieved: set[PeerId] = field(default_factory=set)
    """Members that reduce nothing any more."""
    record: CommitRecord | None = None
    """From PREPARE on."""
    _news: set[PeerId] = field(default_factory=set)
    """Gone, and the others do not know it yet."""
    _spoilt: set[int] = field(default_factory=set)
    """Jobs of which nothing stands."""
    _held: dict[PeerId, tuple[int, ...]] = field(default_factory=dict)
    _broken: tuple[int, ...] = ()
    _reports: dict[PeerId, Report] = field(default_factory=dict)
    _votes: set[PeerId] = field(default_factory=set)
    _cases: list[Case] = field(default_factory=list)

    @classmethod
    def of(cls, group: Group) -> "Course":
        """As the round begins."""
        live = {member.peer for member in group.members}
        return cls(group, live, Division.of(group.spans, group.part_elements))

    # -- what is heard -----------------------------------------------------------------------------------------------

    def lose(self, peer: PeerId, reason: str, text: str) -> None:
        """A member is gone, or has to go."""
        if peer in self.live:
            self.live.discard(peer)
            self.gone[peer] = reason, text
            self._news.add(peer)
            self._reports.pop(peer, None)

    def relieve(self, peer: PeerId) -> None:
        """A member does not bring its results; others shall do its work."""
        if self.stage in (Stage.WORKING, Stage.HALTED):
            self.relieved.add(peer)

    def complain(self, case: Case) -> None:
        """Keep a complaint, to be judged with those that follow it."""
        culprit = case.complaint.culprit
        is_settled = culprit not in self.live or (case.complaint.is_reducer and culprit in self.relieved)
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
        judgement = judge(open_cases)
        for case in judgement.dropped:
            self.lose(case.complaint.culprit, case.complaint.reason, case.complaint.text)
        for case in judgement.relieved:
            self.relieve(case.complaint.culprit)

    def take_held(self, peer: PeerId, generation: int, counts: Sequence[int]) -> None:
        """A member's answer to ``Halt``."""
        if peer in self.live and self.stage is Stage.HALTED and generation == self.generation:
            if len(counts) != len(self._broken) or any(n < 0 for n in counts):
                self.lose(peer, "bad_report", f"{peer} holds {len(counts)} counts of {len(self._broken)} jobs")
                return
            self._held[peer] = tuple(counts)

    def take_report(self, peer: PeerId, generation: int, report: Report) -> None:
        """A member holds everything."""
        if peer in self.live and self.stage is Stage.WORKING and generation == self.generation:
            if len(report.digests) != len(self.division.jobs):
                self.lose(peer, "bad_report", f"{peer} has {len(report.digests)} of {len(self.division.jobs)} digests")
                return
            self._reports[peer] = report

    def take_vote(self, peer: PeerId) -> None:
        """A member has voted for ``record``."""
        if self.stage is Stage.VOTING:
            self._votes.add(peer)

    def voters(self) -> frozenset[PeerId]:
        """Members that have voted, or may still do."""
        return frozenset(self._votes | self.live)

    def awaited(self) -> frozenset[PeerId]:
        """Members that have not yet done what the stage asks of them."""
        heard: Collection[PeerId] = {
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
        if self.stage is Stage.VOTING:
            return self._commit_or_none()
        if (abort := self._hopeless()) is not None:
            self.stage = Stage.ABORTED
            return abort
        if self.stage is Stage.HALTED and not self._news and not self._unhalted() and not self.awaited():
            return self._mend()
        if self._news or self._unhalted():
            return self._halt()
        if self.stage is Stage.WORKING and not self.awaited():
            return self._prepare()
        return None

    def _hopeless(self) -> Abort | None:
        why = "; ".join(text for _, text in self.gone.values())
        reason = next((reason for reason, _ in self.gone.values()), "no_quorum")
        if not any(member.peer in self.live for member in self.group.contributors):
            return Abort(reason, f"no contributor is left: {why}")
        if not self.group.has_quorum(self.live):
            return Abort(reason, f"only {len(self.live)} members are left, no quorum: {why}")
        return None

    def _unhalted(self) -> tuple[int, ...]:
        """Broken jobs of which members may still take something."""
        lost = self.gone.keys() | self.relieved
        broken = set(self.division.broken(lost)) | self._spoilt
        return tuple(sorted(broken - set(self._broken if self.stage is Stage.HALTED else ())))

    def _halt(self) -> Halt:
        gone, broken = tuple(sorted(self._news)), self._unhalted()
        self._news.clear()
        if broken or self.stage is Stage.HALTED:
            already = self._broken if self.stage is Stage.HALTED else ()
            self.stage, self._broken = Stage.HALTED, tuple(sorted({*already, *broken}))
            self.generation += 1
            self._held.clear()
            self._reports.clear()
            return Halt(self.generation, gone, self._broken)
        return Halt(self.generation, gone, ())

    def _mend(self) -> Mend | Abort:
        held = {
            peer: tuple(0 if i in self._spoilt else n for i, n in zip(self._broken, counts, strict=True))
            for peer, counts in self._held.items()
            if peer not in self.relieved
        }
        reducers = {
            peer: float(sum(span.num_elements for span in self.group.spans if span.reducer == peer))
            for peer in self.live & set(self.group.reducers)
            if peer not in self.relieved
        }
        division = self.division.mended(self._broken, held, reducers)
        if division is None or not division.is_sound(self.group.num_elements):
            self.stage = Stage.ABORTED
            return Abort("nobody_reduces", "nobody is left who can reduce what is missing")
        self.stage, self.division, self._broken = Stage.WORKING, division, ()
        self._spoilt.clear()
        return Mend(self.generation, division)

    def _prepare(self) -> Action | None:
        """All have reported: the record, if they hold the same; else go on without who does not."""
        for index in range(len(self.division.jobs)):
            counts = Counter(report.digests[index] for report in self._reports.values())
            counts.pop(None, None)
            if len(counts) > 1:
                self._settle_difference(index, counts)
                return self.next_action()
        receivers = {m.peer for m in self.group.members if m.receives}
        gaps = Counter(report.gaps for peer, report in self._reports.items() if peer in receivers)
        agreed = max(gaps, key=lambda each: (gaps[each], each))
        for peer in [p for p, report in self._reports.items() if p in receivers and report.gaps != agreed]:
            self.lose(peer, "bad_report", f"{peer} names other gaps than most")
        if self._news:
            return self.next_action()
        self.record = self._record(agreed)
        self.stage = Stage.VOTING
        return Prepare(self.record)

    def _settle_difference(self, index: int, counts: Mapping[str | None, int]) -> None:
        """Members hold different bytes of one job: a reducer that gave different ones, or a member that lies."""
        most, total = max(counts.values()), sum(counts.values())
        if 2 * most > total and total > 2:
            agreed = next(digest for digest, count in counts.items() if count == most)
            for peer in [p for p, report in self._reports.items() if report.digests[index] not in (None, agreed)]:
                self.lose(peer, "results_differ", f"{peer} holds other bytes than most")
            return
        reducer = self.division.jobs[index].span.reducer
        self._spoilt.add(index)
        self.relieve(reducer)
        self.lose(reducer, "results_differ", f"{reducer} gave different results to different members")

    def _record(self, gaps: tuple[Gap, ...]) -> CommitRecord:
        jobs = [(i, job) for i, job in enumerate(self.division.jobs) if job.valid]
        digests = [
            next((report.digests[i] for report in self._reports.values() if report.digests[i] is not None), "")
            for i, _ in jobs
        ]
        missing = Counter[PeerId]()
        for peer, start, stop in gaps:
            missing[peer] += stop - start
        contributors = tuple(
            (m.peer, m.weight) for m in self.group.contributors if missing[m.peer] < self.group.num_elements
        )
        names = dict(contributors)
        return CommitRecord(
            round_id=self.group.round_id,
            epoch=self.group.epoch,
            lineage=self.group.lineage,
            contributors=contributors,
            members=tuple(member.peer for member in self.group.members if member.peer in self.live),
            pieces=tuple((job.span.reducer, *self.division.extent(i)) for i, job in jobs),
            digests=tuple(digest or "" for digest in digests),
            gaps=tuple(gap for gap in gaps if gap[0] in names),
        )

    def _commit_or_none(self) -> Commit | None:
        if self.record is None or not self.group.has_quorum(self._votes):
            return None
        self.stage = Stage.COMMITTED
        return Commit(self.record)
