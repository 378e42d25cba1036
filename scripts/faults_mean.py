"""Who is in a mean, found from its numbers alone: vectors are known, and a run of elements is a set of equations.

In a run of elements the mean is a combination of the peers' known vectors. Least squares give its coefficients, hence
who is in it; then the mean of exactly those must be there, or the run is not explained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import averaging_vectors as vectors
import numpy as np
from numpy.typing import NDArray

RUN_ELEMENTS = 64
"""Equations for a run's few unknowns."""
MOST_PEERS = RUN_ELEMENTS // 4
RUNS_AT_ONCE = 2048
"""8 peers' vectors of so many runs take 8 MB."""
EDGE_FACTOR = 4.0
"""A single element may be so many times further off than a run's root mean square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Makeup:
    """What a mean is made of."""

    shares: dict[int, float]
    """Of each peer: the part of the elements that has its vector in it, where these are explained."""
    explained: float
    """Part of the elements that are the weighted mean of the vectors of some of the peers."""

    def averaged(self, weights: Mapping[int, float]) -> float:
        """How much of what these peers brought is in the mean, by weight and elements."""
        return sum(self.shares[peer] * weight for peer, weight in weights.items()) / sum(weights.values())


def makeup(mean: vectors.Floats, seed: int, number: int, weights: Mapping[int, float], max_error: float) -> Makeup:
    """Look at every element of ``mean``.

    Args:
        weights: of everybody who may be in it.
        max_error: root mean square within a run.

    Raises:
        ValueError: more peers than a run has equations for, or less than a run of elements.
    """
    if len(weights) > MOST_PEERS or len(mean) < RUN_ELEMENTS:
        raise ValueError(
            f"{len(weights)} peers and {len(mean)} elements: at most {MOST_PEERS}, at least {RUN_ELEMENTS}"
        )
    peers = sorted(weights)
    scale = np.array([weights[peer] for peer in peers])
    starts = np.arange(0, len(mean) - RUN_ELEMENTS + 1, RUN_ELEMENTS)
    batches = [
        _look(mean, starts[first : first + RUNS_AT_ONCE], (seed, number, peers), scale, max_error)
        for first in range(0, len(starts), RUNS_AT_ONCE)
    ]
    present = np.concatenate([found for found, _ in batches])
    is_exact = np.concatenate([exact for _, exact in batches])
    counts = (present[is_exact] * RUN_ELEMENTS).sum(axis=0).astype(np.float64)
    explained = float(is_exact.sum() * RUN_ELEMENTS)
    for run in np.flatnonzero(~is_exact):
        members = _edge(mean, int(starts[run]), (seed, number, peers), scale, present[max(0, run - 1) : run + 2])
        is_close = np.isfinite(members.errors) & (members.errors <= EDGE_FACTOR * max_error)
        explained += float(is_close.sum())
        counts += (members.present * is_close[:, None]).sum(axis=0)
    seen = float(len(starts) * RUN_ELEMENTS)
    return Makeup(shares=dict(zip(peers, (counts / seen).tolist(), strict=True)), explained=explained / seen)


Source = tuple[int, int, Sequence[int]]
"""Seed, round and peers: what vectors follow from."""


def _known(source: Source, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """[peers, *positions]."""
    seed, number, peers = source
    where = positions.astype(np.uint32)
    return np.stack([vectors.elements(seed, number, peer, where) for peer in peers]).astype(np.float64)


def _look(
    mean: vectors.Floats, starts: NDArray[np.int64], source: Source, scale: NDArray[np.float64], max_error: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Who is in each run, [runs, peers], and whether that explains it, [runs]."""
    positions = starts[:, None] + np.arange(RUN_ELEMENTS)
    known = _known(source, positions).transpose(1, 0, 2)
    values = mean[positions].astype(np.float64)
    squares, products = known @ known.transpose(0, 2, 1), known @ values[:, :, None]
    coefficients = np.linalg.solve(squares, products)[:, :, 0]
    present = coefficients > 0.5 * scale / scale.sum()
    errors = values - _mean_of(present * scale, known)
    return present, np.sqrt((errors**2).mean(axis=1)) <= max_error


def _mean_of(shares: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """[runs, elements] of [runs, peers] and [runs, peers, elements]; no mean of nobody."""
    totals = shares.sum(axis=1)
    totals[totals == 0.0] = np.nan
    mean: NDArray[np.float64] = (shares[:, None, :] @ known)[:, 0, :] / totals[:, None]
    return mean


@dataclass(frozen=True, slots=True)
class _Edge:
    """A run in which the mean begins to be of others: by element."""

    errors: NDArray[np.float64]
    present: NDArray[np.bool_]


def _edge(
    mean: vectors.Floats, start: int, source: Source, scale: NDArray[np.float64], around: NDArray[np.bool_]
) -> _Edge:
    """Each element by whichever of the makeups around it fits it better."""
    positions = start + np.arange(RUN_ELEMENTS)
    known = np.broadcast_to(_known(source, positions), (len(around), len(scale), RUN_ELEMENTS))
    errors = np.abs(mean[positions].astype(np.float64) - _mean_of(around * scale, known))
    errors[np.isnan(errors)] = np.inf
    best = errors.argmin(axis=0)
    return _Edge(errors.min(axis=0), around[best])
