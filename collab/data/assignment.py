"""Whose block is whose before anybody has claimed it: by weighted rendezvous hashing, so that claims rarely collide.

Blocks lie together in runs, which are whole pages while these suffice, and a run is one trainer's: so few trainers
speak of the same page, and what is read of it stays short however many train.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collab.data.blocks import MAX_BLOCKS, PAGE_BLOCKS, BlockPlan, Words, mixed, word_of
from collab.lately import kept_lately
from collab.types import PeerId

PROVEN = 1.5
"""A peer may claim to be so many times as fast as its committed samples show: it may have just become faster."""
SLOWEST = 1e-6
"""Of the median: a peer that has not measured its speed yet owns next to nothing, and nobody divides by zero."""
UNHEARD = 1.0
"""Samples per second, until two of several have said how fast they are: the first would else be the median."""
RUNS_EACH = 8
"""That a trainer has of a pass, about: with fewer, the shares of equals differ by more than a third."""

DRAWS_REMEMBERED = 1024
"""Of a trainer and a pass, 32 KB each for a pass of ``MAX_BLOCKS``: of as many trainers as are known by name, and of
those who have gone for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What the assignment gives away as a whole, and to how many that it cannot name."""

    run: int = 1
    """Blocks that lie together and are one trainer's; a power of two."""
    unknown_per_s: float = 0.0
    """Samples per second of trainers of whom it is known only that they are there."""

    @classmethod
    def among(cls, plan: BlockPlan, trainers: int, unknown_per_s: float = 0.0) -> "Cut":
        """For so many trainers, the unknown ones included; who counts one more or less cuts alike, nearly always."""
        most = min(plan.num_blocks // (RUNS_EACH * max(trainers, 1)), PAGE_BLOCKS)
        return cls(run=1 << max(most, 1).bit_length() - 1, unknown_per_s=unknown_per_s)


def believed_speeds(claimed: Mapping[PeerId, float], proven: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """Samples per second of each peer, as far as its word goes: up to the median of all, more if it has shown more.

    Args:
        claimed: by the peers themselves.
        proven: samples per second that committed rounds show; who is missing has shown nothing.
    """
    if not claimed:
        return {}
    known = [speed for speed in claimed.values() if speed > 0]
    median = statistics.median_low(known) if known else UNHEARD
    if len(known) < 2 <= len(claimed):
        median = min(median, UNHEARD)
    believed = {}
    for peer, speed in claimed.items():
        most = max(median, PROVEN * proven.get(peer, 0.0))
        believed[peer] = max(min(speed, most) if speed > 0 else median, SLOWEST * median)
    return believed


def distances(
    plan: BlockPlan, pass_number: int, blocks: Sequence[int] | NDArray[np.int64], peer: PeerId, weight: float
) -> NDArray[np.float64]:
    """[blocks] how near each block is to ``peer``: the nearest peer owns it. Exponential with rate ``weight``.

    So a peer owns blocks in proportion to its weight, and when one comes, goes or changes its weight, only blocks move
    that it gains or loses.

    Source: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (SPAA 2005), the logarithmic method.
    """
    numbers = np.asarray(blocks, dtype=np.int64)
    if plan.num_blocks <= MAX_BLOCKS:
        return _drawn_for_all(plan, pass_number, peer)[numbers] / weight
    return _drawn(plan.block_words[numbers], pass_number, peer) / weight


@kept_lately(DRAWS_REMEMBERED)
def _drawn_for_all(plan: BlockPlan, pass_number: int, peer: PeerId) -> NDArray[np.float64]:
    """[plan.num_blocks]: whose blocks are whose is reckoned again whenever somebody comes or goes."""
    return _drawn(plan.block_words, pass_number, peer)


def _drawn(words: Words, pass_number: int, peer: PeerId) -> NDArray[np.float64]:
    """[words] exponential with rate 1, for each block's word."""
    drawn = mixed(words ^ mixed(word_of(f"{peer}:{pass_number}").reshape(1)))
    uniform = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(uniform)


def preferences(
    plan: BlockPlan,
    pass_number: int,
    blocks: Sequence[int],
    peer: PeerId,
    speeds: Mapping[PeerId, float],
    cut: Cut = Cut(),
) -> tuple[list[int], list[int]]:
    """``blocks`` as ``peer`` should take them: its own ones, then those of others, the nearest first.

    Where all trainers are known, a peer goes through its own runs from the front and through those of others from the
    back, so that it meets their owners late. Where many are unknown nobody can tell whose a block is: a peer then takes
    as its own what is as near as the nearest of so many would be, about, and begins with what is nearest to itself.

    Args:
        speeds: of all trainers that are known; ``peer`` may be missing.
    """
    if not blocks:
        return [], []
    numbers = np.asarray(blocks, dtype=np.int64)
    runs = numbers // cut.run * cut.run
    ours = distances(plan, pass_number, runs, peer, speeds.get(peer) or _any(speeds))
    nearest = np.full(len(blocks), 1.0 / cut.unknown_per_s if cut.unknown_per_s > 0 else math.inf)
    for other, speed in speeds.items():
        if other != peer:
            nearest = np.minimum(nearest, distances(plan, pass_number, runs, other, speed))
    inside = distances(plan, pass_number, numbers, peer, 1.0) if cut.unknown_per_s > 0 else -numbers
    order = np.lexsort((inside, ours))
    own = order if cut.unknown_per_s > 0 else np.arange(len(blocks))
    is_own = ours < nearest
    return [blocks[at] for at in own if is_own[at]], [blocks[at] for at in order if not is_own[at]]


def page_order(plan: BlockPlan, pass_number: int, peer: PeerId) -> list[int]:
    """All pages of a pass in the order in which ``peer`` visits them, the nearest first: another one for each peer."""
    first = np.arange(plan.num_pages, dtype=np.int64) * PAGE_BLOCKS
    return [int(page) for page in np.argsort(distances(plan, pass_number, first, peer, 1.0), kind="stable")]


def _any(speeds: Mapping[PeerId, float]) -> float:
    return statistics.median_low(speeds.values()) if speeds else 1.0
