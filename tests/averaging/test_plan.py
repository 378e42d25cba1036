"""Who reduces what."""

import pytest

from collab.averaging.plan import Span, is_tiling
from collab.types import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


@pytest.mark.parametrize(
    ("spans", "num_elements"),
    [
        ((), 4),
        ((Span(A, 0, 2),), 4),
        ((Span(A, 0, 5),), 4),
        ((Span(A, 1, 4),), 4),
        ((Span(A, 0, 2), Span(B, 3, 4)), 4),
        ((Span(A, 0, 3), Span(B, 2, 4)), 4),
        ((Span(A, 0, 2), Span(B, 0, 2)), 4),
        ((Span(B, 2, 4), Span(A, 0, 2)), 4),
        ((Span(A, 0, 2), Span(A, 2, 4)), 4),
        ((Span(A, 0, 2), Span(B, 2, 2), Span(C, 2, 4)), 4),
        ((Span(A, 0, 4), Span(B, 4, 3), Span(C, 3, 4)), 4),
        ((Span(A, 0, -1),), -1),
    ],
    ids=[
        "nothing", "too short", "too long", "late start", "gap", "overlap", "span twice", "out of order",
        "reducer twice", "empty span", "backwards", "negative",
    ],
)  # fmt: skip
def test_what_does_not_cover_every_element_once_is_no_tiling(spans: tuple[Span, ...], num_elements: int) -> None:
    assert not is_tiling(spans, num_elements)
