"""Who holds a round up, with the time as a number."""

from hypothesis import given, strategies as st

from collab.averaging.division import Division
from collab.averaging.laggards import FACTOR, FACTOR_BLIND, GRACE_S, MOST, Deadline, Laggards, Progress
from collab.averaging.messages import Group, Member
from collab.averaging.plan import Span
from collab.types import Lineage, PeerId

A, B, C, H = (PeerId(name) for name in "abch")
BEGAN_S = 1000.0


def make_group(expected_s: float = 0.0) -> Group:
    """Three trainers and one that only reduces; ten parts each."""
    return Group(
        round_id="r",
        epoch=0,
        lineage=Lineage("l"),
        num_elements=400,
        leader=A,
        members=(Member(A, 1.0), Member(B, 1.0), Member(C, 1.0), Member(H, 0.0, receives=False)),
        spans=tuple(Span(peer, 100 * index, 100 * index + 100) for index, peer in enumerate((A, B, C, H))),
        part_elements=10,
        expected_s=expected_s,
    )


GROUP = make_group()
DIVISION = Division.of(GROUP.spans, 10)
LIVE = frozenset((A, B, C, H))


def watch(came: dict[PeerId, int], held: dict[PeerId, list[int]] | None = None, group: Group = GROUP) -> Laggards:
    """Every reducer has so many parts of each contributor."""
    laggards = Laggards(group, BEGAN_S)
    say(laggards, came, held or {})
    return laggards


def say(laggards: Laggards, came: dict[PeerId, int], held: dict[PeerId, list[int]]) -> None:
    for peer in LIVE:
        laggards.heard(peer, Progress(came, held.get(peer, [0, 0, 0, 0])))


def test_nobody_is_late_before_most_have_finished() -> None:
    deadline = Deadline()
    assert not deadline.has_passed(1, 3, 1e9, 0.0)
    assert deadline.at_s is None
    assert not deadline.has_passed(0, 0, 1e9, 0.0)


def test_from_when_most_have_finished_the_others_have_a_multiple_of_that_time() -> None:
    for expected_s, factor in ((0.0, FACTOR_BLIND), (1.0, FACTOR)):
        deadline = Deadline()
        assert not deadline.has_passed(2, 3, 4.0, expected_s)
        late_s = factor * 4.0 + GRACE_S
        assert deadline.at_s == late_s
        assert not deadline.has_passed(2, 3, late_s - 0.01, expected_s)
        assert deadline.has_passed(2, 3, late_s, expected_s)


def test_nobody_is_late_before_what_the_plan_says() -> None:
    deadline = Deadline()
    assert not deadline.has_passed(2, 3, 1.0, 20.0)
    assert deadline.at_s == FACTOR * 20.0 + GRACE_S


def test_when_all_finish_together_nobody_is_waited_for() -> None:
    deadline = Deadline()
    assert not deadline.has_passed(3, 3, 1.0, 0.0)
    assert deadline.at_s is None


@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), max_size=20),
    expected_s=st.floats(0, 50),
)
def test_a_deadline_never_moves_and_comes_no_sooner_than_most_took(
    steps: list[tuple[int, float]], expected_s: float
) -> None:
    deadline, elapsed_s, set_at_s = Deadline(), 0.0, None
    for num_finished, more_s in steps:
        elapsed_s += more_s
        has_passed = deadline.has_passed(num_finished, 9, elapsed_s, expected_s)
        if set_at_s is None and MOST * 9 <= num_finished < 9:
            set_at_s = elapsed_s
        if set_at_s is None:
            assert not has_passed
        else:
            assert deadline.at_s is not None
            assert deadline.at_s >= FACTOR * max(set_at_s, expected_s) + GRACE_S
            assert has_passed == (elapsed_s >= deadline.at_s)


def test_a_contributor_whose_parts_do_not_come_is_late_long_after_the_others() -> None:
    laggards = watch({A: 10, B: 10, C: 3})
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 2.0) == ()
    late_s = BEGAN_S + FACTOR_BLIND * 2.0 + GRACE_S
    assert laggards.late_senders(LIVE, DIVISION, late_s - 0.01) == ()
    assert laggards.late_senders(LIVE, DIVISION, late_s) == (C,)


def test_a_contributor_that_finishes_in_time_is_not_late() -> None:
    laggards = watch({A: 10, B: 10, C: 3})
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 2.0) == ()
    say(laggards, {A: 10, B: 10, C: 10}, {})
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 1e6) == ()


def test_with_a_plan_the_time_to_send_is_that_of_the_plan() -> None:
    laggards = watch({A: 10, B: 10, C: 3}, group=make_group(expected_s=20.0))
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 2.0) == ()
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 30.9) == ()
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 31.0) == (C,)


