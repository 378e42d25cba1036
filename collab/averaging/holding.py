"""Whether what a member holds at the end of a round is what a record is about."""

from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.averaging.messages import Group
from collab.averaging.session import Session
from collab.averaging.transcript import Transcript
from collab.types import AnyVector


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member has of a round that is, or may become, history."""

    record: CommitRecord
    mean: AnyVector | None
    """Of the round; None on a member that only reduces."""
    is_held: bool
    """Whether ``mean`` is what the record is about."""
    transcript: Transcript | None = None
    """How it travelled, when it is held."""


def is_held(record: CommitRecord, group: Group, session: Session) -> bool:
    """Whether the record is about this round, and says of it what ``session`` has seen."""
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
    return session.mean is None or _has_gaps(record, group, session)


def _has_gaps(record: CommitRecord, group: Group, session: Session) -> bool:
    """Whether the record says of contributors what the results say."""
    names = dict(record.contributors)
    gaps = session.gaps()
    absent = {member.peer for member in group.contributors} - names.keys()
    filled = {peer: sum(stop - start for name, start, stop in gaps if name == peer) for peer in absent}
    return list(record.gaps) == [gap for gap in gaps if gap[0] in names] and all(
        filled[peer] == group.num_elements for peer in absent
    )
