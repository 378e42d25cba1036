"""Who contributes to a round, and in which encoding: pure functions of measured links and speeds."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from collab.averaging.shares import PeerLink, Shares, solve
from collab.types import PeerId

Policy = Literal["exact", "half", "int8", "int4", "auto", "sparse", "sparse_both"]

FIXED: Mapping[str, tuple[str, str]] = {
    "exact": ("none", "none"),
    "half": ("float16", "float16"),
    "int8": ("int8", "int8"),
    "int4": ("int4", "int4"),
    "sparse": ("topk", "int8"),
    "sparse_both": ("topk_sign", "topk_sign"),
}
"""The one codec of a policy, of what is sent and of the result; ``auto`` has none. A mean of few elements from each of
many peers has more elements than any of them: what a sparse codec leaves out of it is owed by its reducer."""
RESULT_CODECS = frozenset(result for _, result in FIXED.values())
"""Of which each makes another number of bytes of a vector."""

LADDER: tuple[str, ...] = ("none", "float16", "int8", "int4")
"""From the least lossy on; a sender may go down to the end, error feedback makes up for it."""
RESULT_LADDER: tuple[str, ...] = ("none", "float16", "int8")
"""What is lost in the result is lost for everybody, so it stops earlier."""

NOTICEABLE = 0.05
"""More exact encodings may cost this much of the shortest possible round: less is lost in the noise of the links."""
NEGLIGIBLE = 0.1
"""Of the time in which the batch accumulates: a shorter round would hardly bring the next step nearer."""
WORTH = 2.0
"""A peer stays while the time that it costs is at most this much of its part of the work: what is left out comes in by
another way, and later, so the benefit of the doubt is the peer's."""


def allowed_codecs(policy: Policy) -> tuple[frozenset[str], frozenset[str]]:
    """What a plan of ``policy`` may choose, for what is sent and for the result."""
    if policy == "auto":
        return frozenset(LADDER), frozenset(RESULT_LADDER)
    sent, result = FIXED[policy]
    return frozenset({sent}), frozenset({result})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What is known of one member of a group before its round."""

    peer: PeerId
    up_bytes_per_s: float
    down_bytes_per_s: float
    has_gradient: bool
    """Whether it wants to contribute a vector."""
    can_reduce: bool
    receives: bool
    work: float
    """What is lost without it: its samples or samples/s, at least 0. Only the peer's part of the swarm's matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionPlan:
    """Who sends what in one round."""

    codecs: Mapping[PeerId, str]
    """Of each peer that contributes."""
    result_codec: str
    excluded: tuple[PeerId, ...]
    """Peers whose own upload would cost the swarm more than their work is worth, slowest first. They receive and reduce
    as the others do."""
    shares: Shares
    """Of all members, in their order, for these encodings."""

    @property
    def seconds(self) -> float:
        """In which the round's bytes pass through every link."""
        return self.shares.seconds


def plan_contributions(
    members: Sequence[Member],
    *,
    num_elements: int,
    bytes_per_element: Mapping[str, float],
    policy: Policy,
    accumulate_s: float | None,
) -> ContributionPlan:
    """Choose contributors and codecs.

    First the contributors, with the encodings in which the policy is fastest: see ``_excluded``. Then the codecs:
    ``auto`` is as exact as it can be in nearly the shortest time, see ``_fitting_codecs``; the other policies have one
    for everything. At most one call of ``solve`` for each sender and about 2 log2(senders) more.

    Args:
        num_elements: length of the vector, at least 1.
        bytes_per_element: what each codec takes; ``auto`` uses those of ``LADDER`` that it names.
        accumulate_s: in which the swarm fills a batch; None when that is not known yet: nobody is left out, and
            ``auto`` looks at the time only.

    Raises:
        ValueError: as ``solve`` does; or a codec of the policy is not in ``bytes_per_element``.
    """
    if policy != "auto" and policy not in FIXED:
        raise ValueError(f"unknown policy {policy!r}: choose {', '.join(FIXED)} or auto")
    needed = set(FIXED.get(policy, ("none", "float16")))
    if not needed <= bytes_per_element.keys():
        raise ValueError(f"policy {policy} needs the codecs {', '.join(sorted(needed))}")
    round_ = _Round(members, {name: num_elements * size for name, size in bytes_per_element.items()})
    leanest, leanest_result = _leanest(policy, bytes_per_element.keys())
    excluded = _excluded(round_, leanest, leanest_result, accumulate_s)
    senders = [member for member in members if member.has_gradient and member.peer not in excluded]
    codecs, result_codec = {member.peer: leanest for member in senders}, leanest_result
    if policy == "auto":
        codecs, result_codec = _fitting_codecs(round_, senders, codecs, result_codec, accumulate_s)
    return ContributionPlan(
        codecs=codecs, result_codec=result_codec, excluded=excluded, shares=round_.shares(codecs, result_codec)
    )


