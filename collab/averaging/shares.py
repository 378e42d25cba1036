"""Which reducer averages how much: the smallest round time that the measured links allow, in closed form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collab.averaging.plan import Span
from collab.types import PeerId

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Bytes that are this small beside everything that is sent are differences of equal sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """What one member of a group sends, and over which link."""

    peer: PeerId
    up_bytes_per_s: float
    """> 0; infinite when nothing limits it."""
    down_bytes_per_s: float
    """> 0; infinite when nothing limits it."""
    payload_bytes: float
    """Encoded length of all that it contributes, with vectors that it passes on for others; 0: nothing."""
    can_reduce: bool
    """False in client mode."""
    receives: bool
    """Whether it wants the result: trainers, and backbones that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the vector is divided."""

    seconds: float
    """In which the round's bytes pass through every link; latency and headers not included."""
    shares: tuple[float, ...]
    """Fraction of the vector for each link, in their order; they sum to 1."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds that peers upload and download, linear in their shares: ``fixed + per_share * share``, never over 1."""

    fixed: Floats
    """[2, num_peers], up and down."""
    per_share: Floats
    """[2, num_peers], up and down; negative where reducing saves more of a peer's own bytes than it costs."""

    def of(self, shares: Floats | float) -> Floats:
        """[num_peers] seconds until a peer with this share is finished in both directions."""
        longest: Floats = (self.fixed + self.per_share * shares).max(axis=0)
        return longest

    def crossings(self) -> Floats:
        """[num_peers] seconds where a peer uploads as long as it downloads; infinite if at no share within 0 .. 1."""
        gap, closing = self.fixed[1] - self.fixed[0], self.per_share[0] - self.per_share[1]
        shares = np.divide(gap, closing, out=np.full_like(gap, -1.0), where=closing != 0)
        return np.where((shares >= 0) & (shares <= 1), self.fixed[0] + self.per_share[0] * shares, np.inf)

    def only(self, chosen: NDArray[np.bool_]) -> "_Times":
        return _Times(self.fixed[:, chosen], self.per_share[:, chosen])


class _Intervals:
    """The shares of each reducer with which it is finished after a given time."""

    def __init__(self, times: _Times) -> None:
        self._times = times
        self._floors = np.minimum(np.minimum(times.of(0.0), times.of(1.0)), times.crossings())
        self._limits_above, self._limits_below = times.per_share > 0, times.per_share < 0
        self._per_share = np.where(times.per_share == 0, 1.0, times.per_share)

    def at(self, seconds: float) -> tuple[Floats, Floats]:
        """Lowest and highest share of each; who cannot be finished by then gets what makes it finish soonest."""
        limits = (np.maximum(seconds, self._floors) - self._times.fixed) / self._per_share
        lowest = np.minimum(np.where(self._limits_below, limits, 0.0).max(axis=0, initial=0.0), 1.0)
        highest = np.where(self._limits_above, limits, 1.0).min(axis=0, initial=1.0)
        return lowest, np.maximum(lowest, highest)

    def sums(self, seconds: float) -> tuple[float, float]:
        """The same, added up: shares that sum to 1 exist if 1 lies between."""
        lowest, highest = self.at(seconds)
        return float(lowest.sum()), float(highest.sum())

    def kinks(self) -> Floats:
        """Ascending; between two neighbours every bound is linear in the time, and at the last one all are 0 .. 1."""
        crossings = self._times.crossings()
        ends = (self._times.fixed.ravel(), (self._times.fixed + self._times.per_share).ravel())
        return np.unique(np.concatenate((self._floors, *ends, crossings[np.isfinite(crossings)])))


def solve(links: Sequence[PeerLink], result_bytes: float) -> Shares:
    """Divide the vector such that the round takes as little time as the links allow, and spread what is left.

    With V_j the payload of sender j, R the encoded result, r receivers and w_i the share of peer i, a round of T
    seconds is possible when for every peer (nothing travels from a reducer to itself)

        up:    V_i (1 - w_i) + (r - [i receives]) R w_i          <= T u_i
        down:  (sum over j != i of V_j) w_i + [i receives] R (1 - w_i)  <= T d_i
        0 <= w_i <= 1, w_i = 0 in client mode, sum w = 1.

    Each peer's seconds are thus the larger of two linear functions of its own share alone, so that a time leaves it an
    interval of shares. A peer's floor is the time that it needs with the share that suits it best. The answer is the
    smallest level t at which shares from the intervals at max(t, floor of i) sum to 1. The round takes t or the highest
    floor: no plan is faster, since each peer needs its floor, and below t even the widest intervals miss 1. And the
    load is spread: who can be finished by t is, so nobody works until the end because a slow peer takes as long, and
    reducers with room carry equally long. Where even the floors leave a choice, all stand equally far within their
    intervals. The bounds are piecewise linear in t: a binary search over their kinks and one interpolation are exact.
    O(n log n) time, O(n) memory.

    Raises:
        ValueError: nobody can reduce, sends or receives; a rate is not positive, or a size negative or infinite.
    """
    times = _times(links, result_bytes)
    can_reduce = np.array([link.can_reduce for link in links])
    intervals = _Intervals(times.only(can_reduce))
    lowest, highest = intervals.at(_level(intervals))
    room = math.fsum(highest) - math.fsum(lowest)
    depth = min(max((1.0 - math.fsum(lowest)) / room, 0.0), 1.0) if room > 0 else 0.0
    inside = lowest + depth * (highest - lowest)
    shares = np.zeros(len(links))
    shares[can_reduce] = inside / math.fsum(inside)
    return Shares(seconds=float(times.of(shares).max()), shares=tuple(shares.tolist()))


