"""Spans for tests that do not care how a plan divides the vector."""

from collab.averaging.plan import Span
from collab.types import PeerId


def equal_shares(num_elements: int, reducers: tuple[PeerId, ...]) -> tuple[Span, ...]:
    """One span of nearly equal length for each reducer, in their order."""
    edges = [num_elements * index // len(reducers) for index in range(len(reducers) + 1)]
    return tuple(
        Span(reducer, start, stop)
        for reducer, start, stop in zip(reducers, edges[:-1], edges[1:], strict=True)
        if start < stop
    )
