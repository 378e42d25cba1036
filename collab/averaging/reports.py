"""What the members of a round say they hold, and the record that comes of it: pure."""

from collections import Counter
from collections.abc import Collection, Mapping

from collab.averaging.agreement import CommitRecord, are_gaps_of
from collab.averaging.division import Division
from collab.averaging.messages import Group
from collab.averaging.steps import Gap, Report
from collab.types import PeerId

Reports = Mapping[PeerId, Report]


def differing(reports: Reports, index: int) -> tuple[PeerId, ...] | None:
    """Members that hold other bytes of a job than most; None: there is no most, so its reducer is to blame."""
    counts = Counter(report.digests[index] for report in reports.values())
    counts.pop(None, None)
    if len(counts) <= 1:
        return ()
    digest, most = counts.most_common(1)[0]
    if 2 * most <= counts.total() or counts.total() <= 2:
        return None
    return tuple(peer for peer, report in reports.items() if report.digests[index] not in (None, digest))


def agreed_gaps(
    reports: Reports, receivers: Collection[PeerId], division: Division
) -> tuple[tuple[Gap, ...], tuple[PeerId, ...]]:
    """What most receivers say is missing, and who of them says otherwise.

    Of equally many, those are believed whom more of the members confirm that only reduce, each about what it reduced
    itself; without a witness the larger gaps: what counts as missing is brought again, and what does not may be lost.
    """
    told = {peer: report.gaps for peer, report in reports.items() if peer in receivers}
    witnesses = {peer: report.gaps for peer, report in reports.items() if peer not in receivers}
    counts = Counter(told.values())

    def confirmed(gaps: tuple[Gap, ...]) -> int:
        return sum(_within(gaps, division.extents_of(peer)) == seen for peer, seen in witnesses.items())

    agreed = max(counts, key=lambda gaps: (counts[gaps], confirmed(gaps), gaps), default=())
    return agreed, tuple(peer for peer, gaps in told.items() if gaps != agreed)


def _within(gaps: tuple[Gap, ...], extents: Collection[tuple[int, int]]) -> tuple[Gap, ...]:
    return tuple(gap for gap in gaps if any(start <= gap[1] and gap[2] <= stop for start, stop in extents))


def fault_of(report: Report, group: Group, division: Division) -> str | None:
    """What no honest member reports; None: nothing of the kind."""
    if len(report.digests) != len(division.jobs):
        return f"has {len(report.digests)} of {len(division.jobs)} digests"
    if not are_gaps_of(report.gaps, [member.peer for member in group.contributors], group.num_elements):
        return "names a gap of nobody, beyond the vector, or twice"
    return None


def record_of(group: Group, division: Division, reports: Reports, gaps: tuple[Gap, ...]) -> CommitRecord:
    """The record of a round whose members, those of ``reports``, hold the same."""
    jobs = [(index, job) for index, job in enumerate(division.jobs) if job.valid]
    missing = Counter[PeerId]()
    for peer, start, stop in gaps:
        missing[peer] += stop - start
    contributors = tuple((m.peer, m.weight) for m in group.contributors if missing[m.peer] < group.num_elements)
    names = dict(contributors)
    return CommitRecord(
        round_id=group.round_id,
        epoch=group.epoch,
        lineage=group.lineage,
        contributors=contributors,
        members=tuple(sorted(reports, key=lambda peer: (peer != group.leader, peer))),
        pieces=tuple((job.span.reducer, *division.extent(index)) for index, job in jobs),
        digests=tuple(_digest(reports, index) for index, _ in jobs),
        gaps=tuple(gap for gap in gaps if gap[0] in names),
        terms=group.terms,
    )


def _digest(reports: Reports, index: int) -> str:
    return next((report.digests[index] for report in reports.values() if report.digests[index]), None) or ""