def without_slow_receivers(
    members: Sequence[Member], encoded_bytes: Mapping[str, float], policy: Policy, accumulate_s: float | None
) -> tuple[Member, ...]:
    """``members`` to plan with, such that few slow downlinks hold nobody up.

    Whoever is behind most others is gone on without, and takes the result later (``laggards.py``), as long as these are
    at most a third. So of the third with the slowest downlinks those are planned as if they received at once, and
    reduced nothing, to whom the result alone takes longer than they are worth:
    (accumulate_s + reception) / (accumulate_s + round if the third received at once) - 1 > ``WORTH`` x their work over
    that of the others, or ``WORTH``. So none of these makes a step more than three times as long by receiving, and one
    of eight equal peers by two sevenths at most. All stay where nobody else can reduce.

    Args:
        encoded_bytes: of a whole vector, by codec.
        accumulate_s: as for ``plan_contributions``; without it only the round's own time counts.
    """
    late = sorted(members, key=lambda member: member.down_bytes_per_s if member.receives else math.inf)
    candidates = {member.peer for member in late[: len(members) // 3] if member.receives}
    at_once = [replace(m, down_bytes_per_s=math.inf) if m.peer in candidates else m for m in members]
    round_ = _Round(at_once, encoded_bytes)
    codec, result_codec = _leanest(policy, encoded_bytes.keys())
    excluded = _excluded(round_, codec, result_codec, accumulate_s)
    codecs = {member.peer: codec for member in members if member.has_gradient and member.peer not in excluded}
    usual_s = (accumulate_s or 0.0) + round_.seconds(codecs, result_codec)
    all_work = math.fsum(member.work for member in members)

    def is_slow(member: Member) -> bool:
        reception_s = encoded_bytes[result_codec] / member.down_bytes_per_s
        worth = WORTH * member.work / max(all_work - member.work, member.work) if member.work > 0 else 0.0
        return (accumulate_s or 0.0) + reception_s > (1.0 + worth) * usual_s

    slow = {member.peer for member in members if member.peer in candidates and is_slow(member)}
    if not any(member.can_reduce and member.peer not in slow for member in members):
        return tuple(members)
    return tuple(replace(m, down_bytes_per_s=math.inf, can_reduce=False) if m.peer in slow else m for m in members)


def _leanest(policy: Policy, names: Collection[str]) -> tuple[str, str]:
    """The shortest encodings that the policy allows, of what is sent and of the result."""
    if policy in FIXED:
        return FIXED[policy]
    return [name for name in LADDER if name in names][-1], [name for name in RESULT_LADDER if name in names][-1]


@dataclass(frozen=True, slots=True)
class _Round:
    members: Sequence[Member]
    encoded_bytes: Mapping[str, float]
    """Of a whole vector, by codec."""

    def shares(self, codecs: Mapping[PeerId, str], result_codec: str) -> Shares:
        """Of all members, when those in ``codecs`` contribute."""
        links = [
            PeerLink(
                peer=member.peer,
                up_bytes_per_s=member.up_bytes_per_s,
                down_bytes_per_s=member.down_bytes_per_s,
                payload_bytes=self.encoded_bytes[codecs[member.peer]] if member.peer in codecs else 0.0,
                can_reduce=member.can_reduce,
                receives=member.receives,
            )
            for member in self.members
        ]
        return solve(links, self.encoded_bytes[result_codec])

    def seconds(self, codecs: Mapping[PeerId, str], result_codec: str) -> float:
        return self.shares(codecs, result_codec).seconds


def _excluded(round_: _Round, codec: str, result_codec: str, accumulate_s: float | None) -> tuple[PeerId, ...]:
    """Senders that the swarm is better off not to wait for (the c_i of DeDLOC, section 3.2), slowest uplinks first.

    The slowest are left out while (accumulate_s + round with) / (accumulate_s + round without) - 1 > ``WORTH`` x their
    work over that of the others, which grows without bound while they wait. Two equally slow peers hold the swarm up as
    long as one of them is in, so each test is for the slowest, the two slowest, the three slowest ... together.
    Never more than half of all work is left out, however long the round takes with the rest: a mean without most of it
    is not the swarm's. Somebody always contributes.
    """
    senders = [member for member in round_.members if member.has_gradient]
    all_work = math.fsum(member.work for member in senders)
    if accumulate_s is None or all_work <= 0:
        return ()
    candidates = sorted(senders, key=lambda member: member.up_bytes_per_s)[:-1]
    codecs = {member.peer: codec for member in senders}
    with_s = round_.seconds(codecs, result_codec)
    left = codecs.keys() - {member.peer for member in candidates}
    shortest_s = round_.seconds(dict.fromkeys(left, codec), result_codec)
    excluded: list[PeerId] = []
    trial: list[Member] = []
    left_out = 0.0
    for member in candidates:
        trial.append(member)
        work = math.fsum(m.work for m in trial)
        if left_out + work > all_work / 2:
            break
        worth = WORTH * work / (all_work - work)
        if accumulate_s + with_s <= (1.0 + worth) * (accumulate_s + shortest_s):
            break
        del codecs[member.peer]
        without_s = round_.seconds(codecs, result_codec)
        if accumulate_s + with_s > (1.0 + worth) * (accumulate_s + without_s):
            excluded += [m.peer for m in trial]
            left_out += work
            trial, with_s = [], without_s
    return tuple(excluded)


def _fitting_codecs(
    round_: _Round,
    senders: Sequence[Member],
    leanest: dict[PeerId, str],
    leanest_result: str,
    accumulate_s: float | None,
) -> tuple[dict[PeerId, str], str]:
    """The most exact encodings with which the round is not noticeably slower than with the leanest ones.

    If a round of float32 is short beside the time in which the batch accumulates, everything is float32. Otherwise
    nothing is: half precision under error feedback loses nothing that training shows, and halves what each volunteer
    pays for. Starting from the leanest, as many senders as the time allows, fastest uplinks first, get int8; then the
    result float16; then as many of these senders as still can float16. So each sender gets the codec that fits its own
    link, and since fewer bytes never make a round longer, a binary search finds how many can.
    """
    quick_s = NEGLIGIBLE * (accumulate_s or 0.0)
    exact = {member.peer: "none" for member in senders}
    if accumulate_s is not None and round_.seconds(exact, "none") <= quick_s:
        return exact, "none"
    limit_s = max((1.0 + NOTICEABLE) * round_.seconds(leanest, leanest_result), quick_s)
    fastest_first = [member.peer for member in sorted(senders, key=lambda member: -member.up_bytes_per_s)]
    codecs, result_codec = leanest, leanest_result
    if "int8" in round_.encoded_bytes:
        codecs = _raised(codecs, fastest_first, "int8", lambda c: round_.seconds(c, result_codec) <= limit_s)
    if round_.seconds(codecs, "float16") <= limit_s:
        result_codec = "float16"
    return _raised(codecs, fastest_first, "float16", lambda c: round_.seconds(c, result_codec) <= limit_s), result_codec


def _raised(
    codecs: dict[PeerId, str], peers: Sequence[PeerId], codec: str, is_quick: Callable[[dict[PeerId, str]], bool]
) -> dict[PeerId, str]:
    """``codecs`` with ``codec`` for as many of the first ``peers`` as stays quick."""

    def trial(count: int) -> dict[PeerId, str]:
        return codecs | dict.fromkeys(peers[:count], codec)

    return trial(bisect_left(range(1, len(peers) + 1), True, key=lambda count: not is_quick(trial(count))))
