"""The leader's plan for a round: from what members say of themselves to spans, codecs and contributors."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from collab.averaging import contribution_plan
from collab.averaging.contribution_plan import Policy, plan_contributions, without_slow_receivers
from collab.averaging.messages import Join, Member
from collab.averaging.plan import PART_ELEMENTS, Span, part_elements, shortest_span
from collab.averaging.rows import hub_of, part_of_row
from collab.averaging.shares import spans_of
from collab.compression.base import all_codecs
from collab.types import PeerId

UP_HEADROOM, DOWN_HEADROOM = 1.1, 4.0
"""A link that was never full carries more than was seen; a plan that asks for more finds out. Downlinks are seldom what
holds a round up, and are seldom full."""
ALIKE, ALIKE_UNLESS_FULL = 1.15, 1.5
"""Rates of equal links differ by so much on busy machines; those of links that were not full say less of them."""
ROUNDING = 1.1
"""Rates that differ by less are the same rate, measured twice."""
WEIGHT_ROUNDING = 2.0
"""A part of the samples varies with microbatches; one that changes by more may change who contributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who does what in a round."""

    members: tuple[Member, ...]
    spans: tuple[Span, ...]
    result_codec: str
    part_elements: int
    seconds: float = 0.0
    """That the round will take, if the rates are what they seem."""
    leaves_out: bool = False
    """Whether a member that brought a vector does not contribute."""


class Planner:
    """Makes the plans of one leader's rounds, and keeps one while nothing that matters has changed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._basis: dict[PeerId, Join] = {}
        self._plan: Plan | None = None

    def plan(self, joins: Mapping[PeerId, Join], num_elements: int, batch_s: float, *, rows: int = 1) -> Plan:
        """The plan for these members, in their order; at least one contributes and one can reduce.

        A peer whose upload would cost the others more time than its samples are worth follows this round without
        contributing. What it has accumulated grows with every round, and so does its worth, until it is let in.

        Args:
            batch_s: in which all trainers together compute a batch; infinite: not known, and nobody is left out.
            rows: of the vector, each for a window of its own: the plan is for one of them at a time.
        """
        if self._plan is None or self._plan.leaves_out or not _are_alike(self._basis, joins):
            self._basis, self._plan = dict(joins), self._made(joins, num_elements // rows, batch_s)
        plan = self._plan if rows == 1 else _by_rows(self._plan, joins, num_elements, rows)
        members = tuple(
            replace(member, weight=joins[member.peer].weight if member.weight > 0 else 0.0) for member in plan.members
        )
        return replace(plan, members=members)

    def _made(self, joins: Mapping[PeerId, Join], num_elements: int, batch_s: float) -> Plan:
        ups = assumed_rates(
            {peer: (join.up_bytes_per_s, join.up_is_limit) for peer, join in joins.items()}, UP_HEADROOM
        )
        downs = assumed_rates(
            {peer: (join.down_bytes_per_s, join.down_is_limit) for peer, join in joins.items()}, DOWN_HEADROOM
        )
        known = [
            contribution_plan.Member(
                peer=peer,
                up_bytes_per_s=ups[peer],
                down_bytes_per_s=max(downs[peer], ups[peer]) if not join.down_is_limit else downs[peer],
                has_gradient=join.weight > 0,
                can_reduce=join.can_reduce,
                receives=join.weight > 0,
                work=join.weight,
            )
            for peer, join in joins.items()
        ]
        sizes = {codec.name: codec.encoded_bytes(1 << 20) / (1 << 20) for codec in all_codecs()}
        accumulate_s = batch_s if batch_s < math.inf else None
        encoded_bytes = {name: num_elements * size for name, size in sizes.items()}
        contributions = plan_contributions(
            without_slow_receivers(known, encoded_bytes, self._policy, accumulate_s),
            num_elements=num_elements,
            bytes_per_element=sizes,
            policy=self._policy,
            accumulate_s=accumulate_s,
        )
        length = part_elements(
            min(joins[peer].up_bytes_per_s for peer in contributions.codecs),
            min(sizes[codec] for codec in contributions.codecs.values()),
        )
        reducing = [join.up_bytes_per_s for join in joins.values() if join.can_reduce and join.up_bytes_per_s > 0]
        shortest = shortest_span(
            min(length, PART_ELEMENTS), num_elements, len(joins), slowest_bytes_per_s=min(reducing, default=0.0)
        )
        return Plan(
            members=tuple(
                Member(
                    peer,
                    join.weight if peer in contributions.codecs else 0.0,
                    contributions.codecs.get(peer, "none"),
                    receives=join.weight > 0,
                    reduces=join.can_reduce,
                )
                for peer, join in joins.items()
            ),
            spans=spans_of(contributions.shares.shares, list(joins), num_elements, shortest=shortest),
            result_codec=contributions.result_codec,
            part_elements=length,
            seconds=contributions.seconds,
            leaves_out=bool(contributions.excluded),
        )


def assumed_rates(measured: Mapping[PeerId, tuple[float, bool]], headroom: float) -> dict[PeerId, float]:
    """Rates to plan with, in bytes/s.

    A newcomer's link is taken to be as the others' are. Where most links differ by less than measuring can tell, they
    are taken to be the same: shares that follow the noise would only make the unluckiest peer late.

    Args:
        measured: rate, 0 when not known, and whether the link was full at it.
    """
    known = {peer: (rate, is_limit) for peer, (rate, is_limit) in measured.items() if rate > 0}
    if not known:
        return dict.fromkeys(measured, 1.0)
    expected = {peer: rate if is_limit else rate * headroom for peer, (rate, is_limit) in known.items()}
    usual = statistics.median(rate for rate, _ in known.values())
    if 2 * sum(_is_near(rate, usual, ALIKE) for rate, _ in known.values()) > len(known):
        alike = [p for p, (rate, full) in known.items() if _is_near(rate, usual, ALIKE if full else ALIKE_UNLESS_FULL)]
        full = [peer for peer in alike if known[peer][1]]
        expected |= dict.fromkeys(alike, statistics.fmean(expected[peer] for peer in full or alike))
    usual = statistics.median(expected.values())
    return {peer: expected.get(peer, usual) for peer in measured}


def _by_rows(plan: Plan, joins: Mapping[PeerId, Join], num_elements: int, rows: int) -> Plan:
    """The plan for one row, for all of them: one reducer has them all."""
    span = Span(hub_of(joins, num_elements // rows), 0, num_elements)
    length = part_of_row(plan.part_elements, num_elements // rows)
    return replace(plan, spans=(span,), part_elements=length)


def _are_alike(before: Mapping[PeerId, Join], now: Mapping[PeerId, Join]) -> bool:
    """Whether a plan for one suits the other."""
    if list(before) != list(now):
        return False
    old_samples, new_samples = (math.fsum(join.weight for join in joins.values()) for joins in (before, now))

    def is_alike(old: Join, new: Join) -> bool:
        flags = (new.num_elements, new.weight > 0, new.can_reduce, new.up_is_limit, new.down_is_limit)
        return (
            (old.num_elements, old.weight > 0, old.can_reduce, old.up_is_limit, old.down_is_limit) == flags
            and _is_near(old.up_bytes_per_s, new.up_bytes_per_s, ROUNDING)
            and _is_near(old.down_bytes_per_s, new.down_bytes_per_s, ROUNDING)
            and _is_near(old.weight / old_samples, new.weight / new_samples, WEIGHT_ROUNDING)
        )

    return all(is_alike(old, new) for old, new in zip(before.values(), now.values(), strict=True))


def _is_near(one: float, other: float, factor: float) -> bool:
    return one <= other * factor and other <= one * factor
