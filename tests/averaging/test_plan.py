"""Who reduces what."""

import pytest
from hypothesis import given, strategies as st

from collab.averaging.plan import Span, equal_shares, is_tiling, plan_digest
from collab.types import PeerId

REDUCERS = st.integers(1, 40).map(lambda n: tuple(PeerId(f"peer{i:02d}") for i in range(n)))
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


@given(num_elements=st.integers(1, 10_000), reducers=REDUCERS)
def test_equal_shares_tile_the_vector_and_differ_by_at_most_one(
    num_elements: int, reducers: tuple[PeerId, ...]
) -> None:
    spans = equal_shares(num_elements, reducers)
    covered = [index for span in spans for index in range(span.start, span.stop)]
    assert covered == list(range(num_elements))
    assert is_tiling(spans, num_elements)
    lengths = {span.num_elements for span in spans}
    assert max(lengths) - min(lengths) <= 1
    assert len(spans) == min(num_elements, len(reducers))
    order = [reducers.index(span.reducer) for span in spans]
    assert order == sorted(order)


def test_more_reducers_than_elements_leave_some_without_a_span() -> None:
    spans = equal_shares(2, (A, B, C))
    assert len(spans) == 2
    assert all(span.num_elements == 1 for span in spans)


@pytest.mark.parametrize(("num_elements", "reducers"), [(5, ()), (0, (A,)), (-1, (A,))])
def test_nothing_to_share_or_nobody_to_share_it_is_a_value_error(
    num_elements: int, reducers: tuple[PeerId, ...]
) -> None:
    with pytest.raises(ValueError, match="cannot share"):
        equal_shares(num_elements, reducers)


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


def test_the_digest_of_a_plan_changes_with_every_part_of_it() -> None:
    base = (Span(A, 0, 2), Span(B, 2, 4))
    others = [
        (Span(C, 0, 2), Span(B, 2, 4)),
        (Span(A, 0, 1), Span(B, 1, 4)),
        (Span(A, 0, 2), Span(B, 2, 5)),
        (Span(A, 0, 2),),
    ]
    assert plan_digest(base) == plan_digest((Span(A, 0, 2), Span(B, 2, 4)))
    assert len({plan_digest(spans) for spans in [base, *others]}) == 5
