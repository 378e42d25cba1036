"""Samples behind each element of a contribution: one number, but where a round has used only some of its parts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collab.types import Vector

MAX_RUNS = 4096
"""Of a part. Each comes of a round that used a peer's data only in places; the next round that it is in clears all."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Piecewise constant: ``values[i]`` samples, or another number, for the elements up to ``stops[i]``."""

    stops: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def uniform(cls, num_elements: int, samples: float) -> "Weights":
        """The same everywhere."""
        return cls((num_elements,), (float(samples),))

    @property
    def largest(self) -> float:
        """Samples behind the elements that have most."""
        return max(self.values)

    @property
    def average(self) -> float:
        """Samples behind an element, over all of them."""
        lengths = (stop - start for start, stop in pairwise((0, *self.stops)))
        return math.fsum(length * value for length, value in zip(lengths, self.values, strict=True)) / self.stops[-1]

    @property
    def is_uniform(self) -> bool:
        """Whether one number says it all."""
        return len(self.values) == 1

    def at_most(self, samples: float) -> "Weights":
        """No more than so many anywhere."""
        return Weights(self.stops, tuple(min(value, samples) for value in self.values))

    def plus(self, samples: float) -> "Weights":
        """With so many more everywhere."""
        return Weights(self.stops, tuple(value + samples for value in self.values))

    def with_(self, other: "Weights") -> "Weights":
        """With those of ``other`` for as many elements."""
        edges = sorted({*self.stops, *other.stops})
        return _simplified(edges, [self.at(edge - 1) + other.at(edge - 1) for edge in edges])

    def cleared(self, spans: Iterable[tuple[int, int]]) -> "Weights":
        """Without those behind the elements of ``spans`` (start, stop)."""
        return self.replaced(spans, 0.0)

    def replaced(self, spans: Iterable[tuple[int, int]], number: float) -> "Weights":
        """With ``number`` for the elements of ``spans`` (start, stop)."""
        merged = list(_merged(spans))
        edges = sorted({*self.stops, *(edge for span in merged for edge in span if 0 < edge < self.stops[-1])})
        values, start = [], 0
        for stop in edges:
            is_within = any(low <= start and stop <= high for low, high in merged)
            values.append(number if is_within else self.at(start))
            start = stop
        return _simplified(edges, values)

    def at(self, element: int) -> float:
        """Samples behind one element."""
        return next(value for stop, value in zip(self.stops, self.values, strict=True) if element < stop)

    def runs(self, start: int, stop: int) -> list[tuple[int, float]]:
        """Elements ``start .. stop - 1`` as (how many, samples behind each of them)."""
        runs, low = [], 0
        for high, value in zip(self.stops, self.values, strict=True):
            length = min(high, stop) - max(low, start)
            if length > 0:
                runs.append((length, value))
            low = high
        return runs

    def dense(self, start: int, stop: int) -> Vector:
        """[stop - start] float32."""
        return dense(self.runs(start, stop))


def dense(runs: Sequence[tuple[int, float]]) -> Vector:
    """One number for each element of ``runs``."""
    values = np.asarray([value for _, value in runs], np.float32)
    return np.repeat(values, [length for length, _ in runs])


def are_runs_of(runs: Sequence[tuple[int, float]], num_elements: int, limit: float) -> bool:
    """Whether ``runs``, which came from another peer, describe so many elements with at most ``limit`` samples each."""
    return (
        0 < len(runs) <= min(MAX_RUNS, num_elements)
        and all(length > 0 and math.isfinite(value) and 0 <= value <= limit for length, value in runs)
        and sum(length for length, _ in runs) == num_elements
    )


def _simplified(edges: list[int], values: list[float]) -> Weights:
    stops: list[int] = []
    kept: list[float] = []
    for stop, value in zip(edges, values, strict=True):
        if kept and kept[-1] == value:
            stops[-1] = stop
        else:
            stops.append(stop)
            kept.append(value)
    return Weights(tuple(stops), tuple(kept))


def _merged(spans: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    last: tuple[int, int] | None = None
    for start, stop in sorted(spans):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], stop)
            continue
        if last is not None:
            yield last
        last = start, stop
    if last is not None:
        yield last
