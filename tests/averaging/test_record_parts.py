"""What a record says of elements, against one flag for each."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from collab.averaging.agreement import CommitRecord
from collab.errors import BadMessage
from collab.types import PeerId
from tests.averaging.records import X, make_record

PEERS = tuple(PeerId(name) for name in "abcd")
STRANGER = PeerId("stranger")


@st.composite
def records(draw: st.DrawFn) -> CommitRecord:
    """Pieces in any order, several of one reducer, and gaps that may touch."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    edges = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    pieces = [(draw(st.sampled_from(PEERS)), low, high) for low, high in itertools.pairwise(edges)]
    names = draw(st.lists(st.sampled_from(PEERS), min_size=1, unique=True))
    gaps = []
    for peer in names:
        cuts = sorted(draw(st.sets(st.integers(0, edges[-1]), max_size=6)))
        gaps += [(peer, low, high) for low, high in itertools.pairwise(cuts) if draw(st.booleans())]
    return make_record(
        contributors=tuple((peer, float(draw(st.integers(1, 9)))) for peer in names),
        members=PEERS,
        pieces=tuple(draw(st.permutations(pieces))),
        digests=("d",) * len(pieces),
        gaps=tuple(draw(st.permutations(gaps))),
    )


def mask(num_elements: int, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which elements the spans name."""
    flags = np.zeros(num_elements, bool)
    for start, stop in spans:
        assert 0 <= start < stop <= num_elements
        assert not flags[start:stop].any()
        flags[start:stop] = True
    return flags


@given(record=records())
@settings(max_examples=200)
def test_used_is_what_no_gap_names(record: CommitRecord) -> None:
    for peer in PEERS:
        used = mask(record.num_elements, record.used_of(peer))
        expected = np.full(record.num_elements, peer in dict(record.contributors))
        for name, start, stop in record.gaps:
            expected[start:stop] &= name != peer
        assert np.array_equal(used, expected)
        assert all(low[1] < high[0] for low, high in itertools.pairwise(record.used_of(peer)))
    assert record.used_of(STRANGER) == ()


@given(record=records())
@settings(max_examples=100)
def test_every_element_was_reduced_by_exactly_one(record: CommitRecord) -> None:
    reduced = [mask(record.num_elements, record.reduced_by(peer)) for peer in PEERS]
    assert np.array_equal(np.sum(reduced, axis=0), np.ones(record.num_elements))
    assert record.reduced_by(STRANGER) == ()


@given(record=records())
@settings(max_examples=100)
def test_the_weight_is_the_average_over_the_elements_of_what_is_used(record: CommitRecord) -> None:
    used = [weight * mask(record.num_elements, record.used_of(peer)) for peer, weight in record.contributors]
    assert record.weight == pytest.approx(np.mean(np.sum(used, axis=0)))


@given(record=records())
@settings(max_examples=100)
def test_a_record_is_accepted_exactly_when_something_is_in_its_mean(record: CommitRecord) -> None:
    if record.weight > 0:
        assert CommitRecord.from_fields(record.to_fields()) == record
        return
    with pytest.raises(BadMessage):
        CommitRecord.from_fields(record.to_fields())


@pytest.mark.parametrize("gaps", [((X, 0, 4), (X, 3, 6)), ((X, 0, 4), (X, 0, 4)), ((X, 4, 6), (X, 0, 5)), ((X, 0, 8),)])
def test_gaps_that_overlap_or_leave_nothing_are_a_bad_message(gaps: tuple[tuple[PeerId, int, int], ...]) -> None:
    with pytest.raises(BadMessage):
        CommitRecord.from_fields(make_record(gaps=gaps).to_fields())
