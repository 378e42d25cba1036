"""Who reduces what: pure functions of a group."""

from dataclasses import dataclass

from collab.types import PeerId

PART_ELEMENTS = 16_384
"""64 KiB of float32: small enough to keep every link busy while others finish, large enough to be cheap."""
LARGEST_PART_ELEMENTS = 8 * PART_ELEMENTS
SMALLEST_PART_ELEMENTS = PART_ELEMENTS // 2
PART_S = 0.02
"""Aim for the time of a part on a fast link, where the cost of a message counts for more than its latency."""
LONGEST_PART_S = 0.1
"""On a link that takes longer for 64 KiB parts have half of it: shorter ones cost more CPU time than they save."""

SHORTEST_SPAN_S = 0.025
"""A reducer that is busy for less is not worth the streams of all the others."""
SHORTEST_SPAN_ELEMENTS = 256
"""1 KiB; below it, heads of messages weigh more than what is in them."""

MIN_RATE, MAX_RATE = 1e3, 1e12
"""Bytes/s that a link may have. With less, the shortest part takes longer than the longest silence that a round bears,
so its peer cannot take part; and rates so small that sums lose the others in their rounding have no plan."""


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


def is_rate(bytes_per_s: float) -> bool:
    """Whether a link may have this rate, or it is 0: not known."""
    return bytes_per_s == 0 or MIN_RATE <= bytes_per_s <= MAX_RATE


def part_elements(slowest_bytes_per_s: float, bytes_per_element: float) -> int:
    """Length of a part in a group whose slowest contributor sends so fast; 0: not known.

    Args:
        bytes_per_element: of the leanest encoding: its parts are as large as others' of float32, since a message costs
            CPU time whatever is in it.
    """
    fitting = max(int(slowest_bytes_per_s * PART_S / 4) // PART_ELEMENTS * PART_ELEMENTS, PART_ELEMENTS)
    if 0 < slowest_bytes_per_s * LONGEST_PART_S < 4 * PART_ELEMENTS:
        fitting = SMALLEST_PART_ELEMENTS
    return min(fitting * round(4.0 / bytes_per_element), LARGEST_PART_ELEMENTS)


def shortest_span(part: int, num_elements: int, num_members: int, slowest_bytes_per_s: float) -> int:
    """Length below which a peer's share goes to the others: half a part, or what it could as well do as not.

    The second is for vectors of less than a part for each: of a short one all would go to one peer, however slow, that
    would take everybody's and return it to all.

    Args:
        part: elements.
        slowest_bytes_per_s: of those who may reduce; 0: not known.
    """
    if slowest_bytes_per_s <= 0 or num_elements >= part * num_members:
        return max(part // 2, 1)
    quick = int(slowest_bytes_per_s * SHORTEST_SPAN_S / (4 * num_members))
    return max(min(part // 2, max(quick, num_elements // (8 * num_members), SHORTEST_SPAN_ELEMENTS)), 1)


def is_tiling(spans: tuple[Span, ...], num_elements: int) -> bool:
    """Whether the spans cover every element exactly once, in order, one span to a reducer."""
    reached = 0
    for span in spans:
        if span.start != reached or span.stop <= span.start:
            return False
        reached = span.stop
    return reached == num_elements and len({span.reducer for span in spans}) == len(spans)