def test_of_a_lost_reducer_no_parts_are_expected() -> None:
    laggards = Laggards(GROUP, BEGAN_S)
    for peer in (A, B, C):
        laggards.heard(peer, Progress({A: 10, B: 10, C: 10}, []))
    mended = DIVISION.mended([3], {A: (4,)}, {A: 1.0})
    assert mended is not None
    for division in (DIVISION, mended):
        for now_s in (1.0, 1e6):
            assert laggards.late_senders(LIVE - {H}, division, BEGAN_S + now_s) == ()


def test_of_a_reducer_whose_results_another_hands_on_no_parts_are_expected() -> None:
    laggards = watch({A: 10, B: 10, C: 10})
    laggards.heard(H, Progress({}, []))
    mended = DIVISION.mended([3], {A: (10,)}, {A: 1.0})
    assert mended is not None
    assert laggards.late_senders(LIVE, mended, BEGAN_S) == ()
    assert laggards.late_senders(LIVE, mended, BEGAN_S + 1e6) == ()


def test_a_contributor_that_is_gone_is_not_late() -> None:
    laggards = watch({A: 10, B: 10, C: 3})
    laggards.late_senders(LIVE, DIVISION, BEGAN_S + 2.0)
    assert laggards.late_senders(LIVE - {C}, DIVISION, BEGAN_S + 1e6) == ()


def test_a_reducer_whose_results_most_lack_is_late() -> None:
    held = {A: [10, 10, 10, 2], B: [10, 10, 10, 2], C: [10, 10, 10, 9]}
    laggards = watch({}, held)
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 1.0) == ()
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 6.0) == (H,)


def test_a_helper_whose_results_two_of_three_lack_is_late() -> None:
    laggards = watch({}, {A: [10, 10, 10, 2], B: [10, 10, 10, 2], C: [10, 10, 10, 10]})
    laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 1.0)
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 6.0) == (H,)


def test_a_member_that_gets_results_slowly_makes_no_reducer_late() -> None:
    laggards = watch({}, {A: [10, 10, 10, 10], B: [10, 10, 10, 10], C: [0, 0, 10, 0]})
    for now_s in (1.0, 1e6):
        assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + now_s) == ()


def test_a_division_that_changed_has_a_time_of_its_own() -> None:
    held = {A: [10, 10, 10, 2], B: [10, 10, 10, 2], C: [10, 10, 10, 2]}
    laggards = watch({}, held)
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 1.0) == ()
    assert laggards.late_reducers(LIVE, DIVISION, 1, BEGAN_S + 50.0) == ()
    assert laggards.late_reducers(LIVE, DIVISION, 1, BEGAN_S + 250.0) == ()
    assert laggards.late_reducers(LIVE, DIVISION, 1, BEGAN_S + 251.0) == (H,)


def test_what_a_holder_hands_on_counts_against_the_holder() -> None:
    mended = DIVISION.mended([3], {A: (10,)}, {A: 1.0})
    assert mended is not None
    laggards = watch({}, {A: [10, 10, 10, 10], B: [10, 10, 10, 0], C: [10, 10, 10, 0]})
    laggards.late_reducers(LIVE, mended, 1, BEGAN_S + 1.0)
    assert laggards.late_reducers(LIVE, mended, 1, BEGAN_S + 6.0) == (A,)


def test_of_whom_nothing_was_heard_nothing_is_known_to_have_come() -> None:
    laggards = Laggards(GROUP, BEGAN_S)
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 1e6) == ()
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 1e6) == ()


def test_members_that_report_long_after_most_are_late() -> None:
    laggards = Laggards(GROUP, BEGAN_S)
    assert laggards.late_members(LIVE, {B, C}, 0, BEGAN_S + 1.0) == ()
    assert laggards.late_members(LIVE, {C}, 0, BEGAN_S + 2.0) == ()
    assert laggards.late_members(LIVE, {C}, 0, BEGAN_S + 11.0) == (C,)
    assert laggards.late_members(LIVE, {C}, 1, BEGAN_S + 11.0) == ()
    assert laggards.late_members(LIVE, {C}, 1, BEGAN_S + 56.0) == (C,)


def test_parts_that_one_reducer_says_to_have_too_many_of_make_up_for_no_others() -> None:
    laggards = watch({A: 10, B: 10, C: 3})
    laggards.heard(A, Progress({A: 10, B: 10, C: 1000}, []))
    laggards.late_senders(LIVE, DIVISION, BEGAN_S + 2.0)
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 11.0) == (C,)


def test_an_absurd_progress_says_nothing_more_than_it_can() -> None:
    laggards = watch({A: 1 << 60, B: 10, C: -5}, {A: [], B: [1 << 60] * 9, C: [-1]})
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 1.0) == ()
    assert laggards.late_senders(LIVE, DIVISION, BEGAN_S + 6.0) == (C,)
    assert laggards.late_reducers(LIVE, DIVISION, 0, BEGAN_S + 1e6) == ()