def link_seconds(links: Sequence[PeerLink], shares: Sequence[float], result_bytes: float) -> tuple[Floats, Floats]:
    """[num_peers] each: how long every uplink and every downlink is busy in a round with these shares."""
    times = _times(links, result_bytes)
    up, down = times.fixed + times.per_share * np.asarray(shares)
    return up, down


def _times(links: Sequence[PeerLink], result_bytes: float) -> _Times:
    rates = np.array([[link.up_bytes_per_s for link in links], [link.down_bytes_per_s for link in links]])
    payloads = np.array([link.payload_bytes for link in links])
    receives = np.array([link.receives for link in links], dtype=np.float64)
    if not any(link.can_reduce for link in links) or not receives.any() or not payloads.any():
        raise ValueError(f"of {len(links)} peers one must be able to reduce, one must send and one must receive")
    if not (rates > 0).all():
        raise ValueError("every rate must be a positive number of bytes per second")
    if not (np.isfinite(payloads) & (payloads >= 0)).all() or not 0 < result_bytes < math.inf:
        raise ValueError("payloads must be finite numbers of bytes, at least 0, and the result more than 0")
    all_bytes = math.fsum(payloads)
    fixed = np.stack((payloads, receives * result_bytes))
    per_share = np.stack(((receives.sum() - receives) * result_bytes - payloads, all_bytes - payloads - fixed[1]))
    per_share[np.abs(per_share) < ROUNDING * (all_bytes + result_bytes)] = 0.0
    return _Times(fixed / rates, per_share / rates)


def _level(intervals: _Intervals) -> float:
    """Smallest time at which the lowest shares sum to at most 1 and the highest to at least 1."""
    kinks = intervals.kinks()
    first, last = 0, len(kinks) - 1
    while first < last:
        middle = (first + last) // 2
        lowest, highest = intervals.sums(kinks[middle])
        if lowest <= 1.0 <= highest:
            last = middle
        else:
            first = middle + 1
    if first == 0:
        return float(kinks[0])
    before, after = float(kinks[first - 1]), float(kinks[first])
    (lowest, highest), (lowest_after, highest_after) = intervals.sums(before), intervals.sums(after)
    way = 0.0
    if highest < 1.0:
        way = (1.0 - highest) / max(highest_after - highest, 1.0 - highest)
    if lowest > 1.0:
        way = max(way, (lowest - 1.0) / max(lowest - lowest_after, lowest - 1.0))
    return before + way * (after - before)


def spans_of(shares: Sequence[float], peers: Sequence[PeerId], num_elements: int, *, shortest: int) -> tuple[Span, ...]:
    """Cut the vector into one contiguous span for each peer with a share, in the order of ``peers``.

    A peer whose span would be very short costs everybody a stream for next to nothing: the smallest shares go to the
    others, in proportion, until none is left that small or one peer has all. Then whole elements by the largest
    remainder, so that a span is less than one element longer or shorter than its share.

    Args:
        shares: at least 0, with a positive sum.
        peers: all different.
        shortest: elements, at least 1.

    Raises:
        ValueError: there is nothing to divide, or nobody to divide it among.
    """
    weights = np.asarray(shares, dtype=np.float64)
    if len(weights) != len(peers) or len(set(peers)) != len(peers) or num_elements < 1 or shortest < 1:
        raise ValueError(f"cannot give {len(weights)} shares of {num_elements} elements to {len(peers)} peers")
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ValueError("shares must be at least 0 and one of them must be positive")
    order = np.argsort(-weights, kind="stable")
    reached = weights[order] / np.cumsum(weights[order]) * num_elements
    weights[order[max(1, int((reached >= shortest).sum())) :]] = 0.0
    quotas = weights / math.fsum(weights) * num_elements
    lengths = np.floor(quotas).astype(np.int64)
    left_over = num_elements - int(lengths.sum())
    lengths[np.argsort(lengths - quotas, kind="stable")[:left_over]] += 1
    stops = np.cumsum(lengths).tolist()
    starts = [0, *stops[:-1]]
    return tuple(
        Span(peer, start, stop) for peer, start, stop in zip(peers, starts, stops, strict=True) if start < stop
    )
