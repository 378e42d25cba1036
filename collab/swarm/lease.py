"""The publishing lease: which backbone makes the run's snapshots. A state machine without time, network or randomness.

Each backbone says in the directory which term it claims; a claim counts for ``LEASE_S`` after it was said. Whoever
finds no claim that counts takes the next term: it says so, reads again what others say, and holds the lease if nobody
else claims anything. Whoever holds it stops ``MARGIN_S`` before its claim runs out; others begin ``MARGIN_S`` after
that, so clocks may differ by twice as much. A partition can make two holders. They differ in their ``Tenure``, tenures
are ordered, and nothing is published under one that is lower than one seen (``collab.checkpoints.fence``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from collab.types import PeerId

LEASE_S = 20.0
"""What a dead holder costs: no snapshot is published for so long, and nothing else."""
RENEW_S = 4.0
"""How often a claim is said again; a directory may miss three in a row."""
MARGIN_S = 3.0
"""An hour of swarm time is measured better than this; see ``time_sync``."""
TURN_S = 6.0
"""So much later than the one before it each backbone tries: saying and reading take at most so long each
(``lookups.LONGEST_S``), mostly 0.05. A reading that took longer is of a process that slept meanwhile."""
ALIVE_S = 15.0
"""Whoever has said nothing for this long is not waited for."""
MAX_TERM = 1 << 62
MAX_LEAP = 1 << 32
"""Terms follow each other by one; a claim so far above all that we have seen is invented, and passed over."""


@dataclass(frozen=True, slots=True, order=True)
class Tenure:
    """One backbone's time with the lease; no two lives of backbones share one. Later ones are greater."""

    term: int
    holder: PeerId


NOBODY = Tenure(0, PeerId(""))


@dataclass(frozen=True, slots=True)
class Now:
    """One moment by a peer's two clocks."""

    swarm_s: float
    """Swarm time; clocks differ by a little."""
    own_s: float
    """Monotonic seconds of this machine."""

    def is_before(self, end: "Now") -> bool:
        """By both clocks: either may be wrong, one by a jump, the other by standing still."""
        return self.own_s < end.own_s and self.swarm_s < end.swarm_s


