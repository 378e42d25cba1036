"""Who reduces what, when reducers are lost one after another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.division import MAX_JOBS, Division, Job, num_parts
from collab.averaging.plan import Span
from collab.averaging.reduction import part_edges
from collab.types import PeerId

A, B, C, D = (PeerId(name) for name in "abcd")
PEERS = tuple(PeerId(f"p{index}") for index in range(8))


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    """As a round begins, with up to eight reducers."""
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=len(PEERS)))
    edges = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    spans = [Span(PEERS[index], edges[index], edges[index + 1]) for index in range(len(lengths))]
    return Division.of(spans, draw(st.integers(1, 20)))


def length_of(division: Division) -> int:
    return max(job.span.stop for job in division.jobs)


def parts_of(division: Division) -> set[tuple[int, int]]:
    """All parts that stand, by their elements."""
    parts = set()
    for index, job in enumerate(division.jobs):
        start, stop = division.extent(index)
        parts |= {(start + low, start + high) for low, high in part_edges(stop - start, division.part_elements)}
        assert len(part_edges(stop - start, division.part_elements)) == job.valid
    return parts


def check_mended(
    division: Division,
    broken: Sequence[int],
    held: Mapping[PeerId, Sequence[int]],
    reducers: Mapping[PeerId, float],
) -> Division | None:
    """Mend, and check that nothing is lost, done twice, or taken from somebody who has none of it."""
    mended = division.mended(broken, held, reducers)
    if mended is None:
        assert not reducers
        return None
    assert mended.is_sound(length_of(division))
    assert parts_of(mended) == parts_of(division)
    assert mended.continues(division)
    assert len(mended.jobs) >= len(division.jobs)
    for index, (before, after) in enumerate(zip(division.jobs, mended.jobs, strict=False)):
        assert after.span == before.span
        assert after.valid <= before.valid
        if index not in broken:
            assert after == before
            continue
        counts = {peer: count[list(broken).index(index)] for peer, count in held.items()}
        assert after.valid == min(max(counts.values(), default=0), before.valid)
        if after.valid:
            assert after.holder is not None
            assert counts[after.holder] >= after.valid
    for job in mended.jobs[len(division.jobs) :]:
        assert job.span.reducer in reducers
        assert job.holder is None
        assert job.valid == num_parts(job.span, division.part_elements) > 0
    return mended


@given(division=divisions(), data=st.data())
@settings(max_examples=200)
def test_whoever_is_lost_the_division_that_follows_covers_the_vector_once(
    division: Division, data: st.DataObject
) -> None:
    length, alive = length_of(division), list(PEERS)
    while alive:
        lost = data.draw(st.sets(st.sampled_from(alive), max_size=3))
        alive = [peer for peer in alive if peer not in lost]
        gone = set(PEERS) - set(alive)
        broken = division.broken(gone)
        counts = st.lists(st.integers(0, 70), min_size=len(broken), max_size=len(broken))
        held = {peer: data.draw(counts) for peer in alive if data.draw(st.booleans())}
        reducers = {peer: data.draw(st.floats(0, 1e12)) for peer in alive if data.draw(st.booleans())}
        mended = check_mended(division, broken, held, reducers)
        if mended is None:
            return
        assert mended.broken(gone) == ()
        assert Division.from_rows([tuple(row) for row in mended.to_rows()], mended.part_elements) == mended  # type: ignore[misc]
        reduced = [extent for peer in PEERS for extent in mended.extents_of(peer)]
        assert sum(stop - start for start, stop in reduced) == length
        if not lost:
            return
        division = mended


@given(division=divisions(), data=st.data())
@settings(max_examples=100)
def test_work_that_nobody_lost_may_be_stopped_and_divided_as_well(division: Division, data: st.DataObject) -> None:
    for _ in range(3):
        broken = sorted(data.draw(st.sets(st.integers(0, len(division.jobs) - 1))))
        counts = st.lists(st.integers(0, 70), min_size=len(broken), max_size=len(broken))
        held = {peer: data.draw(counts) for peer in PEERS[:3]}
        mended = check_mended(division, broken, held, {PEERS[0]: 1.0, PEERS[1]: 0.0})
        assert mended is not None
        division = mended


def test_what_somebody_holds_is_fetched_from_there_and_the_rest_is_shared_out_where_it_was_cut() -> None:
    division = Division.of([Span(A, 0, 20), Span(B, 20, 75)], 10)
    mended = division.mended([1], {A: (2,), C: (1,)}, {A: 1.0, C: 3.0})
    assert mended is not None
    assert mended.jobs == (
        Job(Span(A, 0, 20), 2),
        Job(Span(B, 20, 75), 2, A),
        Job(Span(A, 40, 50), 1),
        Job(Span(C, 50, 75), 3),
    )
    assert [mended.extent(index) for index in range(4)] == [(0, 20), (20, 40), (40, 50), (50, 75)]
    assert mended.extents_of(B) == [(20, 40)]
    assert mended.broken({A}) == (0, 1, 2)
    assert mended.broken({B}) == ()


def test_of_several_that_hold_equally_much_the_one_with_most_work_hands_it_on() -> None:
    division = Division.of([Span(A, 0, 40)], 10)
    mended = division.mended([0], {B: (4,), C: (9,), D: (4,)}, {B: 1.0, C: 2.0, D: 1.0})
    assert mended is not None
    assert mended.jobs == (Job(Span(A, 0, 40), 4, C),)


def test_without_anybody_to_reduce_what_all_is_held_can_still_be_handed_on() -> None:
    division = Division.of([Span(A, 0, 40)], 10)
    assert division.mended([0], {B: (4,)}, {}) is not None
    assert division.mended([0], {B: (3,)}, {}) is None
    assert division.mended([0], {}, {}) is None


def test_reducers_that_had_no_work_before_share_it_equally() -> None:
    mended = Division.of([Span(A, 0, 40)], 10).mended([0], {}, {B: 0.0, C: 0.0})
    assert mended is not None
    assert mended.jobs[1:] == (Job(Span(B, 0, 20), 2), Job(Span(C, 20, 40), 2))


def test_a_job_of_which_nothing_stands_is_not_broken_again() -> None:
    mended = Division.of([Span(A, 0, 40)], 10).mended([0], {}, {B: 1.0})
    assert mended is not None
    assert mended.jobs[0] == Job(Span(A, 0, 40), 0)
    assert mended.broken({A}) == ()
    assert mended.broken({A, B}) == (1,)


SOUND = Division.of([Span(A, 0, 20), Span(B, 20, 45)], 10)


@pytest.mark.parametrize(
    "jobs",
    [
        (),
        SOUND.jobs[:1],
        SOUND.jobs[1:],
        (*SOUND.jobs, SOUND.jobs[0]),
        (SOUND.jobs[0], replace(SOUND.jobs[1], valid=2)),
        (SOUND.jobs[0], replace(SOUND.jobs[1], valid=4)),
        (SOUND.jobs[0], replace(SOUND.jobs[1], valid=-1)),
        (SOUND.jobs[0], Job(Span(B, 10, 45), 4)),
        (SOUND.jobs[0], Job(Span(B, 25, 45), 2)),
        (SOUND.jobs[0], Job(Span(B, 20, 55), 4)),
        (Job(Span(A, -5, 5), 1), Job(Span(B, 5, 45), 4)),
        (*SOUND.jobs, Job(Span(C, 30, 10), 1)),
        (*SOUND.jobs, *[Job(Span(C, 0, 10), 0)] * MAX_JOBS),
    ],
)
def test_a_division_that_does_not_cover_every_element_once_is_not_sound(jobs: tuple[Job, ...]) -> None:
    assert SOUND.is_sound(45)
    assert not SOUND.is_sound(44)
    assert not Division(jobs, 10).is_sound(45)


@pytest.mark.parametrize(
    "jobs",
    [
        SOUND.jobs[:1],
        (SOUND.jobs[1], SOUND.jobs[0]),
        (SOUND.jobs[0], replace(SOUND.jobs[1], valid=4)),
        (replace(SOUND.jobs[0], span=Span(C, 0, 20)), SOUND.jobs[1]),
        (replace(SOUND.jobs[0], span=Span(A, 0, 21)), SOUND.jobs[1]),
    ],
)
def test_other_jobs_or_more_of_them_cannot_have_come_of_a_division(jobs: tuple[Job, ...]) -> None:
    assert SOUND.continues(SOUND)
    assert not Division(jobs, 10).continues(SOUND)


def test_a_job_of_an_absurd_length_is_refused_without_being_cut_into_parts() -> None:
    endless = Job(Span(A, 0, 1 << 62), 1 << 50)
    assert not Division((*SOUND.jobs, endless), 10).is_sound(45)


@given(num_elements=st.integers(-5, 200), part_elements=st.integers(1, 50))
def test_the_number_of_parts_is_that_of_the_edges(num_elements: int, part_elements: int) -> None:
    assert num_parts(Span(A, 7, 7 + num_elements), part_elements) == len(part_edges(num_elements, part_elements))
