"""Whose block is whose before anybody has claimed it: by weighted rendezvous hashing, so that claims rarely collide."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from collab.data.blocks import BlockPlan, Words, mixed, word_of
from collab.types import PeerId

PROVEN = 1.5
"""A peer may claim to be so many times as fast as its committed samples show: it may have just become faster."""
SLOWEST = 1e-6
"""Of the median: a peer that has not measured its speed yet owns next to nothing, and nobody divides by zero."""


def believed_speeds(claimed: Mapping[PeerId, float], proven: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """Samples per second of each peer, as far as its word goes: up to the median of all, more if it has shown more.

    Args:
        claimed: by the peers themselves.
        proven: samples per second that committed rounds show; who is missing has shown nothing.
    """
    if not claimed:
        return {}
    known = [speed for speed in claimed.values() if speed > 0]
    median = statistics.median_low(known) if known else 1.0
    believed = {}
    for peer, speed in claimed.items():
        most = max(median, PROVEN * proven.get(peer, 0.0))
        believed[peer] = max(min(speed, most) if speed > 0 else median, SLOWEST * median)
    return believed


def distances(
    plan: BlockPlan, pass_number: int, blocks: Sequence[int], peer: PeerId, weight: float
) -> NDArray[np.float64]:
    """[blocks] how near each block is to ``peer``: the nearest peer owns it. Exponential with rate ``weight``.

    So a peer owns blocks in proportion to its weight, and when one comes, goes or changes its weight, only blocks move
    that it gains or loses.

    Source: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (SPAA 2005), the logarithmic method.
    """
    words: Words = plan.block_words[np.asarray(blocks, dtype=np.int64)]
    drawn = mixed(words ^ mixed(word_of(f"{peer}:{pass_number}").reshape(1)))
    uniform = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(uniform) / weight


def preferences(
    plan: BlockPlan, pass_number: int, blocks: Sequence[int], peer: PeerId, speeds: Mapping[PeerId, float]
) -> tuple[list[int], list[int]]:
    """``blocks`` as ``peer`` should take them: its own ones in order, then those of others, the nearest first.

    Args:
        speeds: of all trainers; ``peer`` may be missing.
    """
    if not blocks:
        return [], []
    ours = distances(plan, pass_number, blocks, peer, speeds.get(peer) or _any(speeds))
    nearest = np.full(len(blocks), math.inf)
    for other, speed in speeds.items():
        if other != peer:
            nearest = np.minimum(nearest, distances(plan, pass_number, blocks, other, speed))
    own = [block for block, is_ours in zip(blocks, ours < nearest, strict=True) if is_ours]
    others = [blocks[index] for index in np.argsort(ours, kind="stable") if not ours[index] < nearest[index]]
    return own, others


def page_order(plan: BlockPlan, pass_number: int, peer: PeerId) -> list[int]:
    """All pages of a pass in the order in which ``peer`` visits them: another one for each peer, so that few meet."""
    keys = mixed(np.arange(plan.num_pages, dtype=np.uint64) + word_of(f"{plan.data}:{peer}:{pass_number}"))
    return [int(page) for page in np.argsort(keys, kind="stable")]


def _any(speeds: Mapping[PeerId, float]) -> float:
    return statistics.median_low(speeds.values()) if speeds else 1.0
