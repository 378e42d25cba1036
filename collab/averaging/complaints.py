"""Whom to go on without when members complain of each other: pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from collab.metrics.records import safe_reason
from collab.net.wire import Message
from collab.types import PeerId

MAX_TEXT = 300
"""Characters of another peer's words that are passed on."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What one member holds against another."""

    culprit: PeerId
    reason: str
    text: str
    is_hostile: bool = False
    """Whether it sent what no honest peer sends."""
    is_reducer: bool = False
    """Whether it is the results that do not come, rather than parts."""

    def to_message(self) -> Message:
        fields = {"culprit": self.culprit, "reason": self.reason, "text": self.text[:MAX_TEXT]}
        return Message("complaint", fields | {"hostile": self.is_hostile, "reducer": self.is_reducer})

    @classmethod
    def from_message(cls, message: Message) -> "Complaint":
        """Raises ``BadMessage`` for anything malformed."""
        return cls(
            PeerId(message.get("culprit", str)),
            safe_reason(message.get("reason", str)),
            message.get("text", str)[:MAX_TEXT],
            message.get("hostile", bool),
            message.get("reducer", bool),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One member's complaint of another."""

    accuser: PeerId
    complaint: Complaint

    @property
    def pair(self) -> frozenset[PeerId]:
        """Both sides: whose fault it is shows only together with other cases."""
        return frozenset((self.accuser, self.complaint.culprit))


@dataclass(frozen=True, slots=True)
class Judgement:
    """A small set of peers without which no complaint is left."""

    dropped: tuple[Case, ...] = ()
    """For each peer that leaves the round, a case that says why."""
    relieved: tuple[Case, ...] = ()
    """For each that only loses its work as a reducer: it is there, but does not bring somebody its results."""


def judge(cases: Iterable[Case]) -> Judgement:
    """Decide all cases at once.

    A peer that cannot exchange with the others is accused by all and accuses all, whichever side's link is broken; so
    the peer in most cases, on either side, goes first, and of equals the one that is accused more often. Of two that
    accuse each other, the one whose results do not come is relieved, and stays; what it says of others, and what that
    does not settle, is judged on.
    """
    unsettled = list(dict.fromkeys(cases))
    dropped, relieved = [], []
    while unsettled:
        involved = Counter(peer for pair in {case.pair for case in unsettled} for peer in pair)
        accused = Counter(case.complaint.culprit for case in unsettled)
        hostile = {case.complaint.culprit for case in unsettled if case.complaint.is_hostile}
        late = {case.complaint.culprit for case in unsettled if case.complaint.is_reducer}
        culprit = min(
            involved,
            key=lambda peer: (-involved[peer], -accused[peer], peer not in hostile, peer not in late, peer),
        )
        against = [case for case in unsettled if case.complaint.culprit == culprit]
        is_only_late = bool(against) and all(
            case.complaint.is_reducer and not case.complaint.is_hostile
            for case in against
            if not _is_mutual(case, against, unsettled)
        )
        if is_only_late and involved[culprit] == len({case.pair for case in against}):
            relieved.append(next(case for case in against if case.complaint.is_reducer))
            unsettled = [case for case in unsettled if not _is_settled(case, culprit)]
        else:
            own = [case for case in unsettled if case.accuser == culprit]
            dropped.append(against[0] if against else _reversed(own[0]))
            unsettled = [case for case in unsettled if culprit not in case.pair]
    gone = {case.complaint.culprit for case in dropped}
    return Judgement(tuple(dropped), tuple(case for case in relieved if case.complaint.culprit not in gone))


def with_a_reducer(
    judgement: Judgement, cases: Iterable[Case], able: Collection[PeerId], live: Collection[PeerId], leader: PeerId
) -> Judgement:
    """The same, unless it would take the work from all who can reduce, which ends the round.

    Then the one keeps it whose results are missed by fewest, as long as no more members miss them than do not; those
    who miss them leave. Where half or more miss everybody's, nothing shows who is at fault, and the round ends: all
    come again, and have what they brought.

    Args:
        able: members that can reduce, and do.
        leader: of equals it stays.
    """
    gone = {case.complaint.culprit for case in judgement.dropped}
    relieved = {case.complaint.culprit for case in judgement.relieved}
    if not relieved or set(able) - gone - relieved:
        return judgement
    missed_by: dict[PeerId, set[PeerId]] = {
        peer: {case.accuser for case in cases if case.complaint.culprit == peer} - gone for peer in relieved & set(able)
    }
    kept = min(missed_by, key=lambda peer: (len(missed_by[peer]), peer != leader, peer), default=leader)
    if kept not in missed_by or 2 * len(missed_by[kept]) > len(set(live) - gone - {kept}):
        return judgement
    text = "{} alone misses results of {}, and nobody else could reduce"
    dropped = (Case(kept, Complaint(peer, "cut_off", text.format(peer, kept))) for peer in sorted(missed_by[kept]))
    spared = missed_by[kept] | {kept}
    return Judgement(
        (*judgement.dropped, *dropped),
        tuple(case for case in judgement.relieved if case.complaint.culprit not in spared),
    )


def _is_settled(case: Case, relieved: PeerId) -> bool:
    """Whether a case is of no concern when a peer reduces nothing any more: no results are missed, and no parts."""
    if case.complaint.is_hostile:
        return False
    return (case.complaint.culprit if case.complaint.is_reducer else case.accuser) == relieved


def _is_mutual(case: Case, against: list[Case], cases: list[Case]) -> bool:
    """Whether the accuser, who misses parts of the culprit, is said by it not to bring results: one broken link."""
    if case.complaint.is_reducer or case.complaint.is_hostile:
        return False
    return any(
        other.accuser == case.complaint.culprit and other.complaint.culprit == case.accuser for other in cases
    ) and any(other.complaint.is_reducer and other.accuser == case.accuser for other in against)


def _reversed(case: Case) -> Case:
    """What an accuser of many says, held against itself."""
    complaint = case.complaint
    text = f"{case.accuser} complains of several that nobody else misses: {complaint.text}"
    return Case(complaint.culprit, Complaint(case.accuser, "cut_off", text))