GONE = Now(-math.inf, -math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one backbone says of the lease."""

    peer: PeerId
    said_at: float
    """Swarm time."""
    term: int = 0
    """That it claims; 0: none."""
    seen_term: int = 0
    seen_holder: PeerId = NOBODY.holder
    """The highest tenure that it has heard of, its own and those given up among them."""
    is_able: bool = True
    """Whether it could publish."""
    epoch: int = -1
    """Of the newest snapshot that it holds; -1: none."""
    since: float = 0.0
    """Swarm time from which on it has served."""

    @property
    def tenure(self) -> Tenure:
        """That it claims."""
        return Tenure(self.term, self.peer)

    @property
    def seen(self) -> Tenure:
        """The highest that it has heard of."""
        return Tenure(self.seen_term, self.seen_holder)

    @property
    def rank(self) -> tuple[int, float, PeerId]:
        """Who should take a free lease, best first: who holds the newest snapshot, then who has served for longest."""
        return -self.epoch, self.since, self.peer

    def counts_at(self, now: Now) -> bool:
        """Whether its author may still hold the lease by it."""
        return self.term > 0 and now.swarm_s <= self.said_at + LEASE_S + MARGIN_S


class Part(StrEnum):
    """What a backbone is to the lease."""

    FOLLOWING = "following"
    CLAIMING = "claiming"
    """It has said its claim, or is about to, and has not read since what others say."""
    HOLDING = "holding"


class Lease:
    """One backbone's side of it, in one life of its process."""

    def __init__(self, me: PeerId, seen: Tenure = NOBODY) -> None:
        """
        Args:
            seen: the highest tenure that earlier lives have heard of.
        """
        self._me = me
        self.seen = seen
        self.part = Part.FOLLOWING
        self._term = 0
        self._ends = GONE
        """Up to when we hold the lease, by both clocks; before that, of the claim that is not confirmed yet."""
        self._said_s: float | None = None
        """Own time at which the directory had our claim; None: it does not have it yet."""
        self._free_since_s: float | None = None
        """Own time since when no claim of others has counted."""
        self._not_before_s = -1.0

    @property
    def term(self) -> int:
        """To say in our next record; 0: we claim nothing."""
        return self._term if self.part is not Part.FOLLOWING else 0

    def tenure(self, now: Now) -> Tenure | None:
        """Under which we may publish at this moment; None: not at all."""
        return Tenure(self._term, self._me) if self.part is Part.HOLDING and now.is_before(self._ends) else None

    def said(self, term: int, began: Now, ended: Now) -> None:
        """The directory has taken our record.

        Args:
            term: that it claims.
            began: before the record was made.
        """
        if term != self.term or not term:
            return
        if self.part is Part.HOLDING and not ended.is_before(self._ends):
            self._follow()  # it came too late to hold on to what has ended meanwhile
            return
        length_s = LEASE_S - MARGIN_S
        self._ends = Now(began.swarm_s + length_s, began.own_s + length_s)
        if self._said_s is None:
            self._said_s = ended.own_s

    def read(self, claims: Sequence[Claim], ours: Claim, began: Now, ended: Now) -> None:
        """What all backbones say, as the directory had it between ``began`` and ``ended``.

        Args:
            ours: as it is now.
        """
        self._note(claims)
        others = [claim for claim in claims if claim.peer != self._me and self._is_plausible(claim)]
        rivals = [claim for claim in others if claim.counts_at(began)]
        if self.part is Part.HOLDING:
            if not ended.is_before(self._ends) or self.seen > Tenure(self._term, self._me):
                self._follow()
            else:
                return
        if max(ended.own_s - began.own_s, ended.swarm_s - began.swarm_s) > TURN_S:
            self._free_since_s = None  # we slept over the answer: somebody else may hold the lease by now
            return
        if self.part is Part.CLAIMING:
            self._confirm(rivals, others, ours, began, ended)
            return
        if rivals or not ours.is_able:
            self._free_since_s = None
            return
        if self._free_since_s is None:
            self._free_since_s = ended.own_s
        turn_s = self._free_since_s + TURN_S * self._turn(others, ours, ended)
        if ended.own_s >= max(turn_s, self._not_before_s):
            self.part, self._term, self._said_s = Part.CLAIMING, self.seen.term + 1, None
            self.seen = Tenure(self._term, self._me)

    def give_up(self) -> None:
        """Claim nothing any more, for we cannot publish, or leave."""
        self._follow()

    def _confirm(
        self, rivals: Sequence[Claim], others: Sequence[Claim], ours: Claim, began: Now, ended: Now
    ) -> None:
        """Ours is the lease if nobody else claims anything in what was read after our own claim was said."""
        if rivals or self.seen > Tenure(self._term, self._me) or not ours.is_able:
            self._not_before_s = ended.own_s + TURN_S * (1 + self._turn(others, ours, ended))
            self._follow()
        elif self._said_s is not None and began.own_s >= self._said_s:
            self.part = Part.HOLDING
            if not ended.is_before(self._ends):
                self._follow()

    def _turn(self, others: Sequence[Claim], ours: Claim, now: Now) -> int:
        """How many are before us."""
        alive = [claim for claim in others if claim.is_able and now.swarm_s - claim.said_at <= ALIVE_S]
        return sum(claim.rank < ours.rank for claim in alive)

    def _follow(self) -> None:
        self.part, self._term, self._ends = Part.FOLLOWING, 0, GONE
        self._said_s, self._free_since_s = None, None

    def _is_plausible(self, claim: Claim) -> bool:
        return max(claim.term, claim.seen_term) <= min(self.seen.term + MAX_LEAP, MAX_TERM)

    def _note(self, claims: Sequence[Claim]) -> None:
        """Also what our own earlier lives have claimed, if they have lost their disk."""
        for claim in filter(self._is_plausible, claims):
            claimed = claim.tenure if claim.term else NOBODY
            self.seen = max(self.seen, claimed, claim.seen)
