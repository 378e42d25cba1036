"""Who reduces what: pure functions of a group."""

import hashlib
from dataclasses import dataclass

from collab.types import PeerId

PART_ELEMENTS = 16_384
"""64 KiB of float32: small enough to keep every link busy while others finish, large enough to be cheap."""
LARGEST_PART_ELEMENTS = 8 * PART_ELEMENTS
PART_S = 0.02
"""Aim for the time of a part on a fast link, where the cost of a message counts for more than its latency."""


@dataclass(frozen=True, slots=True)
class Span:
    """Elements ``start .. stop - 1`` of the vector, averaged by ``reducer``."""

    reducer: PeerId
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        """Elements in the span, at least 1."""
        return self.stop - self.start


def equal_shares(num_elements: int, reducers: tuple[PeerId, ...]) -> tuple[Span, ...]:
    """Cut the vector into one span of nearly equal length for each reducer, in their order.

    Reducers beyond the number of elements get none. This is all-reduce: optimal when all links are equal.

    Raises:
        ValueError: nobody reduces, or there is nothing to reduce.
    """
    if not reducers or num_elements < 1:
        raise ValueError(f"cannot share {num_elements} elements among {len(reducers)} reducers")
    edges = [num_elements * index // len(reducers) for index in range(len(reducers) + 1)]
    return tuple(
        Span(reducer, start, stop)
        for reducer, start, stop in zip(reducers, edges[:-1], edges[1:], strict=True)
        if start < stop
    )


def part_elements(slowest_bytes_per_s: float) -> int:
    """Length of a part in a group whose slowest member sends so fast; 0: not known."""
    fitting = int(slowest_bytes_per_s * PART_S) // (4 * PART_ELEMENTS) * PART_ELEMENTS
    return min(max(fitting, PART_ELEMENTS), LARGEST_PART_ELEMENTS)


def is_tiling(spans: tuple[Span, ...], num_elements: int) -> bool:
    """Whether the spans cover every element exactly once, in order, one span to a reducer."""
    reached = 0
    for span in spans:
        if span.start != reached or span.stop <= span.start:
            return False
        reached = span.stop
    return reached == num_elements and len({span.reducer for span in spans}) == len(spans)


def plan_digest(spans: tuple[Span, ...]) -> str:
    """16 hex digits that name this plan in messages and logs."""
    text = ";".join(f"{span.reducer}:{span.start}:{span.stop}" for span in spans)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
